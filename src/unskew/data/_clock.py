"""Timestamps: whole numbers, fractions of a second, or ISO dates; one clock for a whole file."""

from __future__ import annotations

import numpy as np
import polars as pl

from unskew.data._problems import Problems, mark_unparsed, refuse_types, stripped
from unskew.types import Float64, Int64, UnskewError

_YEAR_2200 = 7_258_118_400
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_ISO = (
    r"^(?<day>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?<minute>\d{2}:\d{2})(?<second>:\d{2}(?:\.\d+)?)?)?"
    r" ?(?<zone>Z|UTC|[+-]\d{2}:?\d{2})?$"
)


def read_clock(column: pl.Series, problems: Problems) -> Int64:
    dated = column.dtype in (pl.Date, pl.Datetime)
    numeric = column.dtype.is_numeric() or column.dtype in (pl.String, pl.Null)
    refuse_types(column, dated or numeric, "timestamps as numbers or dates", problems)
    if dated:
        column = column.cast(pl.Datetime("us")).to_physical()
    text = stripped(column)
    whole = text.cast(pl.Int64, strict=False)
    if column.dtype.is_float() or (whole.is_null() & text.is_not_null()).any():
        floats = text.cast(pl.Float64, strict=False)
        if text.dtype == pl.String and floats.null_count():
            dates = _iso_dates(text)
            if dates.count() > floats.count():
                return _from_dates(dates, text, problems)
            _refuse_words(text, floats, problems)
        mark_unparsed(text, floats, "timestamp", problems)
        return _from_floats(floats.fill_null(0.0).to_numpy(), whole, text, problems)
    mark_unparsed(text, whole, "timestamp", problems)
    values = whole.fill_null(0).to_numpy()
    _mark_impossible(values, text, problems)
    return values


def _iso_dates(text: pl.Series) -> pl.Series:
    """ISO dates, with or without a time of day and an offset, as microseconds since 1970; null
    where the text is none. Without an offset: UTC."""
    parts = text.to_frame("text").select(pl.col("text").str.extract_groups(_ISO)).unnest("text")
    zone = pl.when(pl.col("zone").is_in(["Z", "UTC"])).then(None).otherwise("zone")
    whole = pl.concat_str(
        "day",
        pl.lit("T"),
        pl.col("minute").fill_null("00:00"),
        pl.col("second").fill_null(":00"),
        zone.fill_null("+00:00"),
    )
    read = whole.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="us", strict=False)
    return parts.select(date=read)["date"].to_physical()


def _from_dates(dates: pl.Series, text: pl.Series, problems: Problems) -> Int64:
    mark_unparsed(text, dates, "timestamp", problems, "unreadable")
    micros = dates.fill_null(0).to_numpy()
    # Seconds where they tell all: clocks that count alike look alike.
    clock = micros // 10**6 if (micros % 10**6 == 0).all() else micros
    _mark_impossible(clock, text, problems)
    return clock


def _refuse_words(text: pl.Series, read: pl.Series, problems: Problems) -> None:
    """A column without a single timestamp is a wrong column, not a file of bad rows."""
    given = text.drop_nulls()
    given = given.filter(given != "")
    if read.count() == 0 and len(given) > 1:
        raise UnskewError(
            f"{problems.table.path}: column {text.name!r} holds no timestamps, but such as "
            f"{given[0][:40]!r}; write seconds or ISO dates (2024-01-31), or leave the column out "
            "with --columns timestamp="
        )


def _from_floats(values: Float64, whole: pl.Series, text: pl.Series, problems: Problems) -> Int64:
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


def _mark_impossible(values: Int64, text: pl.Series, problems: Problems) -> None:
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
