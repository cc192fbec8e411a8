"""Pages the commands write: whole ones, and tables inside pages somebody else wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unskew.engine import write_atomically
from unskew.types import UnskewError


def write_text(path: Path, text: str) -> None:
    def write(file: Any) -> None:
        file.write(text.encode())

    write_atomically(path, write)


def fill_table(page: Path, table: str) -> None:
    """Replace what stands between the page's table marks."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- table:begin")
    comment, end, after = rest.partition("<!-- table:end")
    if not (begin and end):
        raise UnskewError(f"{page} has no <!-- table:begin --> and <!-- table:end --> marks.")
    head = comment.partition("-->")[0]
    write_text(page, f"{before}{begin}{head}-->\n{table}\n{end}{after}")
