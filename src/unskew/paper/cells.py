"""Cells of tables: the runs and other jobs behind them, which of them are missing, running them.

A cell is a ``RunSpec`` or a ``Task``. Runs happen in processes of their own, so that a row's peak
memory is the run's own and a run that fails takes nothing with it. A cell is not run again while
its row is there, unless its method's arithmetic has changed since: a row has its checksum.
"""

from __future__ import annotations

import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from unskew.files import read_json
from unskew.methods import METHODS
from unskew.paper.rows import METRIC_TABLES, Record, row_identity, run_identity
from unskew.runs import RunSpec, read_rounds, run
from unskew.types import UnskewError

CHECKSUMS = Path(__file__).with_name("checksums.json")
"""Checksums of every method's arithmetic, renewed by ``python -m benchmarks.same_bits --write``."""
QUICK_ROUNDS = 4
"""Rounds of a quick run."""
MAX_UNCUT_ROUNDS = 10
"""Methods with at most this many rounds run in full in a quick run."""
_KEPT_METRICS = ("hr@10", "ndcg@10", "recall@20", "mrr@10", "coverage@10", "popularity@10")
_KEPT_FILES = ("users.parquet", "rounds.jsonl")


class Task(NamedTuple):
    """A row that does not describe a run: statistics of a data set, or the points of a picture."""

    command: str
    methods: tuple[str, ...]
    """Methods whose code decides whether the row is stale."""
    make: Callable[[Path | None], Record]
    """Make the row, given the data folder."""


RunOrTask = RunSpec | Task
CellT = TypeVar("CellT", RunSpec, Task, RunSpec | Task)


def command_of(cell: RunOrTask) -> str:
    """The command that makes a cell's row."""
    return cell.command if isinstance(cell, Task) else shlex.join(["unskew", *_arguments(cell)])


def _arguments(spec: RunSpec) -> list[str]:
    names = ["--method", spec.method, "--data", spec.data, "--protocol", spec.protocol]
    seeds = ["--seeds", ",".join(map(str, spec.seeds))]
    chosen = [f"--set={key}={value}" for key, value in spec.settings.items()]
    noise = [] if spec.ldp is None else [f"--ldp-noise={spec.ldp.noise:g}"]
    return ["run", *names, *seeds, *chosen, *noise]


def cell_identity(cell: RunOrTask) -> Hashable:
    """Equal to ``row_identity`` of the cell's row, whatever the seeds."""
    if isinstance(cell, Task):
        return cell.command
    ldp = cell.ldp
    noise = ldp and (ldp.noise_kind, ldp.noise, ldp.clip, ldp.least_users)
    return run_identity(cell.method, cell.data, cell.protocol, cell.settings, noise)


def describe(cell: RunOrTask) -> str:
    """A short name of a cell for progress messages."""
    if isinstance(cell, Task):
        return cell.command.removeprefix("unskew ")
    chosen = "".join(f", {key} {value}" for key, value in cell.settings.items())
    noise = "" if cell.ldp is None else f", noise {cell.ldp.noise:g}"
    return f"{cell.method} on {cell.data}, {cell.protocol}{chosen}{noise}"


def missing_cells(cells: Iterable[CellT], rows: Iterable[Record]) -> list[CellT]:
    """Cells without a row made by the present code, each once. A run with rows for some of its
    seeds is returned with its other seeds. A row that names no code counts as present."""
    made: dict[Hashable, list[Record]] = {}
    for row in rows:
        made.setdefault(row_identity(row), []).append(row)
    missing: dict[Hashable, CellT] = {}
    for cell in cells:
        identity = cell_identity(cell)
        present = (None, method_checksum(*methods_of(cell)))
        fresh = [row for row in made.get(identity, ()) if row.get("method_checksum") in present]
        if isinstance(cell, RunSpec):
            done = {seed for row in fresh for seed in row["seeds"]}
            seeds = tuple(seed for seed in cell.seeds if seed not in done)
            if seeds:
                missing[identity] = replace(cell, seeds=seeds)
        elif not fresh:
            missing[identity] = cell
    return list(missing.values())


