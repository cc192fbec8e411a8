"""Find the columns of a table by name, and collect the rows that cannot be used."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from unskew.data._tables import Choice, Table
from unskew.types import Bool, UnskewError

_ROLES = ("user", "item", "rating", "timestamp")
"""Roles that a column of an interactions table can have."""
_USUAL_NAMES: Mapping[str, str] = {
    "user": "user userid uid username usr member memberid reviewer reviewerid customer customerid "
    "visitor visitorid session sessionid",
    "item": "item itemid iid movie movieid mid film filmid artist artistid track trackid song "
    "songid book bookid isbn product productid asin parentasin article articleid business "
    "businessid game gameid poi poiid",
    "rating": "rating ratings score stars overall ratingvalue",
    "timestamp": "timestamp time ts unixtime unixreviewtime datetime date createdat ratedat when",
    "title": "title name movietitle itemtitle itemname artistname",
}
"""Column names recognised for each role, in lower case without punctuation, most usual first."""


def find_columns(
    header: str, names: Sequence[str], wanted: Mapping[str, str | None] | None
) -> dict[str, str]:
    """Map each role (user, item, rating, timestamp) to the name of its column in a table.

    ``header`` is the place of the column names, for messages. ``wanted`` is such a mapping for some
    roles; None or an empty name there leaves a role out. The columns of other roles are recognised
    by their names."""
    chosen: dict[str, str] = {}
    for role, column in (wanted or {}).items():
        if role not in _ROLES:
            raise UnskewError(
                f"columns={{{role!r}: ...}} names no known role; use {', '.join(_ROLES)}"
            )
        if column and column not in names:
            raise UnskewError(
                f"{header}: there is no column {column!r} for the {role}; "
                f"there are {quote_names(names)}{did_you_mean(column, names)}"
            )
        if column:
            chosen[role] = column
    for role in _ROLES:
        if role not in (wanted or {}):
            column = find_usual_name(role, [name for name in names if name not in chosen.values()])
            if column is not None:
                chosen[role] = column
    missing = [role for role in ("user", "item") if role not in chosen]
    if missing:
        raise UnskewError(_missing_columns(header, names, missing))
    return chosen


def columns_to_read(wanted: Mapping[str, str | None] | None) -> Choice:
    """The choice of the columns that ``find_columns`` finds, each once, also one of two roles."""
    return lambda header, names: list(dict.fromkeys(find_columns(header, names, wanted).values()))


def find_usual_name(role: str, names: Sequence[str]) -> str | None:
    """The column among ``names`` with the most usual name for a role such as ``user``, or None."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in reversed(names)}
    return next((plain[usual] for usual in _USUAL_NAMES[role].split() if usual in plain), None)


def quote_names(names: Sequence[str], most: int = 12) -> str:
    quoted = ", ".join(repr(name[:40]) for name in names[:most])
    return quoted + (f" and {len(names) - most} more" if len(names) > most else "")


def did_you_mean(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def count(n: int, noun: str) -> str:
    """Format a count with its noun: ``1 row``, ``2 rows``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _missing_columns(header: str, names: Sequence[str], missing: Sequence[str]) -> str:
    if all(re.fullmatch(r"\s*[-+.\deE]+\s*", name) for name in names):
        return (
            f"{header}: the first line holds numbers, not column names; "
            "add a header line such as user,item,rating,timestamp"
        )
    what = " and no ".join(f"{role} column" for role in missing)
    mapping = ", ".join(f'"{role}": "..."' for role in missing)
    return (
        f"{header}: no {what} among {quote_names(names)}; "
        f"rename the header or say which it is with columns={{{mapping}}}"
    )


@dataclass(frozen=True)
class Rules:
    """How strictly to read a table."""

    skip_bad_rows: bool = False
    """Drop bad rows and count them; otherwise the first one is an error."""
    published: bool = False
    """True for a data set known by name, whose timestamps may be any 64-bit integers."""
    min_user_rows: int = 1
    """Users with fewer rows are left out when the rows are split."""


class Problems:
    """Collects the bad rows of a table. A row is counted under the first problem found in it."""

    def __init__(self, table: Table, rules: Rules) -> None:
        self.table = table
        self.rules = rules
        self.bad: Bool = np.zeros(table.frame.height, np.bool_)
        self.remarks: list[str] = list(table.notes)
        """Notes about the file that are no errors."""
        self._counts: Counter[str] = Counter()
        self._first: tuple[int, str] | None = None
        for line, fields in table.ragged:
            self._note(line, f"{fields} fields where the header has {table.frame.width}")
            self._counts["ragged line"] += 1

    def mark(self, rows: Bool, kind: str, describe: pl.Series | str) -> None:
        """Mark rows as bad and count them under the problem ``kind``, such as "missing user".
        ``describe`` is the error message, or the column whose bad value the message quotes."""
        fresh = rows & ~self.bad
        if not fresh.any():
            return
        self.bad |= fresh
        self._counts[kind] += int(fresh.sum())
        row = int(fresh.argmax())
        text = describe if isinstance(describe, str) else f"{kind} {str(describe[row])[:60]!r}"
        self._note(self.table.line(row), text)

    def mark_unparsed(
        self, text: pl.Series, parsed: pl.Series, role: str, wrong: str = "non-numeric"
    ) -> None:
        """Mark the rows whose value in the column ``text`` is missing or could not be parsed."""
        if not parsed.null_count():
            return
        missing = text.is_null() | (text.cast(pl.String) == "").fill_null(True)
        self.mark(missing.to_numpy(), f"missing {role}", f"the {role} is missing")
        self.mark(parsed.is_null().to_numpy(), f"{wrong} {role}", text)

    def raise_first(self) -> None:
        """Raise an error for the first bad row of the file, unless bad rows are to be dropped."""
        if self._first is None or self.rules.skip_bad_rows:
            return
        line, text = self._first
        raise UnskewError(
            f"{self.table.path}, {self.table.unit} {line}: {text}; "
            "mend it or drop all such rows with --skip-bad-rows (in Python: skip_bad_rows=True)"
        )

    def notes(self) -> tuple[str, ...]:
        """Sentences for ``Interactions.notes``: remarks, and how many rows were dropped and why."""
        if not self._counts:
            return tuple(self.remarks)
        parts = ", ".join(count(n, kind) for kind, n in self._counts.items())
        return (*self.remarks, f"dropped {count(self._counts.total(), 'row')}: {parts}")

    def _note(self, line: int, text: str) -> None:
        if self._first is None or line < self._first[0]:
            self._first = (line, text)
