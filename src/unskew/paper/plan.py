"""The description of an exhibit (a table or figure of the paper): the runs and tasks it needs, and
functions that turn their result rows into tables and charts.

A cell is a run (``RunSpec``) or a ``Task``. Its result is one row, a line of a JSON-lines file. It
runs only if it has no row, or if the method's checksum has changed since the row was made.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from unskew.display import Cell, Chart, Column, Panel, Table
from unskew.files import read_json
from unskew.methods import METHODS
from unskew.paper.rows import (
    Record,
    Results,
    RowT,
    distinct,
    group_rows,
    read_rows,
    run_identity,
    select,
)
from unskew.privacy import LocalPrivacy
from unskew.runs import RunSpec
from unskew.types import UnskewError

DATASETS = ("filmtrust", "ml-100k", "ml-1m", "lastfm-2k")
"""The paper's data sets that can be downloaded; HetRec2011 is not among them."""
PROTOCOLS = ("paper", "leak-free", "sequential", "time")
"""Evaluation protocols, in the order in which documents list them."""
METRICS = {"HR@10": "hr@10", "NDCG@10": "ndcg@10"}
"""Keys of metrics in result rows, by their label in tables and charts."""
QUICK_ROUNDS = 4
"""Number of training rounds of a quick run (``unskew reproduce --quick``)."""
CHECKSUMS = Path(__file__).with_name("checksums.json")
"""File with a checksum of each method's results; ``python -m benchmarks.same_bits --write`` renews
it."""
Line = list[Cell | str | float | None]
"""Table cells of one row."""
Heads = list[Column | str]
"""Heads of a table's columns."""


class Places(NamedTuple):
    """Paths to read and write: result rows, per-user values, document, charts and data sets."""

    results: Path
    keep: Path
    doc: Path
    figures: Path
    data_dir: Path | None = None

    def rows(self, store: str, quick: bool) -> list[Record]:
        """Read the result rows in file ``store``: of quick runs if ``quick``, else all others."""
        return read_rows(self.results / f"{store}.jsonl", quick)

    def users(self, spec: RunSpec) -> Path:
        """Folder with the per-user values of a run: a run folder without its models."""
        return self.keep / f"{spec.method}-{spec.data}-{spec.protocol}"


class Task(NamedTuple):
    """A computation, other than a training run, whose result is one row: statistics of a data set,
    a comparison of two runs, or the points of a picture."""

    command: str
    methods: tuple[str, ...]
    """Methods whose checksums decide whether the row is stale."""
    make: Callable[[Places], Record]
    needs: tuple[RunSpec, ...] = ()
    """Runs whose per-user values the task reads."""


RunOrTask = RunSpec | Task
CellT = TypeVar("CellT", RunSpec, Task, RunSpec | Task)


def command_of(cell: RunOrTask) -> str:
    """The ``unskew`` command line that makes the result row of a cell (run or task)."""
    if isinstance(cell, Task):
        return cell.command
    names = ["--method", cell.method, "--data", cell.data, "--protocol", cell.protocol]
    seeds = ["--seeds", ",".join(map(str, cell.seeds))]
    chosen = [f"--set={key}={value}" for key, value in cell.settings.items()]
    noise = [] if cell.ldp is None else [f"--ldp-noise={cell.ldp.noise:g}"]
    return shlex.join(["unskew", "run", *names, *seeds, *chosen, *noise])


def cell_identity(cell: RunOrTask) -> Hashable:
    """Key of a cell (run or task) without seeds; equals ``row_identity`` of its result row."""
    if isinstance(cell, Task):
        return cell.command
    ldp = cell.ldp
    noise = ldp and (ldp.noise_kind, ldp.noise, ldp.clip, ldp.least_users)
    return run_identity(cell.method, cell.data, cell.protocol, cell.settings, noise)


def describe(cell: RunOrTask) -> str:
    """A short description of a cell (run or task) for progress messages."""
    if isinstance(cell, Task):
        return cell.command.removeprefix("unskew ")
    chosen = "".join(f", {key} {value}" for key, value in cell.settings.items())
    noise = "" if cell.ldp is None else f", noise {cell.ldp.noise:g}"
    return f"{cell.method} on {cell.data}, {cell.protocol}{chosen}{noise}"


def missing_cells(cells: Iterable[CellT], rows: Iterable[Record]) -> list[CellT]:
    """Cells (runs or tasks) without an up-to-date result row, each once. A run with rows for some
    seeds is returned with the missing seeds. A row without a checksum is up to date."""
    made = group_rows(rows)
    missing: dict[Hashable, CellT] = {}
    for cell in cells:
        identity = cell_identity(cell)
        present = (None, checksum_of(cell))
        fresh = [row for row in made.get(identity, ()) if row.get("method_checksum") in present]
        if isinstance(cell, RunSpec):
            done = {seed for row in fresh for seed in row["seeds"]}
            seeds = tuple(seed for seed in cell.seeds if seed not in done)
            if seeds:
                missing[identity] = replace(cell, seeds=seeds)
        elif not fresh:
            missing[identity] = cell
    return list(missing.values())


