"""Variants of PFedCLR: the ablation from FedMF to PFedCLR, and sweeps over the rank and the
learning rate of the low-rank matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unskew.methods import METHODS
from unskew.paper import published
from unskew.paper.cost import parameter_megabytes
from unskew.paper.plan import Exhibit, Line, Plan, table_per_protocol
from unskew.paper.rows import (
    Results,
    RunRow,
    data_place,
    distinct,
    most_seeds,
    on_common_seeds,
    select,
)
from unskew.report import Cell, Chart, Panel, Series, Table
from unskew.runs import RunSpec

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedMF": ("fedmf", {}),
    "FedMF w/ AF": ("fedmf-af", {}),
    "FedMF w/ CF": ("pfedclr", {"buffer": "full"}),
    "FedMF w/ CLR": ("pfedclr", {}),
}
"""Method and settings of every variant, weakest first by the paper."""
STYLE_KEYS = {
    "FedMF": "fedmf",
    "FedMF w/ AF": "fedmf-af",
    "FedMF w/ CF": "fedmf-cf",
    "FedMF w/ CLR": "pfedclr",
}
"""Key of a variant in published figures and in charts."""
METRICS = {"HR@10": "hr@10", "NDCG@10": "ndcg@10"}
RANKS = (1, 2, 4, 6, 8, 10, 12)
BUFFER_RATES = (0.1, 0.01, 0.001, 0.0001, 0)


def ablation_cells(plan: Plan) -> list[RunSpec]:
    """Every variant on every data set under every protocol."""
    return [
        plan.cell(method, source, protocol, **settings)
        for source in plan.sources()
        for protocol in plan.protocols
        for method, settings in VARIANTS.values()
    ]


def ablation_tables(results: Results) -> list[Table]:
    """Variants down, data sets across; each data set on the seeds that all variants have."""
    kinds = list(VARIANTS.values())
    rows = [r for r in results.runs if (r.method, r.settings) in kinds and not r.noise]
    return table_per_protocol(_ablation_table, _on_common_seeds_by_data(rows))


def _on_common_seeds_by_data(rows: Sequence[RunRow]) -> list[RunRow]:
    """Rows by data set, those of a data set and protocol on the seeds they all have."""
    pairs = dict.fromkeys((row.data, row.protocol) for row in rows)
    groups = [select(rows, data=data, protocol=protocol) for data, protocol in pairs]
    alike = [row for group in groups for row in on_common_seeds(group)]
    return sorted(alike, key=lambda row: data_place(row.data))


def _ablation_table(rows: list[RunRow], protocol: str) -> Table:
    data = distinct(rows, "data")
    lines: list[Line] = []
    hit_ratios: dict[tuple[str, str], float | None] = {}
    for variant, (method, settings) in VARIANTS.items():
        cells = []
        for source in data:
            row = most_seeds(select(rows, method=method, settings=settings, data=source))
            printed = published.ablation(STYLE_KEYS[variant], source)
            hit_ratios[variant, source] = None if row is None else row.mean("hr@10")
            cells.append(_pair_cell(row, printed if protocol == "paper" else None))
        lines.append([variant, *cells])
    notes = [note for source in data if (note := _order(source, hit_ratios))]
    return Table.of(["HR@10 / NDCG@10", *data], lines, notes=notes)


def _pair_cell(row: RunRow | None, printed: published.Pair | None) -> Cell:
    """HR@10 / NDCG@10, each followed by what the paper prints."""
    texts = []
    for at, metric in enumerate(METRICS.values()):
        ours = None if row is None else row.mean(metric)
        cell = Cell.number(ours, 3, published=printed and printed[at])
        texts.append(f"{cell.text} {cell.note}".strip())
    return Cell(" / ".join(texts), None if row is None else row.mean("hr@10"))


def _order(source: str, hit_ratios: dict[tuple[str, str], float | None]) -> str:
    """Whether the paper's order of variants holds on a data set; "" if one has not been run."""
    values = {variant: hit_ratios[variant, source] for variant in VARIANTS}
    ordered = sorted((value, name) for name, value in values.items() if value is not None)
    if len(ordered) < len(VARIANTS):
        return ""
    names = " < ".join(name.removeprefix("FedMF w/ ") for _, name in ordered)
    same = [name for _, name in ordered] == list(VARIANTS)
    verdict = "as in the paper" if same else "not the paper's FedMF < AF < CF < CLR"
    return f"Order by HR@10 on {source}: {names}, {verdict}."


