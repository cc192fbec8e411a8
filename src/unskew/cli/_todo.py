"""Which cells of `unskew reproduce` have to be run, given the rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unskew.experiments import Cell, missing, read_rows, run_of, users_folder
from unskew.experiments.tables import STORES, Plan, Table, Task

_RUNS = tuple(name for name in STORES if name not in ("curves", "against"))
"""The files with rows of cells."""


class Places(NamedTuple):
    """Where things are kept."""

    results: Path
    keep: Path
    doc: Path
    figures: Path
    data_dir: Path | None

    def rows(self, store: str, quick: bool) -> list[dict[str, Any]]:
        """A quick run sees quick rows only, any other only the others."""
        rows = read_rows(self.results / f"{store}.jsonl")
        return [row for row in rows if bool(row.get("quick")) == quick]


class Job(NamedTuple):
    """A cell to run, the file for its row, and whether its per-user values or curves are kept."""

    cell: Cell | Task
    store: str
    keep: bool
    curves: bool


def todo(tables: Sequence[Table], plan: Plan, places: Places) -> list[Job]:
    """What has to be run, each cell once whichever tables need it."""
    rows = [row for store in _RUNS for row in places.rows(store, plan.quick)]
    curves = places.rows("curves", plan.quick)
    jobs: dict[str, Job] = {}
    for table in tables:
        cells = list(table.cells(plan))
        kept = table.name == "against"
        runs = [cell for cell in cells if isinstance(cell, Cell)]
        unmade = missing(cells, rows)
        if kept:  # per-user values are needed of all seeds together
            unmade = _uncompared(runs, unmade, plan, places)
        if table.curves and table.name != "main":
            unmade += missing(runs, curves)
        for cell in unmade:
            known = jobs.get(cell.command, Job(cell, "", False, False))
            store = known.store or _store(cell, table, plan)
            # What runs with all its seeds for a table serves a later comparison as well.
            whole = store == "main" and isinstance(cell, Cell) and cell.seeds == plan.seeds
            keep, curved = known.keep or kept or whole, known.curves or table.curves
            jobs[cell.command] = Job(cell, store, keep, curved)
    return list(jobs.values())


def _uncompared(
    cells: Sequence[Cell], stale: Sequence[Cell | Task], plan: Plan, places: Places
) -> list[Cell | Task]:
    """Cells whose per-user values are not there, and that a comparison waits for: one that has no
    row, or of a cell that has none of its method's present code."""
    known = {pair_of(row) for row in places.rows("against", plan.quick)}
    old = {run_of(cell.command) for cell in stale}
    first = {(cell.data, cell.protocol): cell for cell in cells if cell.method == cells[0].method}
    wanted: dict[str, Cell] = {}
    for theirs in (cell for cell in cells if cell.method != cells[0].method):
        ours = first[theirs.data, theirs.protocol]
        pair = (ours, theirs)
        compared = (ours.data, ours.protocol, ours.method, theirs.method) in known
        if not compared or any(run_of(cell.command) in old for cell in pair):
            wanted |= {cell.command: cell for cell in pair}
    return [
        cell
        for cell in wanted.values()
        if not (users_folder(places.keep, cell) / "run.json").exists()
    ]


def _store(cell: Cell | Task, table: Table, plan: Plan) -> str:
    """Runs of a method as it comes are rows of the main table, whoever asked for them."""
    if isinstance(cell, Cell) and not [key for key, _ in own_settings(cell, plan)]:
        return "main"
    return table.store


def own_settings(cell: Cell, plan: Plan) -> list[tuple[str, str]]:
    """A cell's settings without what made it short."""
    short = plan.shortened(cell._replace(settings=())).settings
    return [pair for pair in cell.settings if not (short and pair[0] == "rounds")]


def pair_of(row: dict[str, Any]) -> tuple[str, ...]:
    return row["data"], row["protocol"], row["method"], row["against"]
