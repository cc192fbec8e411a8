"""The rows of a table that are wrong: the first is reported, or all are dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from unskew.data._tables import Table
from unskew.types import Bool, UnskewError

_RAGGED = "ragged line"


@dataclass(frozen=True)
class Rules:
    """How strictly to read."""

    skip_bad_rows: bool = False
    published: bool = False
    """A named data set: repeated pairs and any 64-bit clock are part of what was published."""
    ignore_ratings: bool = False
    """The rating column is a label of another kind (Last.fm's tags), so every row counts."""
    min_user_rows: int = 3
    refuse_short_users: bool = False
    """Whether a user with fewer rows is a mistake in the file rather than the split's business."""


class Problems:
    """The rows that are wrong, and why; the first reason found for a row stays."""

    def __init__(self, table: Table, rules: Rules) -> None:
        self.table = table
        self.rules = rules
        self.bad: Bool = np.zeros(table.frame.height, np.bool_)
        self._counts: Counter[str] = Counter()
        self._short_users = 0
        self._first: tuple[int, str] | None = None
        self._remarks: list[str] = []
        for line, fields in table.ragged:
            width = table.frame.width
            self._note_first(line, f"{fields} fields where the header has {width}")
            self._counts[_RAGGED] += 1

    def mark(self, rows: Bool, kind: str, describe: Sequence[str] | pl.Series | str) -> None:
        fresh = rows & ~self.bad
        if not fresh.any():
            return
        self.bad |= fresh
        self._counts[kind] += int(fresh.sum())
        row = int(fresh.argmax())
        text = describe if isinstance(describe, str) else f"{kind} {str(describe[row])[:60]!r}"
        self._note_first(int(self.table.lines[row]), text)

    def mark_users(self, rows: Bool, n_users: int, describe: str) -> None:
        self._short_users = n_users
        self.mark(rows, "row of a user with too few", describe)

    def remark(self, text: str) -> None:
        self._remarks.append(text)

    def settle(self) -> None:
        """Raise for the topmost bad row, unless bad rows are to be dropped."""
        if self._first is None or self.rules.skip_bad_rows:
            return
        line, text = self._first
        raise UnskewError(
            f"{self.table.path}, {self.table.unit} {line}: {text}; "
            "mend it or drop all such rows with --skip-bad-rows (in Python: skip_bad_rows=True)"
        )

    def notes(self) -> tuple[str, ...]:
        counts = {kind: n for kind, n in self._counts.items() if not kind.startswith("row of")}
        notes = list(self._remarks)
        if counts:
            parts = ", ".join(f"{n} {plural(kind, n)}" for kind, n in counts.items())
            total = sum(counts.values())
            notes.append(f"dropped {total} {plural('row', total)}: {parts}")
        if self._short_users:
            rows = self._counts.total() - sum(counts.values())
            notes.append(
                f"dropped {self._short_users} {plural('user', self._short_users)} with fewer than "
                f"{self.rules.min_user_rows} rows ({rows} {plural('row', rows)})"
            )
        return tuple(notes)

    def _note_first(self, line: int, text: str) -> None:
        if self._first is None or line < self._first[0]:
            self._first = (line, text)


def plural(kind: str, n: int) -> str:
    return kind if n == 1 else f"{kind}s"


def refuse_types(column: pl.Series, fits: bool, wanted: str, problems: Problems) -> None:
    """Parquet columns have types of their own; text files never get here with a wrong one."""
    if not fits:
        raise UnskewError(
            f"{problems.table.path}: column {column.name!r} has the type {column.dtype}; "
            f"give {wanted}"
        )


def mark_unparsed(
    text: pl.Series, parsed: pl.Series, role: str, problems: Problems, wrong: str = "non-numeric"
) -> None:
    missing = text.is_null() | (text.cast(pl.String) == "").fill_null(True)
    problems.mark(missing.to_numpy(), f"missing {role}", f"the {role} is missing")
    problems.mark(parsed.is_null().to_numpy(), f"{wrong} {role}", text)


def stripped(column: pl.Series) -> pl.Series:
    return column.str.strip_chars() if column.dtype == pl.String else column