class Sweep:
    """PFedCLR at several values of one setting, all others at their defaults."""

    def __init__(self, name: str, setting: str, symbol: str, values: Sequence[Any]) -> None:
        self.name, self.setting, self.symbol, self.values = name, setting, symbol, values
        self.default = getattr(METHODS["pfedclr"].Config(), setting)

    def cells(self, plan: Plan) -> list[RunSpec]:
        """A run per value; the default value needs no setting, it is the main table's run."""
        return [
            plan.cell(
                "pfedclr",
                source,
                protocol,
                **({} if value == self.default else {self.setting: value}),
            )
            for source in plan.sources()
            for protocol in plan.protocols
            for value in plan.grid(self.values)
        ]

    def value(self, row: RunRow) -> Any:
        """The setting's value in a run."""
        return row.settings.get(self.setting, self.default)

    def rows(self, results: Results) -> list[RunRow]:
        """Rows of data sets and protocols where another value than the default has been run."""
        rows = [
            row
            for row in select(results.runs, method="pfedclr", noise=0.0)
            if set(row.settings) <= {self.setting}
        ]
        swept = {(row.data, row.protocol) for row in rows if self.value(row) != self.default}
        return _on_common_seeds_by_data([r for r in rows if (r.data, r.protocol) in swept])

    def by_value(self, rows: Sequence[RunRow]) -> dict[Any, RunRow]:
        """Rows of one data set and protocol by value of the setting, ascending."""
        found = {self.value(row): row for row in rows}
        return {value: found[value] for value in sorted(found)}

    def tables(self, results: Results) -> list[Table]:
        """Data sets and metrics down, values across."""
        return table_per_protocol(self._table, self.rows(results))

    def _table(self, rows: list[RunRow], protocol: str) -> Table:
        values = sorted({self.value(row) for row in rows})
        lines: list[Line] = []
        for source in distinct(rows, "data"):
            found = self.by_value(select(rows, data=source))
            for title, metric in METRICS.items():
                means = [found[v].mean(metric) if v in found else None for v in values]
                lines.append([source, title, *(Cell.number(mean, 3) for mean in means)])
        return Table.of(["data", "metric", *(f"{self.symbol} = {v:g}" for v in values)], lines)

    def charts(
        self,
        results: Results,
        title: str,
        x_label: str,
        overhead: Callable[[Any, RunRow], float] | None = None,
    ) -> dict[str, Chart]:
        """A chart per protocol, a panel per data set, values at equal distances. ``overhead`` gives
        bars on an axis at the right."""
        charts, rows = {}, self.rows(results)
        for protocol in distinct(rows, "protocol"):
            panels = []
            for source in distinct(select(rows, protocol=protocol), "data"):
                found = self.by_value(select(rows, protocol=protocol, data=source))
                places = range(len(found))
                series = tuple(
                    Series(text, text, places, [row.mean(metric) for row in found.values()])
                    for text, metric in METRICS.items()
                )
                bars = None
                if overhead is not None:
                    extra = [overhead(value, row) for value, row in found.items()]
                    bars = Series("extra space on a client, MB", "overhead", places, extra)
                names = tuple(f"{value:g}" for value in found)
                panels.append(Panel(source, x_label, "HR@10, NDCG@10", series, bars, names))
            chart = Chart(f"{title}, protocol {protocol}", tuple(panels))
            charts[f"{self.name}-{protocol}"] = chart
        return charts


def _rank_overhead(rank: Any, row: RunRow) -> float:
    """Megabytes on a client beyond FedMF's."""
    users, items = row.users, row.items
    ours = parameter_megabytes("pfedclr", users, items, int(rank))
    return ours[0] - parameter_megabytes("fedmf", users, items)[0]


_RANK = Sweep("rank", "rank", "r", RANKS)
_BETA = Sweep("beta", "buffer_rate", "β", BUFFER_RATES)

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
    lambda results: _RANK.charts(results, "PFedCLR by rank", "rank r", _rank_overhead),
)
BETA = Exhibit(
    "beta",
    "Learning rate of the buffer",
    "PFedCLR by the learning rate β of its low-rank matrices. (At β = 0 the buffer stays zero.)",
    "beta",
    _BETA.cells,
    _BETA.tables,
    lambda results: _BETA.charts(results, "PFedCLR by learning rate of A and B", "β"),
)
