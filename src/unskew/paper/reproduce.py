"""The whole job of ``unskew reproduce``: find missing cells, run them, write tables and figures."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from unskew.files import append_json_line, write_text
from unskew.paper.cells import (
    RunOrTask,
    cell_identity,
    command_of,
    describe,
    make_row,
    missing_cells,
    users_folder,
)
from unskew.paper.document import document, fill_readme
from unskew.paper.exhibits import EXHIBITS, RUN_STORES, STORES
from unskew.paper.methods import compare_users
from unskew.paper.plan import Exhibit, Plan
from unskew.paper.rows import Record, Results, read_results, read_rows
from unskew.report import draw_svg
from unskew.runs import RunSpec
from unskew.types import UnskewError

_CURVE_KEYS = ("method", "data", "protocol", "seeds", "settings", "command", "source")
"""Keys that a row of curves takes from its run's row."""


class Places(NamedTuple):
    """Where rows, per-user values, the document, charts and data sets are."""

    results: Path
    keep: Path
    doc: Path
    figures: Path
    data_dir: Path | None = None

    def rows(self, store: str, quick: bool) -> list[Record]:
        """Rows of a file: a quick run sees quick rows only, any other run only the others."""
        rows = read_rows(self.results / f"{store}.jsonl")
        return [row for row in rows if bool(row.get("quick")) == quick]


class Job(NamedTuple):
    """A cell to run, and what to keep of it."""

    cell: RunOrTask
    store: str
    """File for its row."""
    keep: bool
    """Whether to keep per-user values."""
    curves: bool
    """Whether to keep the figures of every round."""


class Progress(Protocol):
    """Who wants to know how far the job is."""

    def begin(self, name: str) -> None:
        """A cell starts."""

    def fail(self, message: str) -> None:
        """The cell failed; the job goes on."""

    def end(self, name: str, done: int, seconds: float, seconds_left: float) -> None:
        """The cell is finished, the ``done``-th of all."""


def find_jobs(exhibits: Sequence[Exhibit], plan: Plan, places: Places) -> list[Job]:
    """Cells that have to be run, each once whichever exhibits need it."""
    rows = [row for store in RUN_STORES for row in places.rows(store, plan.quick)]
    curves = places.rows("curves", plan.quick)
    jobs: dict[Hashable, Job] = {}
    for exhibit in exhibits:
        cells = list(exhibit.cells(plan))
        runs = [cell for cell in cells if isinstance(cell, RunSpec)]
        missing = missing_cells(cells, rows)
        compared = exhibit.name == "against"
        if compared:  # a comparison needs per-user values of all seeds together
            missing = [*_without_users(runs, missing, plan, places)]
        if exhibit.curves and exhibit.name != "main":
            missing += missing_cells(runs, curves)
        for cell in missing:
            old = jobs.get(_key(cell), Job(cell, "", False, False))
            store = old.store or _store(cell, exhibit)
            # A run of the main table with all its seeds serves a later comparison as well.
            whole = store == "main" and isinstance(cell, RunSpec) and cell.seeds == plan.seeds
            keep = old.keep or compared or whole
            jobs[_key(cell)] = Job(cell, store, keep, old.curves or exhibit.curves)
    return list(jobs.values())


def _key(cell: RunOrTask) -> Hashable:
    return cell_identity(cell), cell.seeds if isinstance(cell, RunSpec) else ()


def _store(cell: RunOrTask, exhibit: Exhibit) -> str:
    """Runs with default settings are rows of the main table, whichever exhibit needs them."""
    plain = isinstance(cell, RunSpec) and not cell.settings and cell.ldp is None
    return "main" if plain else exhibit.store


def _without_users(
    cells: Sequence[RunSpec], stale: Sequence[RunOrTask], plan: Plan, places: Places
) -> list[RunSpec]:
    """Cells without per-user values that a comparison needs: one without a row, or one with a cell
    that has no row of its method's present code."""
    compared = _compared_pairs(plan, places)
    stale_runs = {cell_identity(cell) for cell in stale}
    first = {(cell.data, cell.protocol): cell for cell in cells if cell.method == cells[0].method}
    wanted: dict[Hashable, RunSpec] = {}
    for theirs in (cell for cell in cells if cell.method != cells[0].method):
        ours = first[theirs.data, theirs.protocol]
        pair = {cell_identity(cell): cell for cell in (ours, theirs)}
        if _pair(ours, theirs) not in compared or stale_runs & set(pair):
            wanted |= pair
    return [cell for cell in wanted.values() if not _has_users(places, cell)]


