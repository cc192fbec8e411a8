"""Output of all commands: consoles, tables, JSON, files, and formatted figures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table

from unskew.files import write_atomically
from unskew.types import UnskewError

if TYPE_CHECKING:
    from unskew.runs import Summary

# Titles, labels and paths are printed as they are: "[/x]" and ":cat:" mean nothing in them.
_PLAIN: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
stdout = Console(soft_wrap=not sys.stdout.isatty(), **_PLAIN)
stderr = Console(stderr=True, soft_wrap=not sys.stderr.isatty(), **_PLAIN)
COLUMN_GAP = 2
"""Spaces between the columns of a table."""


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object and nothing else; NaN and infinity become null."""
    sys.stdout.write(json.dumps(_finite(value), ensure_ascii=False) + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> None:
    """Print a table, or a list of cells if the terminal is too narrow for whole words."""
    figures = [i > 0 and all(_is_figure(row[i]) for row in rows) for i in range(len(columns))]
    widths = _widths([columns, *rows], figures, stdout.width)
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    if widths is None:
        _stack(table, columns, rows)
    else:
        for column, figure, width in zip(columns, figures, widths, strict=True):
            justify: JustifyMethod = "right" if figure else "left"
            table.add_column(column, justify=justify, overflow="fold", width=width)
        for row in rows:
            table.add_row(*row)
    stdout.print(table)


def _widths(lines: Sequence[Sequence[str]], figures: Sequence[bool], room: int) -> list[int] | None:
    """Column widths that break lines between words only; None if there is no room for that.

    The widest columns are narrowed first, columns of figures last.
    """
    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, cells)) for cells in columns]
    least = [max(cell_len(word) for word in " ".join(cells).split() or [""]) for cells in columns]
    room -= COLUMN_GAP * (len(columns) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        left = [i for i, width in enumerate(widths) if width > least[i]]
        widths[max(left, key=lambda i: (not figures[i], widths[i]))] -= 1
    return widths


def _stack(table: Table, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Add a line for each cell with content, and an empty line between rows."""
    table.show_header = False
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for i, row in enumerate(rows):
        if i > 0:
            table.add_row("", "")
        for column, cell in zip(columns, row, strict=True):
            if cell not in ("", "–"):
                table.add_row(column, cell)


def write_file(path: Path, write: Callable[[Any], object]) -> None:
    """Write a file, or say in one sentence why it cannot be written."""
    if path.is_dir():
        raise UnskewError(f"{path} is a folder; give the name of a file.")
    try:
        write_atomically(path, write)
    except OSError as error:
        reason = error.strerror or error
        raise UnskewError(f"{path} cannot be written ({reason}); choose another place.") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file at a place the user chose."""
    write_file(path, lambda file: file.write(text.encode()))


def mean_std(summary: Summary) -> str:
    """Format as 0.4846 ± 0.0031; a single seed has no deviation."""
    text = f"{summary.mean:.4f}"
    return f"{text} ± {summary.std:.4f}" if len(summary.values) > 1 else text


def size(n_bytes: float) -> str:
    """Format a number of bytes as 1.5 MB."""
    for unit in ("B", "KB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "-+<–≥"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
