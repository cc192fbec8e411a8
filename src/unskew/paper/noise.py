"""Local differential privacy: what noise on uploads costs, with the paper's figures beside ours.

``ldp``: PFedCLR with noise of strength 0.5 on every data set. ``ldp-methods``: the same noise on
each method on ML-100K. ``ldp-noise``: PFedCLR at every strength. FedRefit is in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from unskew.paper import published
from unskew.paper.plan import DATASETS, Exhibit, Heads, Line, Plan, table_per_protocol
from unskew.paper.rows import Results, RunRow, data_place, on_common_seeds, select
from unskew.report import Cell, Column, Table
from unskew.runs import RunSpec

STRENGTH = 0.5
"""Strength of noise that the paper chose."""
COMPARED = ("fedmf", "fedncf", "pfedgraph", "gpfedrec", "pfedrec", "fedrap", "pfedclr")
"""Methods of the paper's comparison, in its order."""
METRICS = ("hr@10", "ndcg@10")
_HEADS: Heads = ["data", Column("method", "text"), Column("metric", "text")]


def table_methods(name: str) -> tuple[str, ...]:
    """Methods of a table, the paper's first."""
    return (*(COMPARED if name == "ldp-methods" else ("pfedclr",)), "fedrefit")


def table_strengths(name: str) -> tuple[float, ...]:
    """Strengths of noise in a table, 0 first."""
    return tuple(published.noise_strengths()) if name == "ldp-noise" else (0.0, STRENGTH)


def ldp_cells(name: str, data: Sequence[str], plan: Plan) -> list[RunSpec]:
    """Runs of a table; a quick one has fewer strengths."""
    strengths = table_strengths(name)
    if plan.quick and name == "ldp-noise":
        strengths = (0.0, 0.1, 1.0)
    return [
        plan.cell(method, source, protocol, noise)
        for source in plan.sources(*data)
        for protocol in plan.protocols
        for method in table_methods(name)
        if method in (plan.methods or table_methods(name))
        for noise in strengths
    ]


def ldp_tables(name: str, results: Results) -> list[Table]:
    """A table per protocol. The paper's figures, which are ``paper`` figures, are in brackets."""
    make = _by_strength if name == "ldp-noise" else _with_and_without
    return table_per_protocol(make, _ldp_rows(name, results))


def _ldp_rows(name: str, results: Results) -> list[RunRow]:
    """Rows of a table: those of methods, data sets and protocols that have been run with noise."""
    methods, strengths = table_methods(name), table_strengths(name)
    rows = [row for row in results.runs if row.method in methods and not row.settings]
    rows = [row for row in rows if name == "ldp-noise" or row.noise in strengths]
    noisy = {(row.method, row.data, row.protocol) for row in rows if row.noise}
    if name == "ldp-methods":  # a comparison needs several methods
        count = Counter((data, protocol) for _, data, protocol in noisy)
        noisy = {one for one in noisy if count[one[1:]] > 1}
    kept = [row for row in rows if (row.method, row.data, row.protocol) in noisy]
    return sorted(kept, key=lambda row: (data_place(row.data), methods.index(row.method)))


def _lines(
    rows: Sequence[RunRow], protocol: str, strengths: Sequence[float]
) -> list[tuple[str, str, str, list[float | None], list[float | None]]]:
    """Data set, method, metric, and per strength our figure and the paper's."""
    lines = []
    for data, method in dict.fromkeys((row.data, row.method) for row in rows):
        found = {row.noise: row for row in select(rows, data=data, method=method)}
        present = [strength for strength in strengths if strength in found]
        alike = dict(zip(present, on_common_seeds([found[s] for s in present]), strict=True))
        for at, metric in enumerate(METRICS):
            ours = [alike[s].mean(metric) if s in alike else None for s in strengths]
            pairs = [published.quality_under_noise(method, data, s) for s in strengths]
            printed = [pair[at] if pair and protocol == "paper" else None for pair in pairs]
            lines.append((data, method, metric.upper(), ours, printed))
    return lines


def _with_and_without(rows: list[RunRow], protocol: str) -> Table:
    lines: list[Line] = []
    for data, method, metric, ours, printed in _lines(rows, protocol, (0.0, STRENGTH)):
        figures = [Cell.number(o, published=p) for o, p in zip(ours, printed, strict=True)]
        lines.append(
            [data, method, metric, *figures, _change_cell(_change(ours), _change(printed))]
        )
    return Table.of([*_HEADS, "without", f"with λ = {STRENGTH:g}", "change"], lines)


def _by_strength(rows: list[RunRow], protocol: str) -> Table:
    strengths = table_strengths("ldp-noise")
    lines: list[Line] = []
    for data, method, metric, ours, printed in _lines(rows, protocol, strengths):
        figures = [Cell.number(o, published=p) for o, p in zip(ours, printed, strict=True)]
        lines.append([data, method, metric, *figures])
    return Table.of([*_HEADS, *(f"λ = {strength:g}" for strength in strengths)], lines)


def _change(values: Sequence[float | None]) -> float | None:
    """Relative change from the first to the second value."""
    without, with_noise = values
    return None if not without or with_noise is None else with_noise / without - 1


def _change_cell(ours: float | None, printed: float | None) -> Cell:
    note = "" if printed is None else f"({printed:+.2%})"
    return Cell("–" if ours is None else f"{ours:+.2%}", ours, note)


def _exhibit(name: str, title: str, about: str, *data: str) -> Exhibit:
    return Exhibit(
        name, title, about, "ldp", partial(ldp_cells, name, data), partial(ldp_tables, name)
    )


EXHIBITS = (
    _exhibit(
        "ldp",
        "Local differential privacy",
        "PFedCLR, and FedRefit beside it, with Laplace noise of the paper's strength on uploads.",
        *DATASETS,
    ),
    _exhibit(
        "ldp-methods",
        "The same noise on every method",
        "What noise of strength 0.5 costs each method.",
        "ml-100k",
    ),
    _exhibit(
        "ldp-noise",
        "Every strength of noise",
        "PFedCLR, and FedRefit beside it, under noise of growing strength.",
        *DATASETS,
    ),
)