def _has_users(places: Places, cell: RunSpec) -> bool:
    return (users_folder(places.keep, cell) / "run.json").exists()


def _pair(ours: RunSpec, theirs: RunSpec) -> tuple[str, ...]:
    return ours.data, ours.protocol, ours.method, theirs.method


def _compared_pairs(plan: Plan, places: Places) -> set[tuple[str, ...]]:
    keys = ("data", "protocol", "method", "against")
    return {tuple(row[key] for key in keys) for row in places.rows("against", plan.quick)}


def run_jobs(jobs: Sequence[Job], plan: Plan, places: Places, progress: Progress) -> list[str]:
    """Run jobs one by one and append their rows; messages of those that failed."""
    failures: list[str] = []
    began = time.monotonic()
    for done, job in enumerate(jobs, 1):
        started, name = time.monotonic(), describe(job.cell)
        progress.begin(name)
        try:
            _run_job(job, plan, places)
        except Exception as error:
            message = f"{command_of(job.cell)} failed: {type(error).__name__}: {error}"
            failures.append(str(error) if isinstance(error, UnskewError) else message)
            progress.fail(failures[-1])
        now = time.monotonic()
        progress.end(name, done, now - started, (now - began) / done * (len(jobs) - done))
    return failures


def _run_job(job: Job, plan: Plan, places: Places) -> None:
    """Append a job's row to its file, and its curves to theirs."""
    keep = None
    if job.keep and isinstance(job.cell, RunSpec):
        keep = users_folder(places.keep, job.cell)
    row = make_row(job.cell, places.data_dir, keep, plan.quick)
    curves = row.pop("curves", None)
    if job.curves and curves is not None:
        about = {key: row[key] for key in (*_CURVE_KEYS, "quick") if key in row}
        append_json_line(places.results / "curves.jsonl", about | {"curves": curves})
    append_json_line(places.results / f"{job.store}.jsonl", row)


def compare_methods(plan: Plan, places: Places, jobs: Sequence[Job]) -> None:
    """Append a row for the first method against each other one, where both have per-user values.
    Pairs compared before are compared again if one of the two has just been run."""
    cells = [c for c in EXHIBITS["against"].cells(plan) if isinstance(c, RunSpec)]
    fresh = {_key(job.cell) for job in jobs}
    compared = _compared_pairs(plan, places)
    usable = [cell for cell in cells if _has_users(places, cell)]
    for ours in (cell for cell in usable if cell.method == cells[0].method):
        for theirs in (cell for cell in usable if cell.method != cells[0].method):
            same = (theirs.data, theirs.protocol) == (ours.data, ours.protocol)
            new = _pair(ours, theirs) not in compared or fresh & {_key(ours), _key(theirs)}
            if same and new:
                mark = {"quick": True} if plan.quick else {}
                row = compare_users(places.keep, ours, theirs) | mark
                append_json_line(places.results / "against.jsonl", row)


def write_pages(
    exhibits: Sequence[Exhibit], plan: Plan, places: Places, readme: Path | None = None
) -> None:
    """Draw the charts of these exhibits; write the document of all, and the list of commands."""
    results = read_results(places.results, STORES, plan.quick)
    mark = "QUICK RUN: " if plan.quick else ""
    for exhibit in exhibits:
        for name, chart in exhibit.charts(results).items():
            marked = chart._replace(title=f"{mark}{chart.title}")
            write_text(places.figures / f"{name}.svg", draw_svg(marked))
    figures = figure_paths(results, places.figures, places.doc.parent)
    write_text(places.doc, document(results, figures, plan.quick))
    write_text(places.results / "commands.txt", "\n".join([*results.commands(), ""]))
    if readme is not None:
        fill_readme(readme, results)


def figure_paths(results: Results, folder: Path, seen_from: Path) -> dict[str, list[str]]:
    """Paths of existing charts by exhibit, relative to a folder."""
    where = Path(os.path.relpath(folder, seen_from)).as_posix()
    return {
        exhibit.name: [
            f"{where}/{name}.svg"
            for name in exhibit.charts(results)
            if (folder / f"{name}.svg").exists()
        ]
        for exhibit in EXHIBITS.values()
    }