def methods_of(cell: RunOrTask) -> tuple[str, ...]:
    """Methods whose code a cell's row depends on."""
    return cell.methods if isinstance(cell, Task) else (cell.method,)


def users_folder(keep: Path, spec: RunSpec) -> Path:
    """Folder of a run's per-user values."""
    chosen = "".join(f"-{key}={value}" for key, value in spec.settings.items())
    return keep / f"{spec.method}-{spec.data}-{spec.protocol}{chosen}"


def make_row(cell: RunOrTask, data_dir: Path | None, keep: Path | None, quick: bool) -> Record:
    """Run a cell and return its row; a run's row has its figures of every round under ``curves``.
    ``keep`` receives the files with a run's per-user and per-round values."""
    made_by = {"method_checksum": method_checksum(*methods_of(cell))}
    mark = {"quick": True} if quick else {}
    if isinstance(cell, Task):
        return cell.make(data_dir) | {"command": cell.command} | made_by | mark
    row = _run_quickly(cell, data_dir, keep) if quick else _run_apart(cell, data_dir, keep)
    for table in METRIC_TABLES:
        row[table] = {name: row[table][name] for name in _KEPT_METRICS if name in row[table]}
    del row["run_dir"]
    return row | made_by | mark


def _run_apart(spec: RunSpec, data_dir: Path | None, keep: Path | None) -> Record:
    """Run in a process of its own."""
    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        options = [*where, "--json", "--out", str(folder)]
        done = subprocess.run(
            [sys.executable, "-m", "unskew", *_arguments(spec), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise UnskewError(f"{command_of(spec)} failed: {reason[0]}")
        curves = _curves(list(read_rounds(folder).values()))
        _copy(folder, keep, spec)
    row: Record = json.loads(done.stdout)
    return row | {"command": command_of(spec), "curves": curves}


def _run_quickly(spec: RunSpec, data_dir: Path | None, keep: Path | None) -> Record:
    """Run a few rounds in this process, which tells nothing about the run's memory. The row has the
    settings without the short number of rounds; the command has them all."""
    short = spec
    if "rounds" not in spec.settings and spec.build().config.rounds > MAX_UNCUT_ROUNDS:
        short = replace(spec, settings={**spec.settings, "rounds": QUICK_ROUNDS})
    with tempfile.TemporaryDirectory() as scratch:
        folder = None if keep is None else Path(scratch) / "run"
        finished = run(short, short.load(data_dir), out=folder)
        if folder is not None:
            _copy(folder, keep, spec)
    known = {"command": command_of(short), "settings": dict(spec.settings), "peak_rss_mb": None}
    curves = _curves([outcome.rows for outcome in finished.outcomes])
    return finished.summary() | known | {"curves": curves}


def _copy(folder: Path, keep: Path | None, spec: RunSpec) -> None:
    """Copy the files that comparisons need; the header last, as it says that all are there."""
    if keep is None:
        return
    parts = [f"seed-{seed}/{part}" for seed in spec.seeds for part in _KEPT_FILES]
    for one in (*parts, "run.json"):
        (keep / one).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / one, keep / one)


def _curves(seeds: Sequence[Sequence[Record]]) -> dict[str, dict[str, list[float]]]:
    """Validation and test figures after every round, mean over seeds."""
    rounds = list(zip(*seeds, strict=False))
    return {
        part: {
            metric: [round(statistics.fmean(row[part][metric] for row in at), 4) for at in rounds]
            for metric in ("hr@10", "ndcg@10")
        }
        for part in ("validation", "test")
    }


def method_checksum(*methods: str) -> str:
    """Checksums of these methods' arithmetic, joined by ``+``.

    ``make same-bits`` computes them from short runs, so they change if and only if results do."""
    for method in methods:
        if method not in METHODS:
            raise UnskewError(f'There is no method "{method}"; choose one of {", ".join(METHODS)}.')
    return "+".join(_checksums().get(method, "unknown") for method in methods)


@cache
def _checksums() -> dict[str, str]:
    checksums: dict[str, str] = read_json(CHECKSUMS, "unskew-checksums", 1)["methods"]
    return checksums
