"""From a table of text to numbered interactions, refusing or dropping what is not one.

Every check marks rows; the first marked row is reported (strict) or all marked rows are dropped
and counted (``skip_bad_rows``). Files users bring are held to more than published data sets: no
repeated pairs, no impossible dates, no user too short to hold anything out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from unskew.data._columns import find_columns
from unskew.data._tables import Table
from unskew.types import Bool, Float64, Int32, Int64, Interactions, UnskewError

_YEAR_2200 = 7_258_118_400
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
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


class _Columns(NamedTuple):
    users: pl.Series
    items: pl.Series
    ratings: Float64 | None
    timestamps: Int64 | None


def to_interactions(
    table: Table, name: str, columns: Mapping[str, str | None] | None, rules: Rules
) -> Interactions:
    """The interactions of a table, numbered in order of first appearance."""
    chosen = find_columns(table.path, table.frame.columns, columns)
    if rules.ignore_ratings:
        chosen.pop("rating", None)
    problems = _Problems(table, rules)
    read = _Columns(
        _labels(table.frame[chosen["user"]], "user", problems),
        _labels(table.frame[chosen["item"]], "item", problems),
        _ratings(table.frame[chosen["rating"]], problems) if "rating" in chosen else None,
        _clock(table.frame[chosen["timestamp"]], problems) if "timestamp" in chosen else None,
    )
    problems.settle()
    if not rules.published:
        _mark_duplicates(read, problems)
        problems.settle()
        _mark_short_users(read, problems)
    keep = ~problems.bad
    if not keep.any():
        raise UnskewError(f"{table.path}: no usable rows are left; mend the file's rows")
    users, user_ids = _numbered(read.users.filter(pl.Series(keep)))
    items, item_ids = _numbered(read.items.filter(pl.Series(keep)))
    return Interactions(
        name=name,
        users=users,
        items=items,
        user_ids=user_ids,
        item_ids=item_ids,
        ratings=None if read.ratings is None else read.ratings[keep].astype(np.float32),
        timestamps=None if read.timestamps is None else read.timestamps[keep],
        clock="none" if read.timestamps is None else "time",
        min_user_rows=rules.min_user_rows,
        notes=problems.notes(),
    )


def with_order_as_clock(interactions: Interactions) -> Interactions:
    """The order of first appearance of an item in place of a clock, for sources without one.
    Items are numbered in exactly that order."""
    if interactions.timestamps is None:
        interactions = replace(interactions, timestamps=interactions.items.astype(np.int64))
    return replace(interactions, clock="order")


class _Problems:
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
            parts = ", ".join(f"{n} {_plural(kind, n)}" for kind, n in counts.items())
            total = sum(counts.values())
            notes.append(f"dropped {total} {_plural('row', total)}: {parts}")
        if self._short_users:
            rows = self._counts.total() - sum(counts.values())
            notes.append(
                f"dropped {self._short_users} {_plural('user', self._short_users)} with fewer than "
                f"{self.rules.min_user_rows} rows ({rows} {_plural('row', rows)})"
            )
        return tuple(notes)

    def _note_first(self, line: int, text: str) -> None:
        if self._first is None or line < self._first[0]:
            self._first = (line, text)


def _plural(kind: str, n: int) -> str:
    return kind if n == 1 else f"{kind}s"


def _labels(column: pl.Series, role: str, problems: _Problems) -> pl.Series:
    _refuse_types(column, not column.dtype.is_nested(), f"one {role} per row", problems)
    if column.dtype.is_float() and (column.fill_nan(0.0).fill_null(0.0) % 1 == 0).all():
        column = column.cast(pl.Int64, strict=False)
    labels = column.cast(pl.String, strict=False).str.strip_chars().fill_null("")
    problems.mark((labels == "").to_numpy(), f"missing {role}", f"the {role} is missing")
    return labels


def _refuse_types(column: pl.Series, fits: bool, wanted: str, problems: _Problems) -> None:
    """Parquet columns have types of their own; text files never get here with a wrong one."""
    if not fits:
        raise UnskewError(
            f"{problems.table.path}: column {column.name!r} has the type {column.dtype}; "
            f"give {wanted}"
        )


def _ratings(column: pl.Series, problems: _Problems) -> Float64:
    numeric = column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean, pl.Null)
    _refuse_types(column, numeric, "ratings as numbers", problems)
    text = _stripped(column)
    ratings = text.cast(pl.Float64, strict=False)
    _mark_unparsed(text, ratings, "rating", problems)
    values = ratings.fill_null(0.0).to_numpy()
    problems.mark(np.isnan(values), "NaN rating", "the rating is NaN, not a number")
    problems.mark(np.isinf(values), "infinite rating", "the rating is infinite")
    return values


def _clock(column: pl.Series, problems: _Problems) -> Int64:
    dated = column.dtype in (pl.Date, pl.Datetime)
    numeric = column.dtype.is_numeric() or column.dtype in (pl.String, pl.Null)
    _refuse_types(column, dated or numeric, "timestamps as numbers or dates", problems)
    if dated:
        column = column.cast(pl.Datetime("us")).to_physical()
    text = _stripped(column)
    whole = text.cast(pl.Int64, strict=False)
    if column.dtype.is_float() or (whole.is_null() & text.is_not_null()).any():
        floats = text.cast(pl.Float64, strict=False)
        _mark_unparsed(text, floats, "timestamp", problems)
        return _from_floats(floats.fill_null(0.0).to_numpy(), whole, text, problems)
    _mark_unparsed(text, whole, "timestamp", problems)
    values = whole.fill_null(0).to_numpy()
    _mark_impossible(values, text, problems)
    return values


def _from_floats(values: Float64, whole: pl.Series, text: pl.Series, problems: _Problems) -> Int64:
    """Clocks written with a decimal point. Fractions of a second keep their order by counting in
    microseconds."""
    unfit = ~(np.abs(values) < 2.0**63)
    problems.mark(unfit, "huge timestamp", text)
    values = np.where(unfit | problems.bad, 0.0, values)
    if (values != np.floor(values)).any() and np.abs(values).max() < _YEAR_2200:
        problems.remark("timestamps are fractions of a second; counted in microseconds")
        clock = np.round(values * 1e6).astype(np.int64)
    else:
        exact = whole.fill_null(0).to_numpy()
        clock = np.where(whole.is_null().to_numpy(), values.astype(np.int64), exact)
    _mark_impossible(clock, text, problems)
    return clock


def _mark_impossible(values: Int64, text: pl.Series, problems: _Problems) -> None:
    """Dates before 1970 or after 2200. The unit is the finest the typical value fits, so seconds
    among milliseconds or the reverse do not pass for dates."""
    if problems.rules.published:
        return
    problems.mark(values < 0, "negative timestamp", text)
    good = values[~problems.bad]
    if len(good) == 0:
        return
    typical = int(np.median(good))
    for unit, scale in _UNITS.items():
        if typical < _YEAR_2200 * scale or unit == "nanoseconds":
            late = values > _YEAR_2200 * scale
            if late.any():
                shown = str(text[int(late.argmax())])
                describe = f"timestamp {shown!r} is after the year 2200 in {unit}"
                problems.mark(late, "absurd timestamp", describe)
            return


def _mark_unparsed(text: pl.Series, parsed: pl.Series, role: str, problems: _Problems) -> None:
    missing = text.is_null() | (text.cast(pl.String) == "").fill_null(True)
    problems.mark(missing.to_numpy(), f"missing {role}", f"the {role} is missing")
    problems.mark(parsed.is_null().to_numpy(), f"non-numeric {role}", text)


def _mark_duplicates(read: _Columns, problems: _Problems) -> None:
    pairs = pl.DataFrame({"user": read.users, "item": read.items}).with_row_index("row")
    pairs = pairs.filter(pl.Series(~problems.bad))
    later = pairs.filter(~pl.struct("user", "item").is_first_distinct())
    if later.height == 0:
        return
    _, user, item = later.row(0)
    first = pairs.filter((pl.col("user") == user) & (pl.col("item") == item))["row"][0]
    repeated = np.zeros(len(problems.bad), np.bool_)
    repeated[later["row"].to_numpy()] = True
    where = f"{problems.table.unit} {problems.table.lines[first]}"
    text = f"user {user!r} and item {item!r} already stand on {where}"
    problems.mark(repeated, "duplicate pair", text)


def _mark_short_users(read: _Columns, problems: _Problems) -> None:
    """Users without enough positive rows to hold one out for validation and one for testing."""
    if not problems.rules.refuse_short_users:
        return
    counted = ~problems.bad if read.ratings is None else ~problems.bad & (read.ratings > 0)
    rows = pl.DataFrame({"user": read.users, "counted": pl.Series(counted)}).with_columns(
        total=pl.col("counted").sum().over("user")
    )
    least = problems.rules.min_user_rows
    short = (rows["total"].to_numpy() < least) & ~problems.bad
    if not short.any():
        return
    row = int(short.argmax())
    count = int(rows["total"][row])
    text = (
        f"user {read.users[row]!r} has {count} usable {_plural('row', count)} where at least "
        f"{least} are needed"
    )
    n_users = read.users.filter(pl.Series(short)).n_unique()
    problems.mark_users(short, n_users, text)
    problems.settle()


def _stripped(column: pl.Series) -> pl.Series:
    return column.str.strip_chars() if column.dtype == pl.String else column


def _numbered(labels: pl.Series) -> tuple[Int32, list[str]]:
    names = labels.unique(maintain_order=True)
    numbers = pl.Series(np.arange(len(names), dtype=np.int32))
    return labels.replace_strict(names, numbers, return_dtype=pl.Int32).to_numpy(), names.to_list()
