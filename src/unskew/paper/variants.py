"""Variants of PFedCLR: the ablation from FedMF to PFedCLR, and sweeps over the rank and the
learning rate of the low-rank matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.display import Cell, Chart, Panel, Series, Table
from unskew.methods import METHODS
from unskew.paper import published
from unskew.paper.cost import parameter_megabytes
from unskew.paper.plan import (
    METRICS,
    Exhibit,
    Line,
    Plan,
    chart_per_protocol,
    table_by_data,
    table_per_protocol,
)
from unskew.paper.rows import Results, RunRow, data_place, distinct, find, on_common_seeds, select
from unskew.runs import RunSpec

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedMF": ("fedmf", {}),
    "FedMF w/ AF": ("fedmf-af", {}),
    "FedMF w/ CF": ("pfedclr", {"buffer": "full"}),
    "FedMF w/ CLR": ("pfedclr", {}),
}
"""Method and settings by ablation variant, weakest first according to the paper. AF: adaptation of
items by a full matrix; CF, CLR: calibration of users by a full or low-rank matrix."""
STYLE_KEYS = {
    "FedMF": "fedmf",
    "FedMF w/ AF": "fedmf-af",
    "FedMF w/ CF": "fedmf-cf",
    "FedMF w/ CLR": "pfedclr",
}
"""Key of each variant in ``published.toml`` and in chart styles."""
BUFFER_RATES = (0.1, 0.01, 0.001, 0.0001, 0)
"""Values in the sweep over the learning rate of PFedCLR's low-rank matrices."""


def ablation_cells(plan: Plan) -> list[RunSpec]:
    """Runs of every ablation variant on every data set under every protocol."""
    return [
        plan.cell(method, source, protocol, **settings)
        for source, protocol in plan.pairs()
        for method, settings in VARIANTS.values()
    ]


def ablation_tables(results: Results) -> list[Table]:
    """Ablation tables, one per protocol, over the seeds that all variants on a data set have."""
    kinds = list(VARIANTS.values())
    rows = [r for r in results.runs if (r.method, r.settings) in kinds and not r.noise]
    return table_per_protocol(_ablation_table, _on_common_seeds_by_data(rows))


def _on_common_seeds_by_data(rows: Sequence[RunRow]) -> list[RunRow]:
    """Runs sorted by data set, with the seeds that all runs of a data set and protocol have."""
    pairs = dict.fromkeys((row.data, row.protocol) for row in rows)
    groups = [select(rows, data=data, protocol=protocol) for data, protocol in pairs]
    alike = [row for group in groups for row in on_common_seeds(group)]
    return sorted(alike, key=lambda row: data_place(row.data))


def _ablation_table(rows: list[RunRow], protocol: str) -> Table:
    def row_of(variant: str, data: str) -> RunRow | None:
        method, settings = VARIANTS[variant]
        return find(rows, method=method, settings=settings, data=data)

    def figures(variant: str, data: str) -> Cell:
        """Table cell of HR@10 / NDCG@10; under ``paper`` with the published values."""
        row = row_of(variant, data)
        printed = published.pair("ablation", STYLE_KEYS[variant], data)
        both = printed if printed and protocol == "paper" else (None, None)
        cells = [
            Cell.number(None if row is None else row.mean(metric), 3, published=p)
            for metric, p in zip(METRICS.values(), both, strict=True)
        ]
        return Cell(" / ".join(cell.line for cell in cells), cells[0].value)

    def order(data: str) -> list[str]:
        """A note on whether HR@10 orders variants as in the paper; empty if some were not run."""
        found = {variant: row for variant in VARIANTS if (row := row_of(variant, data))}
        if len(found) < len(VARIANTS):
            return []
        ordered = sorted(found, key=lambda variant: found[variant].mean("hr@10"))
        names = " < ".join(variant.removeprefix("FedMF w/ ") for variant in ordered)
        same = ordered == list(VARIANTS)
        verdict = "as in the paper" if same else "not the paper's FedMF < AF < CF < CLR"
        return [f"Order by HR@10 on {data}: {names}, {verdict}."]

    data = distinct(rows, "data")
    notes = [note for source in data for note in order(source)]
    return table_by_data("HR@10 / NDCG@10", VARIANTS, data, figures, notes=notes)


