"""Convert a table to interactions with numbered users and items, after checking every row.

The first bad row raises an error or, with ``skip_bad_rows``, all bad rows are dropped and counted.
Your tables are checked more strictly than published data sets: dates must be plausible.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from unskew.data._checks import Problems, Rules, find_columns
from unskew.data._tables import Table
from unskew.data._threads import map_ahead
from unskew.numbering import PART_ROWS, Numbering, number_by_appearance
from unskew.types import Bool, Float64, Int32, Int64, Interactions, UnskewError

_YEAR_2200 = 7_258_118_400
"""1 January 2200 in seconds since 1970."""
_UNITS = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds", 10**9: "nanoseconds"}
"""Names of timestamp units by ticks per second."""
_WHOLE_NUMBERS = (
    pl.Int8,
    pl.Int16,
    pl.Int32,
    pl.Int64,
    pl.UInt8,
    pl.UInt16,
    pl.UInt32,
)
"""Types of columns whose values are 64-bit integers; labels of other types are treated as text."""
_ISO_DATE = (
    r"^(?<day>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?<minute>\d{2}:\d{2})(?<second>:\d{2}(?:\.\d+)?)?)?"
    r" ?(?<zone>Z|UTC|[+-]\d{2}:?\d{2})?$"
)
"""Pattern of an ISO date with an optional time of day and an optional UTC offset."""
_PLAIN_DATES = {
    r"^\d{4}-\d{2}-\d{2}$": "%Y-%m-%d",
    r"^\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}$": "%Y-%m-%d %H:%M:%S",
    r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}$": "%Y-%m-%dT%H:%M:%S",
}
"""Patterns and formats of dates that are read several times as fast if all have the same one."""


class _Labels(NamedTuple):
    """The labels of a column: ``names[numbers[row]]`` is the label of a row."""

    numbers: Int32
    names: pl.Series


def to_interactions(
    table: Table, name: str, columns: Mapping[str, str | None] | None, rules: Rules
) -> Interactions:
    """Check a table and convert it; users and items are numbered in order of first appearance."""
    chosen = find_columns(table.header, table.frame.columns, columns)
    problems = Problems(table, rules)
    frame = table.frame
    for role in ("user", "item"):
        column = frame[chosen[role]]
        flat = not column.dtype.is_nested() and column.dtype != pl.Object
        _check_type(column, flat, f"one {role} per row", problems)
    users, items = map_ahead(_read_labels, [frame[chosen[role]] for role in ("user", "item")])
    _mark_missing(users, "user", problems)
    _mark_missing(items, "item", problems)
    ratings = _read_ratings(frame[chosen["rating"]], problems) if "rating" in chosen else None
    times = _read_times(frame[chosen["timestamp"]], problems) if "timestamp" in chosen else None
    problems.raise_first()
    if problems.bad.all():
        raise UnskewError(f"{table.path}: no usable rows are left; mend them")
    keep = ~problems.bad if problems.bad.any() else slice(None)
    user_numbers, user_ids = _number_kept(users, keep)
    item_numbers, item_ids = _number_kept(items, keep)
    return Interactions(
        name=name,
        users=user_numbers,
        items=item_numbers,
        user_ids=user_ids,
        item_ids=item_ids,
        ratings=None if ratings is None else ratings[keep].astype(np.float32),
        timestamps=None if times is None else times[keep],
        clock="none" if times is None else "time",
        min_user_rows=rules.min_user_rows,
        notes=problems.notes(),
    )


def number_labels(labels: pl.Series) -> tuple[Int32, pl.Series]:
    """Number labels in order of first appearance. Returns the number of each row's label, and the
    distinct labels by number, as text."""
    if labels.dtype in _WHOLE_NUMBERS:
        keys = labels
    else:
        labels = labels.cast(pl.String).cast(pl.Categorical)
        keys = labels.to_physical()
    numbering, numbers = Numbering(), np.empty(len(keys), np.int32)
    for start in range(0, len(keys), PART_ROWS):
        part = keys.slice(start, PART_ROWS).cast(pl.Int64).to_numpy(writable=True)
        numbering.add(part, numbers[start : start + PART_ROWS])
    names = pl.Series(numbering.keys) if keys is labels else labels.unique(maintain_order=True)
    return numbers, names.cast(pl.String)


def ticks_per_second(times: Int64) -> int:
    """Guess the unit of timestamps, as ticks per second (1: seconds, 1000: milliseconds ...): the
    coarsest unit in which the median timestamp is before the year 2200."""
    if max(-int(times.min()), int(times.max())) < _YEAR_2200:
        return 1
    middle = abs(float(np.median(times)))
    return next((ticks for ticks in _UNITS if middle < _YEAR_2200 * ticks), 10**9)


def _read_labels(column: pl.Series) -> _Labels:
    if column.dtype.is_float() and (column.fill_nan(0.0).fill_null(0.0) % 1 == 0).all():
        column = column.cast(pl.Int64, strict=False)
    if column.null_count():
        column = column.cast(pl.String, strict=False).fill_null("")
    numbers, names = number_labels(column)
    return _Labels(numbers, names.str.strip_chars())


def _mark_missing(labels: _Labels, role: str, problems: Problems) -> None:
    missing = (labels.names == "").to_numpy()
    if missing.any():
        problems.mark(missing[labels.numbers], f"missing {role}", f"the {role} is missing")


def _number_kept(labels: _Labels, keep: slice | Bool) -> tuple[Int32, list[Any]]:
    """Number the labels of the rows to keep, and list them by number."""
    numbers, names = labels
    if names.n_unique() < len(names):  # " 7" and "7" have become the same label
        merged, names = number_labels(names)
        numbers = merged[numbers]
    if not isinstance(keep, slice):
        numbers, old = number_by_appearance(numbers[keep])
        names = names.gather(old)
    return numbers, names.to_list()


def _read_ratings(column: pl.Series, problems: Problems) -> Float64:
    numeric = column.dtype.is_numeric() or column.dtype in (pl.String, pl.Boolean, pl.Null)
    _check_type(column, numeric, "ratings as numbers", problems)
    text = _strip(column)
    ratings = text.cast(pl.Float64, strict=False)
    problems.mark_unparsed(text, ratings, "rating")
    values = ratings.fill_null(0.0).to_numpy()
    problems.mark(np.isnan(values), "NaN rating", "the rating is NaN, not a number")
    too_large = np.abs(values) > np.finfo(np.float32).max  # ratings are kept as float32
    problems.mark(too_large, "infinite rating", "the rating is infinite or too large")
    return values


def _read_times(column: pl.Series, problems: Problems) -> Int64:
    """Read a column of timestamps as integers in one unit. Integers stay as written, dates become
    seconds or microseconds since 1970, and fractions of a second become microseconds."""
    dated = column.dtype in (pl.Date, pl.Datetime)
    numeric = column.dtype.is_numeric() or column.dtype in (pl.String, pl.Null)
    _check_type(column, dated or numeric, "timestamps as numbers or dates", problems)
    if dated:
        column = column.cast(pl.Datetime("us")).to_physical()
    text = _strip(column)
    whole = text.cast(pl.Int64, strict=False)
    if column.dtype.is_float() or (whole.is_null() & text.is_not_null()).any():
        floats = text.cast(pl.Float64, strict=False)
        dates = _parse_iso_dates(text) if text.dtype == pl.String else None
        if dates is not None and dates.count() > floats.count():
            problems.mark_unparsed(text, dates, "timestamp", "unreadable")
            micros = dates.fill_null(0).to_numpy(writable=True)
            times = micros // 10**6 if (micros % 10**6 == 0).all() else micros
        else:
            times = _times_from_floats(floats, whole, text, problems)
    else:
        problems.mark_unparsed(text, whole, "timestamp")
        times = whole.fill_null(0).to_numpy(writable=True)
    if not problems.rules.published:
        _mark_impossible_times(times, text, problems)
    return times


def _parse_iso_dates(text: pl.Series) -> pl.Series:
    """Convert ISO dates, with or without time of day and UTC offset (default UTC), to microseconds
    since 1970; null where the text is not a date."""
    for pattern, date_format in _PLAIN_DATES.items():
        if text.str.contains(pattern).all():
            return text.str.to_datetime(date_format, time_unit="us", strict=False).to_physical()
    parts = text.to_frame("text").select(pl.col("text").str.extract_groups(_ISO_DATE))
    zone = pl.when(pl.col("zone").is_in(["Z", "UTC"])).then(None).otherwise("zone")
    whole = pl.concat_str(
        "day",
        pl.lit("T"),
        pl.col("minute").fill_null("00:00"),
        pl.col("second").fill_null(":00"),
        zone.fill_null("+00:00"),
    )
    read = whole.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="us", strict=False)
    return parts.unnest("text").select(date=read)["date"].to_physical()


def _times_from_floats(
    floats: pl.Series, whole: pl.Series, text: pl.Series, problems: Problems
) -> Int64:
    """Convert decimal timestamps to integers; fractions of a second become microseconds."""
    floats = floats.set(~(floats.abs() < 2.0**63).fill_null(False), None)
    problems.mark_unparsed(text, floats, "timestamp")
    values = floats.fill_null(0.0).to_numpy()
    if (values % 1 != 0).any() and np.abs(values).max() < _YEAR_2200:
        problems.remarks.append("timestamps are fractions of a second; counted in microseconds")
        return np.round(values * 1e6).astype(np.int64)
    exact = whole.fill_null(0).to_numpy()
    return np.where(whole.is_null().to_numpy(), values.astype(np.int64), exact)


def _mark_impossible_times(times: Int64, text: pl.Series, problems: Problems) -> None:
    """Mark rows with times before 1970 or after 2200 as bad. The unit is guessed from the column's
    median, so milliseconds in a column of seconds are marked."""
    if problems.bad.all() or (times.min() >= 0 and times.max() < _YEAR_2200):
        return
    problems.mark(times < 0, "negative timestamp", text)
    if problems.bad.all():
        return
    ticks = ticks_per_second(times[~problems.bad])
    late = times > _YEAR_2200 * ticks
    if late.any():
        value = str(text[int(late.argmax())])
        describe = f"timestamp {value!r} is after the year 2200 in {_UNITS[ticks]}"
        problems.mark(late, "absurd timestamp", describe)


def _check_type(column: pl.Series, fits: bool, wanted: str, problems: Problems) -> None:
    """Raise an error unless ``fits``, that is if a column of a Parquet file or frame has a wrong
    type. Columns of text files always fit."""
    if not fits:
        raise UnskewError(
            f"{problems.table.path}: column {column.name!r} has the type {column.dtype}; "
            f"give {wanted}"
        )


def _strip(column: pl.Series) -> pl.Series:
    return column.str.strip_chars() if column.dtype == pl.String else column
