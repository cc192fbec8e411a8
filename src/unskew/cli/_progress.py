"""Progress of long work with the time left: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from unskew.cli._output import stderr

_BLOCKS = "▁▂▃▄▅▆▇█"
LINES_PER_SEED = 10
"""Lines printed per seed where there is no terminal."""
MAX_QUIET_SECONDS = 20.0
"""A line is printed after this time at the latest."""
NARROW_COLUMNS = 90
"""A narrower terminal gets shorter progress lines."""


def sparkline(values: list[float], width: int = 20) -> str:
    """A curve as one line of block characters."""
    if len(values) > width:
        step = len(values) / width
        values = [values[int((i + 1) * step) - 1] for i in range(width)]
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(_BLOCKS[int((value - low) * scale)] for value in values)


class _Display:
    """A live display, for as long as the work lasts."""

    _progress: Progress

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class RoundProgress(_Display):
    """Rounds of one or several seeds: loss, the validation curve, time left."""

    def __init__(self, label: str, n_seeds: int) -> None:
        self._label, self._n_seeds = label, n_seeds
        self._live = stderr.is_terminal
        self._curve: list[float] = []
        self._seed: int | None = None
        self._done = 0
        self._began = self._printed_at = time.monotonic()
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeRemainingColumn(compact=True),
            console=stderr,
            expand=True,
            transient=True,
            disable=not self._live,
        )

    def __call__(self, seed: int, row: dict[str, Any], rounds: int) -> None:
        if seed != self._seed:
            self._curve, self._seed = [], seed
        self._curve.append(row["validation"]["ndcg@10"])
        self._done += 1
        if self._live:
            self._update(seed, row, rounds)
        else:
            self._print_line(seed, row, rounds)

    def _update(self, seed: int, row: dict[str, Any], rounds: int) -> None:
        width = max(6, min(20, stderr.width - 70))
        figures = (
            f"loss {row['loss']:.3f}  val NDCG {self._curve[-1]:.4f} "
            f"{sparkline(self._curve, width)}"
        )
        total = rounds * self._n_seeds
        description = f"{self._label}, seed {seed}"
        if stderr.width < NARROW_COLUMNS:  # the count and the time left come first
            description, figures = f"seed {seed}", f"val NDCG {self._curve[-1]:.4f}"
        if self._task is None:
            self._task = self._progress.add_task(description, total=total, figures=figures)
            self._progress.update(self._task, completed=row["round"])
            return
        self._progress.update(self._task, advance=1, description=description, figures=figures)

    def _print_line(self, seed: int, row: dict[str, Any], rounds: int) -> None:
        now = time.monotonic()
        due = row["round"] % max(1, rounds // LINES_PER_SEED) == 0
        if due or row["round"] == 1 or now - self._printed_at > MAX_QUIET_SECONDS:
            self._printed_at = now
            left = (now - self._began) / self._done * (rounds - row["round"])
            stderr.print(
                f"{self._label}, seed {seed}: round {row['round']}/{rounds}, "
                f"loss {row['loss']:.3f}, validation NDCG@10 {self._curve[-1]:.4f}, "
                f"{left:.0f} s left"
            )


class CellProgress(_Display):
    """Cells of tables: which one runs, for how long, and about how long the rest will take."""

    def __init__(self, cells: int, mark: str = "") -> None:
        self._cells, self._mark = cells, mark
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=stderr,
            expand=True,
            transient=True,
            disable=not stderr.is_terminal,
        )

    def begin(self, name: str) -> None:
        if self._task is None:
            self._task = self._progress.add_task(name, total=self._cells, left="")
        self._progress.update(self._task, description=name)

    def fail(self, message: str) -> None:
        stderr.print(f"unskew: {message}", markup=False)

    def end(self, name: str, done: int, seconds: float, seconds_left: float) -> None:
        left = f"about {seconds_left / 60:.0f} min left"
        line = f"{self._mark}{done}/{self._cells} {name}: {seconds:.0f} s, {left}"
        stderr.print(line, markup=False)
        if self._task is not None:
            self._progress.update(self._task, advance=1, left=left)


class DownloadProgress(_Display):
    """Bytes of a download, with the time left if the server sends the size."""

    def __init__(self, label: str) -> None:
        self._label, self._task = label, None
        self._printed_at = 0.0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(compact=True),
            console=stderr,
            transient=True,
            disable=not stderr.is_terminal,
        )

    def __call__(self, done: int, total: int | None) -> None:
        if stderr.is_terminal:
            if self._task is None:
                self._task = self._progress.add_task(self._label, total=total)  # type: ignore[assignment]
            self._progress.update(self._task, completed=done, total=total)  # type: ignore[arg-type]
        elif time.monotonic() - self._printed_at > MAX_QUIET_SECONDS or done == total:
            self._printed_at = time.monotonic()
            stderr.print(f"{self._label}: {done} of {total or 'unknown'} bytes")
