"""``unskew reproduce``: find the cells without a result, run them, write tables and figures.

A cell is a run or task (:mod:`unskew.paper.plan`). Runs happen in separate processes, so that peak
memory is measured per run and a crash affects only one run.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Protocol

from unskew.display import draw_svg
from unskew.files import append_json_line, write_text
from unskew.paper.document import EXHIBITS, RUN_STORES, STORES, document, fill_readme
from unskew.paper.plan import (
    METRICS,
    QUICK_ROUNDS,
    Exhibit,
    Places,
    Plan,
    RunOrTask,
    Task,
    cell_identity,
    checksum_of,
    command_of,
    describe,
    missing_cells,
)
from unskew.paper.rows import Record, Results, read_results
from unskew.runs import RunSpec, SeedOutcome, run
from unskew.types import UnskewError

MAX_UNCUT_ROUNDS = 10
"""Methods with at most this many training rounds are not shortened in a quick run."""
_METRIC_TABLES = ("metrics", "last_round", "sampled99", "sampled99_last_round")
"""Keys of a run's result row that hold metrics."""
_KEPT_METRICS = ("hr@10", "ndcg@10", "recall@20", "mrr@10", "coverage@10", "popularity@10")
"""Metrics that are stored in a run's result row; all others are dropped."""
_CURVE_KEYS = ("method", "data", "protocol", "seeds", "settings", "command", "source", "quick")
"""Keys that are copied from a run's result row to the row of its learning curves."""


class Job(NamedTuple):
    """A cell (run or task) to execute, and which outputs to store."""

    cell: RunOrTask
    store: str
    """Name of the JSON-lines file for its row."""
    keep: bool = False
    """True to keep per-user values."""
    curves: bool = False
    """True to keep the metrics after every round."""


class Progress(Protocol):
    """Callbacks by which ``run_jobs`` reports its progress."""

    def begin(self, name: str) -> None:
        """Called when the cell (run or task) ``name`` starts."""

    def fail(self, message: str) -> None:
        """Called when a cell (run or task) has failed; the remaining jobs still run."""

    def end(self, name: str, done: int, seconds: float, seconds_left: float) -> None:
        """Called when a cell (run or task) has ended, as number ``done``; times in seconds."""


def find_jobs(exhibits: Sequence[Exhibit], plan: Plan, places: Places) -> list[Job]:
    """Jobs for all cells (runs and tasks) without a result, each once for all exhibits."""
    rows = [row for store in RUN_STORES for row in places.rows(store, plan.quick)]
    curves = places.rows("curves", plan.quick)
    jobs: dict[Hashable, Job] = {}

    def add(cell: RunOrTask, exhibit: Exhibit) -> None:
        store, keep = exhibit.store, False
        key = (cell_identity(cell), cell.seeds if isinstance(cell, RunSpec) else ())
        if isinstance(cell, RunSpec):
            # Runs with default settings are rows of the main table, whichever exhibit needs them.
            # With all their seeds they serve a later comparison as well.
            store = exhibit.store if cell.settings or cell.ldp else "main"
            keep = store == "main" and cell.seeds == plan.seeds
        old = jobs.get(key, Job(cell, store))
        jobs[key] = old._replace(keep=keep, curves=old.curves or exhibit.curves or store == "main")

    for exhibit in exhibits:
        cells = exhibit.cells(plan)
        missing = missing_cells(cells, rows)
        if exhibit.curves:
            missing += missing_cells([c for c in cells if isinstance(c, RunSpec)], curves)
        for cell in missing:
            for run_spec in cell.needs if isinstance(cell, Task) else ():
                if not (places.users(run_spec) / "run.json").exists():
                    add(run_spec, exhibit)
            add(cell, exhibit)
    return list(jobs.values())


