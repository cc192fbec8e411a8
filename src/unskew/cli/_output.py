"""Output of all commands: tables, JSON, formatted numbers, and progress of long work."""

from __future__ import annotations

import json
import logging
import math
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from unskew.cli._commands import COMMANDS
from unskew.text import plain

if TYPE_CHECKING:
    from unskew.runs import RunSpec, Summary
    from unskew.types import Interactions

_PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
"""Options of rich's console that print text unchanged, even ``[/x]`` and ``:cat:``."""


def program() -> str:
    """How ``unskew`` is started in this shell, for commands in hints: ``unskew`` if it is on the
    PATH, otherwise its path or ``python -m unskew``."""
    started = Path(sys.argv[0])
    on_path = shutil.which("unskew")
    if started.name == "__main__.py":  # python -m unskew
        python = shutil.which("python")
        same = python is not None and Path(python).absolute() == Path(sys.executable).absolute()
        return f"{'python' if same else _shown(Path(sys.executable))} -m unskew"
    if len(started.parts) == 1 or (on_path and Path(on_path).resolve() == started.resolve()):
        return "unskew"
    return _shown(started)


def _shown(path: Path) -> str:
    """A path as a shell argument: quoted, and relative if it is below the current folder."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


class _HintConsole(Console):
    """A console that prints commands such as ``unskew resume`` in a form that this shell finds, for
    example as ``python -m unskew resume``."""

    def print(self, *objects: Any, **options: Any) -> None:
        name = program()
        shown = [
            re.sub(rf"(?<![\w/.-])unskew (?=(?:{'|'.join(COMMANDS)})\b)", lambda _: f"{name} ", one)
            if isinstance(one, str) and name != "unskew"
            else one
            for one in objects
        ]
        super().print(*shown, **options)


stdout = _HintConsole(soft_wrap=not sys.stdout.isatty(), **_PLAIN)
stderr = _HintConsole(stderr=True, soft_wrap=not sys.stderr.isatty(), **_PLAIN)
MAX_CELL_CHARACTERS = 500
"""Longest text in a cell of a printed table."""
COLUMN_GAP = 2
"""Spaces between the columns of a table."""
_BLOCKS = "▁▂▃▄▅▆▇█"
"""Characters that draw a curve, from its lowest value to its highest."""
MAX_CURVE_BLOCKS = 20
"""Maximum characters of the validation curve on a progress line."""
LINES_PER_SEED = 10
"""Number of progress lines per seed when output is not a terminal."""
MAX_QUIET_SECONDS = 20.0
"""Maximum seconds between two progress lines when output is not a terminal."""
NARROW_COLUMNS = 90
"""Terminal width in characters below which a shorter progress line is shown."""


class _LogPrinter(logging.Handler):
    """Prints log records to stderr, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        stderr.print(record.getMessage())


