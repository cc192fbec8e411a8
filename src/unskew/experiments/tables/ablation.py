"""The ablation: FedMF, then adaptation (AF), calibration (CF) and low-rank calibration (CLR)."""

from __future__ import annotations

from unskew.experiments._paper import paper_value
from unskew.experiments._pool import on_common_seeds
from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._plan import (
    Plan,
    Row,
    Stores,
    Table,
    by_protocol,
    distinct,
    figure,
    having,
    latest,
    markdown_table,
    shown,
)

VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "FedMF": ("fedmf", {}),
    "FedMF w/ AF": ("fedmf-af", {}),
    "FedMF w/ CF": ("pfedclr", {"buffer": "full"}),
    "FedMF w/ CLR": ("pfedclr", {}),
}
_CF = {
    "filmtrust": (0.7754, 0.6313),
    "ml-100k": (0.8452, 0.6955),
    "ml-1m": (0.8349, 0.6794),
    "hetrec2011": (0.8239, 0.6612),
    "lastfm-2k": (0.7667, 0.7037),
}
_FEDMF_ML_1M = (0.4912, 0.2751)
"""Not what its main table says."""


def cells(plan: Plan) -> list[Cell]:
    return [
        plan.cell(method, source, protocol, **settings)
        for source in plan.sources()
        for protocol in plan.protocols
        for method, settings in VARIANTS.values()
    ]


def published(variant: str, data: str) -> tuple[float, float] | None:
    if variant == "FedMF w/ CF":
        return _CF.get(data)
    if (variant, data) == ("FedMF", "ml-1m"):
        return _FEDMF_ML_1M
    return paper_value(VARIANTS[variant][0], data)


def markdown(stores: Stores) -> str:
    return by_protocol(_table, variants_of(stores))


def variants_of(stores: Stores) -> list[Row]:
    """The ablation's rows, wherever they are kept."""
    kinds = [(method, settings) for method, settings in VARIANTS.values()]
    rows = [row for store in ("main", "ablation") for row in stores[store]]
    rows = [row for row in rows if (row["method"], row["settings"]) in kinds]
    pairs = dict.fromkeys((row["data"], row["protocol"]) for row in rows)
    together = [having(rows, data=source, protocol=protocol) for source, protocol in pairs]
    return [row for group in together for row in on_common_seeds(group)]


def _table(rows: list[Row], protocol: str) -> str:
    data = distinct(rows, "data")
    lines, found = [], {}
    for variant, (method, settings) in VARIANTS.items():
        cells = []
        for source in data:
            row = latest(having(rows, method=method, settings=settings, data=source))
            printed = published(variant, source) if protocol == "paper" else None
            figures = [figure(row, metric) for metric in ("hr@10", "ndcg@10")]
            found[variant, source] = figures[0]
            texts = [shown(f, printed and printed[at]) for at, f in enumerate(figures)]
            cells.append(" / ".join(texts))
        lines.append([variant, *cells])
    return markdown_table(["HR@10 / NDCG@10", *data], lines) + "\n\n" + _orders(found, data)


def _orders(found: dict[tuple[str, str], float | None], data: list[str]) -> str:
    """Whether the paper's order holds, data set by data set."""
    sentences = []
    for source in data:
        values = {variant: found[variant, source] for variant in VARIANTS}
        known = [(name, value) for name, value in values.items() if value is not None]
        if len(known) < len(VARIANTS):
            continue
        ordered = sorted(known, key=lambda pair: pair[1])
        names = " < ".join(name.removeprefix("FedMF w/ ") for name, _ in ordered)
        same = [name for name, _ in ordered] == list(VARIANTS)
        verdict = "as in the paper" if same else "not the paper's FedMF < AF < CF < CLR"
        sentences.append(f"Order by HR@10 on {source}: {names}, {verdict}.")
    return "\n".join(f"* {sentence}" for sentence in sentences)


TABLE = Table(
    "ablation",
    "Ablation",
    "AF: items adapted by a full matrix; CF: users calibrated through a full matrix; CLR: through "
    "low-rank ones, which is PFedCLR. In brackets what the paper prints.",
    "ablation",
    cells,
    markdown,
)