def checksum_of(cell: RunOrTask) -> str:
    """Checksum of the methods that the result of a cell (run or task) depends on."""
    return method_checksum(*(cell.methods if isinstance(cell, Task) else (cell.method,)))


def method_checksum(*methods: str) -> str:
    """Checksums of these methods, joined by ``+``. ``make same-bits`` computes them from results of
    short runs, so a method's checksum changes if and only if its results do."""
    for method in methods:
        if method not in METHODS:
            raise UnskewError(f'There is no method "{method}"; choose one of {", ".join(METHODS)}.')
    return "+".join(_checksums().get(method, "unknown") for method in methods)


@cache
def _checksums() -> dict[str, str]:
    checksums: dict[str, str] = read_json(CHECKSUMS, "unskew-checksums", 1)["methods"]
    return checksums


@dataclass(frozen=True)
class Plan:
    """What to reproduce: data sets, protocols, seeds and methods, and whether in quick runs."""

    data: tuple[str, ...] | None = None
    """Data sets to run; None: each table's own."""
    protocols: tuple[str, ...] = ("paper", "leak-free")
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] | None = None
    """Methods to run; None: each table's own."""
    quick: bool = False

    def pairs(self, *defaults: str) -> list[tuple[str, str]]:
        """(data set, protocol) pairs; data sets are the plan's, or ``defaults``, or all."""
        sources = self.data or defaults or DATASETS
        return [(source, protocol) for source in sources for protocol in self.protocols]

    def chosen(self, methods: Iterable[str]) -> list[str]:
        """The methods among ``methods`` that the plan includes."""
        return [method for method in methods if method in (self.methods or METHODS)]

    def cell(
        self, method: str, data: str, protocol: str, noise: float = 0.0, **settings: Any
    ) -> RunSpec:
        """Specify a run with the plan's seeds and Laplace noise of scale ``noise`` on uploads."""
        ldp = LocalPrivacy(noise=noise) if noise else None
        return RunSpec(method, settings, data, protocol, self.seeds, ldp=ldp)

    def default_cells(self, methods: Sequence[str] = (), *data: str) -> list[RunSpec]:
        """Specify runs with default settings, one for every data set, protocol and method."""
        return [
            self.cell(method, source, protocol)
            for source, protocol in self.pairs(*data)
            for method in self.methods or methods or METHODS
        ]

    def grid(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """All values of a parameter sweep; in a quick plan the first, the middle and the last."""
        if not self.quick:
            return tuple(values)
        return tuple(values[at] for at in sorted({0, len(values) // 2, len(values) - 1}))


@dataclass(frozen=True)
class Exhibit:
    """A table or figure, or both, that ``unskew reproduce`` makes."""

    name: str
    title: str
    about: str
    """One or two sentences under the title."""
    store: str
    """Name of the JSON-lines file for its own rows."""
    cells: Callable[[Plan], Sequence[RunOrTask]]
    tables: Callable[[Results], list[Table]] = lambda results: []
    """Makes its tables from rows; none without rows."""
    charts: Callable[[Results], dict[str, Chart]] = lambda results: {}
    """Makes its charts, by file name; none without rows."""
    curves: bool = False
    """True if it needs the metrics after every round."""


def table_per_protocol(make: Callable[[list[RowT], str], Table], rows: list[RowT]) -> list[Table]:
    """Call ``make`` for every protocol that has rows; the tables are titled by protocol."""
    return [
        make(found, protocol)._replace(title=f"Protocol `{protocol}`")
        for protocol in PROTOCOLS
        if (found := select(rows, protocol=protocol))
    ]


def table_by_data(
    head: str,
    names: Iterable[str],
    data: Sequence[str],
    cell: Callable[[str, str], Cell | None],
    better: Literal["high", "low"] = "high",
    **words: Any,
) -> Table:
    """A table with a row per name, a column per data set and cells ``cell(name, data set)``. Its
    first column is headed ``head``; ``words`` are its title, about and notes."""
    heads = [Column(source, better=better) for source in data]
    lines = [[name, *(cell(name, source) for source in data)] for name in names]
    return Table.of([head, *heads], lines, **words)


def chart_per_protocol(
    name: str, title: str, rows: list[RowT], panels: Callable[[list[RowT], str], list[Panel]]
) -> dict[str, Chart]:
    """Charts by file name, one per protocol, with the panels of every data set that has rows."""
    charts = {}
    for protocol in distinct(rows, "protocol"):
        found = select(rows, protocol=protocol)
        made = [
            p for data in distinct(found, "data") for p in panels(select(found, data=data), data)
        ]
        charts[f"{name}-{protocol}"] = Chart(title.format(protocol=protocol), tuple(made))
    return charts