def print_logs() -> None:
    """From now on print what the package logs: that kernels have to be compiled."""
    logger = logging.getLogger("unskew")
    logger.handlers = [_LogPrinter()]
    logger.setLevel(logging.INFO)


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object and nothing else; NaN and infinity become null."""
    sys.stdout.write(json.dumps(_finite(value), ensure_ascii=False) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> None:
    """Print a table; on a terminal too narrow for it, print one line per cell instead. Cells may be
    text from outside, such as titles."""
    rows = [[plain(text, MAX_CELL_CHARACTERS) for text in row] for row in rows]
    cells = list(zip(columns, *rows, strict=True))
    longest_word = [max(map(cell_len, " ".join(texts).split()), default=0) for texts in cells]
    room = stdout.width - COLUMN_GAP * (len(columns) - 1)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    if sum(longest_word) > room:
        table.show_header = False
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for row in rows:
            for column, cell in zip(columns, row, strict=True):
                if cell not in ("", "–"):
                    table.add_row(column, cell)
            table.add_row()
    else:
        is_figure = re.compile(r"\d|[-+<–≥]|$").match
        figures = [i > 0 and all(map(is_figure, texts[1:])) for i, texts in enumerate(cells)]
        widths = [max(map(cell_len, texts)) for texts in cells]
        while sum(widths) > room:  # narrow the widest column of words first, then of numbers
            left = [i for i, width in enumerate(widths) if width > longest_word[i]]
            widths[max(left, key=lambda i: (not figures[i], widths[i]))] -= 1
        for column, figure, width in zip(columns, figures, widths, strict=True):
            justify: JustifyMethod = "right" if figure else "left"
            table.add_column(column, justify=justify, overflow="fold", width=width)
        for row in rows:
            table.add_row(*row)
    stdout.print(table)


def print_recommendations(found: Sequence[Mapping[str, Any]]) -> None:
    """Print a list of recommended items with their scores."""
    print_table(
        ["rank", "item", "title", "score"],
        [[str(r["rank"]), r["item"], r["title"], f"{r['score']:.3f}"] for r in found],
    )


def mean_std(summary: Summary) -> str:
    """Format mean and standard deviation as 0.4846 ± 0.0031; with one seed, only the mean."""
    text = f"{summary.mean:.4f}"
    return f"{text} ± {summary.std:.4f}" if len(summary.values) > 1 else text


class _ProgressLine(Progress):
    """A progress bar on a terminal while work runs; not shown without a terminal."""

    def __init__(self, *columns: ProgressColumn) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            *columns,
            console=stderr,
            expand=True,
            transient=True,
            disable=not stderr.is_terminal,
        )
        self._printed_at = self._began = time.monotonic()
        self._line = self.add_task("", total=None, visible=False, figures="")

    def _is_quiet(self) -> bool:
        """True if no progress line was printed for more than ``MAX_QUIET_SECONDS``."""
        return time.monotonic() - self._printed_at > MAX_QUIET_SECONDS

    def _print(self, line: str) -> None:
        self._printed_at = time.monotonic()
        stderr.print(line)


class RoundProgress(_ProgressLine):
    """Progress over the rounds of one or several seeds: loss, validation curve, time left."""

    def __init__(self, label: str, n_seeds: int = 1) -> None:
        figures = TextColumn("{task.fields[figures]}", markup=False)
        super().__init__(MofNCompleteColumn(), figures, TimeRemainingColumn(compact=True))
        self._label, self._n_seeds = label, n_seeds
        self._curves: dict[int, list[float]] = {}

    def __call__(self, seed: int, row: dict[str, Any], rounds: int) -> None:
        curve = self._curves.setdefault(seed, [])
        curve.append(row["validation"]["ndcg@10"])
        label, figures = f"{self._label}, seed {seed}", f"validation NDCG@10 {curve[-1]:.4f}"
        if stderr.is_terminal:
            if stderr.width < NARROW_COLUMNS:  # the count and the time left come first
                label = f"seed {seed}"
            else:
                figures = f"loss {row['loss']:.3f}  {figures} {_draw_curve(curve)}"
            self.update(
                self._line,
                description=label,
                figures=figures,
                completed=(len(self._curves) - 1) * rounds + row["round"],
                total=rounds * self._n_seeds,
                visible=True,
            )
            return
        round, step = row["round"], max(1, rounds // LINES_PER_SEED)
        if round == 1 or round % step == 0 or self._is_quiet():
            done = sum(map(len, self._curves.values()))
            left = (time.monotonic() - self._began) / done * (rounds - round)
            self._print(
                f"{label}: round {round}/{rounds}, loss {row['loss']:.3f}, {figures}, "
                f"{left:.0f} s left"
            )


def _draw_curve(values: list[float]) -> str:
    """Draw a curve as block characters, thinned out to at most ``MAX_CURVE_BLOCKS`` values."""
    values = values[:: -(1 + len(values) // MAX_CURVE_BLOCKS)][::-1]
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(_BLOCKS[int((value - low) * scale)] for value in values)


class CellProgress(_ProgressLine):
    """Progress over the runs and tasks of ``unskew reproduce``: the current one and time left."""

    def __init__(self, cells: int, mark: str = "") -> None:
        super().__init__(MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        self._cells, self._mark = cells, mark

    def begin(self, name: str) -> None:
        self.update(self._line, description=name, total=self._cells, visible=True)

    def fail(self, message: str) -> None:
        stderr.print(f"unskew: {message}")

    def end(self, name: str, done: int, seconds: float, seconds_left: float) -> None:
        left = f"about {seconds_left / 60:.0f} min left"
        stderr.print(f"{self._mark}{done}/{self._cells} {name}: {seconds:.0f} s, {left}")
        self.update(self._line, completed=done)


class AmountProgress(_ProgressLine):
    """Progress of a download in bytes or of a file in rows, with the time left."""

    def __init__(self, label: str, unit: Literal["bytes", "rows"] = "bytes") -> None:
        done = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        super().__init__(done, TimeRemainingColumn(compact=True))
        self._label, self._unit = label, unit

    def __call__(self, done: int, total: int | None) -> None:
        if stderr.is_terminal:
            self.update(self._line, description=self._label, completed=done, total=total)
            self.update(self._line, visible=True)
        elif done == total or self._is_quiet():
            seconds = time.monotonic() - self._began
            rest = 0 if total is None else total - done
            left = f", {seconds / done * rest:.0f} s left" if rest else ""
            self._print(f"{self._label}: {done} of {total or 'unknown'} {self._unit}{left}")


def load_data(spec: RunSpec, data_dir: Path | None) -> Interactions:
    """Load the interactions of a run; shows download progress and notes on dropped rows."""
    with AmountProgress(spec.data) as progress:
        interactions = spec.load(data_dir, progress)
    for note in interactions.notes:
        stderr.print(f"{spec.data}: {note}")
    return interactions
