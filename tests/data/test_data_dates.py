"""Dates in a text file are timestamps; a column that holds none can be left out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from unskew import data
from unskew.types import UnskewError

DAYS = [datetime(2021, 2, day, 10, 30, 15, tzinfo=UTC) for day in (3, 1, 2)]


def written(path: Path, times: list[str], header: str = "user,item,date") -> Path:
    rows = [f"a,{n},{moment}" for n, moment in enumerate(times)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def seconds(moments: list[datetime]) -> list[int]:
    return [int(moment.timestamp()) for moment in moments]


@pytest.mark.parametrize(
    ("form", "lost"),
    [
        ("%Y-%m-%d", timedelta(hours=10, minutes=30, seconds=15)),
        ("%Y-%m-%d %H:%M", timedelta(seconds=15)),
        ("%Y-%m-%d %H:%M:%S", timedelta()),
        ("%Y-%m-%dT%H:%M:%S", timedelta()),
        ("%Y-%m-%dT%H:%M:%SZ", timedelta()),
        ("%Y-%m-%d %H:%M:%S UTC", timedelta()),
        ("%Y-%m-%dT%H:%M:%S.000+00:00", timedelta()),
    ],
)
def test_iso_dates_are_seconds_in_utc(tmp_path: Path, form: str, lost: timedelta) -> None:
    path = written(tmp_path / "f.csv", [moment.strftime(form) for moment in DAYS])
    loaded: Any = data.load(path)
    assert loaded.timestamps.tolist() == seconds([moment - lost for moment in DAYS])
    assert loaded.clock == "time"
    assert data.info(loaded).first_time == "2021-02-01"


def test_an_offset_and_a_fraction_count(tmp_path: Path) -> None:
    there = timezone(timedelta(hours=-5))
    times = [moment.astimezone(there).strftime("%Y-%m-%dT%H:%M:%S.25%z") for moment in DAYS]
    loaded: Any = data.load(written(tmp_path / "f.csv", times))
    assert loaded.timestamps.tolist() == [second * 10**6 + 250_000 for second in seconds(DAYS)]


@pytest.mark.parametrize("bad", ["soon", "2021-02-30", "2021-02-01T25:00:00", "7"])
def test_a_bad_date_among_good_ones_is_named_or_dropped(tmp_path: Path, bad: str) -> None:
    path = written(tmp_path / "f.csv", ["2021-02-01", "2021-02-02", bad, "2021-02-03"])
    with pytest.raises(UnskewError, match=f"line 4: unreadable timestamp '{bad}'"):
        data.load(path)
    mended: Any = data.load(path, skip_bad_rows=True)
    assert len(mended.timestamps) == 3
    assert mended.notes == ("dropped 1 row: 1 unreadable timestamp",)


@pytest.mark.parametrize("late", ["1969-07-20", "2300-01-01"])
def test_dates_outside_the_possible_are_refused(tmp_path: Path, late: str) -> None:
    path = written(tmp_path / "f.csv", ["2021-02-01", "2021-02-02", "2021-02-03", late])
    with pytest.raises(UnskewError, match=rf"line 5: .*{late}"):
        data.load(path)


def test_a_column_without_any_timestamp_can_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "f.csv", ["02/01/21", "02/02/21", "02/03/21"])
    with pytest.raises(UnskewError, match="line 2: non-numeric timestamp '02/01/21'"):
        data.load(path)
    with pytest.raises(UnskewError, match="no usable rows are left"):
        data.load(path, skip_bad_rows=True)
    loaded = data.load(path, columns={"timestamp": ""})
    assert loaded.timestamps is None
    assert loaded.clock == "none"
