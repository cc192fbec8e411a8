"""Pages the commands write: whole ones, and tables inside pages somebody else wrote."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unskew.files import write_atomically
from unskew.types import UnskewError


def write_file(path: Path, write: Callable[[Any], object]) -> None:
    """A file at a place the user chose."""
    if path.is_dir():
        raise UnskewError(f"{path} is a folder; give the name of a file.")
    try:
        write_atomically(path, write)
    except OSError as error:
        reason = error.strerror or error
        raise UnskewError(f"{path} cannot be written ({reason}); choose another place.") from None


def write_text(path: Path, text: str) -> None:
    write_file(path, lambda file: file.write(text.encode()))


def fill_table(page: Path, table: str) -> None:
    """Replace what stands between the page's table marks."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- table:begin")
    comment, end, after = rest.partition("<!-- table:end")
    if not (begin and end):
        raise UnskewError(f"{page} has no <!-- table:begin --> and <!-- table:end --> marks.")
    head = comment.partition("-->")[0]
    write_text(page, f"{before}{begin}{head}-->\n{table}\n{end}{after}")
