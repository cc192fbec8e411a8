"""A table or figure of the paper as a value: the cells it needs, and functions from rows to tables
and charts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.methods import METHODS
from unskew.paper.cells import RunOrTask
from unskew.paper.rows import Results, RunRow, select
from unskew.privacy import LocalPrivacy
from unskew.report import Cell, Chart, Column, Table
from unskew.runs import RunSpec

DATASETS = ("filmtrust", "ml-100k", "ml-1m", "lastfm-2k")
"""The paper's data sets that can be downloaded; HetRec2011 is not among them."""
Line = list[Cell | str | float | None]
"""Cells of a table's row."""
Heads = list[Column | str]
"""Heads of a table's columns."""
PROTOCOLS = ("paper", "leak-free", "time")
"""Order of protocols in documents."""


@dataclass(frozen=True)
class Plan:
    """The requested data sets, protocols, seeds and methods, and whether the run is quick."""

    data: tuple[str, ...] | None = None
    """None for the data sets of each table."""
    protocols: tuple[str, ...] = ("paper", "leak-free")
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] | None = None
    """None for the methods of each table."""
    quick: bool = False

    def sources(self, *defaults: str) -> tuple[str, ...]:
        """Data sets asked for, or these, or all."""
        return self.data or defaults or DATASETS

    def cell(
        self, method: str, data: str, protocol: str, noise: float = 0.0, **settings: Any
    ) -> RunSpec:
        """A run with the plan's seeds and Laplace noise of this strength on uploads."""
        ldp = LocalPrivacy(noise=noise) if noise else None
        return RunSpec(method, settings, data, protocol, self.seeds, ldp=ldp)

    def default_cells(self, methods: Sequence[str] = (), *data: str) -> list[RunSpec]:
        """A run with default settings for every data set, protocol and method."""
        return [
            self.cell(method, source, protocol)
            for source in self.sources(*data)
            for protocol in self.protocols
            for method in self.methods or methods or METHODS
        ]

    def grid(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """All values of a sweep; for a quick run the first, the middle one and the last."""
        if not self.quick:
            return tuple(values)
        return tuple(values[at] for at in sorted({0, len(values) // 2, len(values) - 1}))


@dataclass(frozen=True)
class Exhibit:
    """A table or figure that ``unskew reproduce`` makes."""

    name: str
    title: str
    about: str
    """One or two sentences under the title."""
    store: str
    """Name of the file for its own rows."""
    cells: Callable[[Plan], Sequence[RunOrTask]]
    tables: Callable[[Results], list[Table]] = lambda results: []
    """Tables made of rows; none where there are no rows."""
    charts: Callable[[Results], dict[str, Chart]] = lambda results: {}
    """Charts by file name; none where there are no rows."""
    curves: bool = False
    """Whether it needs the figures of every round."""


def table_per_protocol(
    make: Callable[[list[RunRow], str], Table], rows: Sequence[RunRow]
) -> list[Table]:
    """A table for every protocol that has rows, titled with the protocol."""
    tables = []
    for protocol in PROTOCOLS:
        if found := select(rows, protocol=protocol):
            made = make(found, protocol)
            tables.append(made._replace(title=f"Protocol `{protocol}`"))
    return tables