def run_jobs(jobs: Sequence[Job], plan: Plan, places: Places, progress: Progress) -> list[str]:
    """Run jobs one by one and append their results to files; returns a message per failure."""
    failures: list[str] = []
    began = time.monotonic()
    for done, job in enumerate(jobs, 1):
        started, name = time.monotonic(), describe(job.cell)
        progress.begin(name)
        try:
            _run_job(job, plan.quick, places)
        except Exception as error:
            kind = "" if isinstance(error, UnskewError) else f"{type(error).__name__}: "
            failures.append(f"{command_of(job.cell)} failed: {kind}{error}")
            progress.fail(failures[-1])
        now = time.monotonic()
        progress.end(name, done, now - started, (now - began) / done * (len(jobs) - done))
    return failures


def _run_job(job: Job, quick: bool, places: Places) -> None:
    """Run a job and append its result row, and its learning curves, to JSON-lines files."""
    cell = job.cell
    if isinstance(cell, Task):
        row = cell.make(places) | {"command": cell.command}
    else:
        keep = places.users(cell) if job.keep else None
        if quick:  # faster in this process, which tells nothing about the run's memory
            row = _train(cell, places.data_dir, keep, quick) | {"peak_rss_mb": None}
        else:
            with ProcessPoolExecutor(1, get_context("spawn")) as apart:
                row = apart.submit(_train, cell, places.data_dir, keep, quick).result()
    row |= {"method_checksum": checksum_of(cell)} | ({"quick": True} if quick else {})
    curves = row.pop("curves", None)
    if job.curves and curves is not None:
        about = {key: row[key] for key in _CURVE_KEYS if key in row}
        append_json_line(places.results / "curves.jsonl", about | {"curves": curves})
    append_json_line(places.results / f"{job.store}.jsonl", row)


def _train(spec: RunSpec, data_dir: Path | None, keep: Path | None, quick: bool) -> Record:
    """Train a run and return its result row, with the metrics of every round under ``curves``. The
    run is saved in the folder ``keep``, if given, without models. A quick run has ``QUICK_ROUNDS``
    rounds; that number is in the row's command but not in its settings."""
    short = spec
    if quick and "rounds" not in spec.settings and spec.build().config.rounds > MAX_UNCUT_ROUNDS:
        short = replace(spec, settings={**spec.settings, "rounds": QUICK_ROUNDS})
    if keep is not None:
        keep.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=None if keep is None else keep.parent) as scratch:
        folder = Path(scratch) / "run"
        finished = run(short, short.load(data_dir), out=folder)
        if keep is not None:
            for models in folder.glob("seed-*/state"):
                shutil.rmtree(models)
            shutil.rmtree(keep, ignore_errors=True)
            folder.rename(keep)
    row = finished.summary() | {"command": command_of(short), "settings": dict(spec.settings)}
    del row["run_dir"]
    for table in _METRIC_TABLES:
        row[table] = {name: row[table][name] for name in _KEPT_METRICS if name in row[table]}
    return row | {"curves": _curves(finished.outcomes)}


def _curves(outcomes: Sequence[SeedOutcome]) -> dict[str, dict[str, list[float]]]:
    """Validation and test metrics after every round, averaged over seeds."""
    rounds = list(zip(*(outcome.rows for outcome in outcomes), strict=False))
    return {
        part: {
            metric: [round(statistics.fmean(row[part][metric] for row in at), 4) for at in rounds]
            for metric in METRICS.values()
        }
        for part in ("validation", "test")
    }


def write_pages(
    exhibits: Sequence[Exhibit], plan: Plan, places: Places, readme: Path | None = None
) -> None:
    """Draw the charts of these exhibits; write the results of all exhibits and their commands."""
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
    """Paths of existing chart files by exhibit name, relative to the folder ``seen_from``."""
    where = Path(os.path.relpath(folder, seen_from)).as_posix()
    return {
        exhibit.name: [
            f"{where}/{name}.svg"
            for name in exhibit.charts(results)
            if (folder / f"{name}.svg").exists()
        ]
        for exhibit in EXHIBITS.values()
    }
