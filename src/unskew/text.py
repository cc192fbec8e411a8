"""Text from outside (labels, titles, messages of other machines), made safe where it is shown.

A line break in a node's message forges a line of a log, an escape sequence in a title rewrites the
terminal, and a spreadsheet runs a cell that starts with an equals sign. Files keep such text as it
is; what prints or exports it for people calls this module.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polars import DataFrame

MAX_LOG_CHARACTERS = 300
"""Longest text from outside in a line of a log."""
_FORMULA = r"^\s*[=+\-@]"
"""Pattern of a cell that spreadsheets calculate."""
_NUMBER = r"^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$"
"""Pattern of a number, which is no formula although it may start with a sign."""
_HIDDEN = frozenset(["Cc", "Cs", "Zl", "Zp"])
"""Unicode categories of control characters, halves of characters and line breaks."""
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of what follows them."""


def plain(text: object, most: int | None = None) -> str:
    """The text on one line, with � for control characters, cut after ``most`` characters."""
    shown = str(text)
    shown = shown if most is None or len(shown) <= most else shown[: most - 1] + "…"
    if shown.isascii() and shown.isprintable():
        return shown
    return "".join("�" if _is_hidden(one) else one for one in shown)


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN or character in _TURNING


def log_text(text: object) -> str:
    """Text of another machine for a line of a log."""
    return plain(text, MAX_LOG_CHARACTERS)


def without_formulas(table: DataFrame) -> DataFrame:
    """The table for a CSV file: texts that would be formulas start with an apostrophe."""
    import polars as pl

    text = pl.col(pl.String)
    formula = text.str.contains(_FORMULA) & ~text.str.contains(_NUMBER)
    return table.with_columns(pl.when(formula).then("'" + text).otherwise(text).name.keep())