@dataclass(frozen=True)
class Sweep:
    """PFedCLR at several values of one setting, all others at their defaults."""

    name: str
    setting: str
    symbol: str
    values: Sequence[Any]
    x_label: str
    overhead: Callable[[RunRow], float] | None = None
    """Computes from a run the value of the bars on the right axis."""

    @property
    def default(self) -> Any:
        return getattr(METHODS["pfedclr"].Config(), self.setting)

    def cells(self, plan: Plan) -> list[RunSpec]:
        """One run per value. The default value is left unset, so its run is the main table's."""
        settings = [{self.setting: v} if v != self.default else {} for v in plan.grid(self.values)]
        return [
            plan.cell("pfedclr", source, protocol, **given)
            for source, protocol in plan.pairs()
            for given in settings
        ]

    def value(self, row: RunRow) -> Any:
        """The value that the swept setting has in a run."""
        return row.settings.get(self.setting, self.default)

    def rows(self, results: Results) -> list[RunRow]:
        """Runs sorted by swept value; data sets with runs at the default only are left out."""
        rows = [
            row
            for row in select(results.runs, method="pfedclr", noise=0.0)
            if set(row.settings) <= {self.setting}
        ]
        swept = {(row.data, row.protocol) for row in rows if self.value(row) != self.default}
        rows = sorted((r for r in rows if (r.data, r.protocol) in swept), key=self.value)
        return _on_common_seeds_by_data(rows)

    def tables(self, results: Results) -> list[Table]:
        """Tables of metrics, one per protocol, with a column per value of the swept setting."""
        return table_per_protocol(self._table, self.rows(results))

    def _table(self, rows: list[RunRow], protocol: str) -> Table:
        values = sorted({self.value(row) for row in rows})
        lines: list[Line] = []
        for source in distinct(rows, "data"):
            found = {self.value(row): row for row in select(rows, data=source)}
            for title, metric in METRICS.items():
                means = [found[v].mean(metric) if v in found else None for v in values]
                lines.append([source, title, *(Cell.number(mean, 3) for mean in means)])
        return Table.of(["data", "metric", *(f"{self.symbol} = {v:g}" for v in values)], lines)

    def charts(self, results: Results) -> dict[str, Chart]:
        """Charts of metrics over the swept values, one per protocol; values are equally spaced."""
        title = f"PFedCLR by {self.x_label}, protocol {{protocol}}"
        return chart_per_protocol(self.name, title, self.rows(results), self._panels)

    def _panels(self, rows: list[RunRow], source: str) -> list[Panel]:
        places = range(len(rows))
        series = tuple(
            Series(title, title, places, [row.mean(metric) for row in rows])
            for title, metric in METRICS.items()
        )
        bars = None
        if self.overhead is not None:
            extra = [self.overhead(row) for row in rows]
            bars = Series("extra space on a client, MB", "overhead", places, extra)
        names = tuple(f"{self.value(row):g}" for row in rows)
        return [Panel(source, self.x_label, "HR@10, NDCG@10", series, bars, names)]


def _rank_overhead(row: RunRow) -> float:
    """Megabytes of parameters on a client of a PFedCLR run beyond those of FedMF."""
    rank = int(row.settings.get("rank", METHODS["pfedclr"].Config().rank))
    ours = parameter_megabytes("pfedclr", row.users, row.items, rank)
    return ours[0] - parameter_megabytes("fedmf", row.users, row.items)[0]


_RANK = Sweep("rank", "rank", "r", (1, 2, 4, 6, 8, 10, 12), "rank r", _rank_overhead)
"""Sweep over the rank of PFedCLR's low-rank matrices."""
_BETA = Sweep("beta", "buffer_rate", "β", BUFFER_RATES, "learning rate β of A and B")
"""Sweep over the learning rate of PFedCLR's low-rank matrices A and B."""

ABLATION = Exhibit(
    "ablation",
    "Ablation",
    "AF: items adapted by a full matrix; CF: users calibrated through a full matrix; CLR: through "
    "low-rank ones, which is PFedCLR. In brackets what the paper prints.",
    "ablation",
    ablation_cells,
    ablation_tables,
)
RANK = Exhibit(
    "rank",
    "Rank",
    "PFedCLR by the rank r of its low-rank matrices.",
    "rank",
    _RANK.cells,
    _RANK.tables,
    _RANK.charts,
)
BETA = Exhibit(
    "beta",
    "Learning rate of the buffer",
    "PFedCLR by the learning rate β of its low-rank matrices. (At β = 0 the buffer stays zero.)",
    "beta",
    _BETA.cells,
    _BETA.tables,
    _BETA.charts,
)
