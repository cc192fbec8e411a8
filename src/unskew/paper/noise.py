"""Local differential privacy: loss of quality by noise on uploads, measured and published.

``ldp``: PFedCLR with noise of strength 0.5 on every data set. ``ldp-methods``: the same noise on
each method on ML-100K. ``ldp-noise``: PFedCLR at every strength. FedRefit is in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from unskew.display import Cell, Column, Table
from unskew.paper import published
from unskew.paper.plan import (
    DATASETS,
    METRICS,
    Exhibit,
    Heads,
    Line,
    Plan,
    table_per_protocol,
)
from unskew.paper.rows import Results, RunRow, data_place, on_common_seeds, select
from unskew.runs import RunSpec

STRENGTH = 0.5
"""Noise strength (scale λ of the Laplace noise) that the paper chose."""
COMPARED = ("fedmf", "fedncf", "pfedgraph", "gpfedrec", "pfedrec", "fedrap", "pfedclr")
"""Federated methods that the paper compares, in its order."""


def table_methods(name: str) -> tuple[str, ...]:
    """Methods in the noise table ``name`` (ldp, ldp-methods, ldp-noise), FedRefit last."""
    return (*(COMPARED if name == "ldp-methods" else ("pfedclr",)), "fedrefit")


def table_strengths(name: str) -> tuple[float, ...]:
    """Noise strengths in the noise table ``name`` (ldp, ldp-methods, ldp-noise), 0 first."""
    return tuple(published.noise_strengths()) if name == "ldp-noise" else (0.0, STRENGTH)


def ldp_cells(name: str, data: Sequence[str], plan: Plan) -> list[RunSpec]:
    """Runs that the noise table ``name`` needs; a quick plan has fewer noise strengths."""
    return [
        plan.cell(method, source, protocol, noise)
        for source, protocol in plan.pairs(*data)
        for method in plan.chosen(table_methods(name))
        for noise in plan.grid(table_strengths(name))
    ]


def ldp_tables(name: str, results: Results) -> list[Table]:
    """Noise tables, one per protocol; under ``paper`` with the published values in brackets."""
    return table_per_protocol(partial(_ldp_table, name), _ldp_rows(name, results))


def _ldp_rows(name: str, results: Results) -> list[RunRow]:
    """Runs of the noise table ``name``; methods without any noisy run on the data are left out."""
    methods, strengths = table_methods(name), table_strengths(name)
    rows = [row for row in results.runs if row.method in methods and not row.settings]
    rows = [row for row in rows if row.noise in strengths]
    noisy = {(row.method, row.data, row.protocol) for row in rows if row.noise}
    if name == "ldp-methods":  # a comparison needs several methods
        count = Counter((data, protocol) for _, data, protocol in noisy)
        noisy = {one for one in noisy if count[one[1:]] > 1}
    kept = [row for row in rows if (row.method, row.data, row.protocol) in noisy]
    return sorted(kept, key=lambda row: (data_place(row.data), methods.index(row.method)))


def _ldp_table(name: str, rows: list[RunRow], protocol: str) -> Table:
    """A table with a column per noise strength; with two strengths, also the relative change."""
    strengths = table_strengths(name)
    changes = len(strengths) == 2
    lines: list[Line] = []
    for data, method in dict.fromkeys((row.data, row.method) for row in rows):
        found = {row.noise: row for row in select(rows, data=data, method=method)}
        by_noise = dict(zip(found, on_common_seeds([*found.values()]), strict=True))
        for at, (title, metric) in enumerate(METRICS.items()):
            ours = [by_noise[s].mean(metric) if s in by_noise else None for s in strengths]
            pairs = [published.quality_under_noise(method, data, s) for s in strengths]
            printed = [pair[at] if pair and protocol == "paper" else None for pair in pairs]
            figures = [Cell.number(o, published=p) for o, p in zip(ours, printed, strict=True)]
            change = [_change_cell(_change(ours), _change(printed))] if changes else []
            lines.append([data, method, title, *figures, *change])
    heads: Heads = ["data", Column("method", "text"), Column("metric", "text")]
    if changes:
        heads += ["without", f"with λ = {STRENGTH:g}", "change"]
    else:
        heads += [f"λ = {strength:g}" for strength in strengths]
    return Table.of(heads, lines)


def _change(values: Sequence[float | None]) -> float | None:
    """Relative change from the value without noise to that with noise; None if one is missing."""
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
"""Tables of recommendation quality under noise on uploads."""
