"""Text that is read in blocks: the same tables as line by line, wherever a block ends."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from unskew import data
from unskew.data import _blocks, _tables
from unskew.types import Interactions, UnskewError

ODD = ("07", "+7", "-0", " 7", "7 ", "9223372036854775808", "u1", "é", '"q"', "")
"""Labels that integers would not give back."""


@pytest.fixture(params=[16, 60, 1 << 24])
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(_blocks, "_BLOCK_BYTES", request.param)
    return int(request.param)


def outcome(path: Path) -> object:
    """What loading gives, as something that can be compared; a sentence if it is refused."""
    try:
        one: Interactions = data.load(path, skip_bad_rows=True)
    except UnskewError as error:
        return str(error)
    times = None if one.timestamps is None else one.timestamps.tolist()
    ratings = None if one.ratings is None else one.ratings.tolist()
    labels = list(one.user_ids), list(one.item_ids)
    return one.users.tolist(), one.items.tolist(), labels, times, ratings, one.notes


def lines(seed: int, separator: str) -> list[str]:
    """A file with mostly whole numbers, and a few odd labels and short or empty lines."""
    draw = random.Random(seed)
    rows = [separator.join(("user", "item", "rating", "timestamp", "note"))]
    for _ in range(draw.randrange(1, 60)):
        user, item = str(draw.randrange(9)), str(draw.randrange(-3, 9))
        if draw.random() < 0.03:
            user = draw.choice(ODD)
        fields = [user, item, draw.choice(("3", "4.5")), str(10**9 + draw.randrange(99)), ""]
        rows.append(separator.join(fields[: 3 if draw.random() < 0.01 else 5]))
        if draw.random() < 0.01:
            rows.append("")
    return rows


@pytest.mark.parametrize("separator", [",", "\t", "::"])
def test_blocks_give_what_lines_give(
    tmp_path: Path, block_bytes: int, separator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f.csv"
    for seed in range(40):
        text = ("\r\n" if seed % 3 == 0 else "\n").join(lines(seed, separator))
        path.write_bytes(gzip.compress(text.encode()) if seed % 5 == 0 else text.encode())
        fast = outcome(path)
        with monkeypatch.context() as patch:
            patch.setattr(_tables, "_read_fast", lambda *_: None)
            assert outcome(path) == fast, text


def test_whole_numbers_stay_integers_until_one_would_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["user", "item"]

    def column(users: list[str]) -> list[object]:
        blocks = [f"{user},1\n".encode() for user in users]
        frame = _blocks.parse_lines(blocks, ",", names, ["user"])
        assert frame is not None
        return frame["user"].to_list()

    assert column(["7", "-12", "0"]) == [7, -12, 0]
    for odd in ("07", "+7", " 7", "-0", "seven"):
        assert column(["7", odd, "8"]) == ["7", odd, "8"]
    assert column(["7", "", "8"]) == ["7", "", "8"]


@pytest.mark.parametrize("bad", ["1,2,3", "1", "", "1,2\0", '1,"2', "\x1f,1,2"])
def test_a_doubtful_line_is_left_to_the_slow_reader(bad: str) -> None:
    blocks = [b"1,2\n", f"{bad}\n3,4\n".encode()]
    assert _blocks.parse_lines(blocks, ",", ["user", "item"], ["user"]) is None
    assert _blocks.parse_lines([], ",", ["user", "item"], ["user"]) is None


def test_blank_lines_at_the_end_are_no_doubt(tmp_path: Path, block_bytes: int) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(b"user,item\r\n1,2\r\n3,4\r\n\r\n\r\n")
    table = _tables._read_fast(path, None, None, None)
    assert table is not None
    assert table.frame.rows() == [(1, 2), (3, 4)]


def test_a_bad_row_is_named_by_its_line_in_any_block(tmp_path: Path, block_bytes: int) -> None:
    rows = ["user,item,timestamp", *(f"{n % 5},{n},{10**9 + n}" for n in range(40))]
    rows[30] = "3,3,soon"
    path = tmp_path / "f.csv"
    path.write_text("\n".join(rows))
    with pytest.raises(UnskewError, match=r"line 31: non-numeric timestamp 'soon'"):
        data.load(path)


def test_only_the_columns_in_use_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("user,item,comment\n1,2,a\n3,4,b\n")
    table = _tables.read_table(path, lambda header, names: ["item", "user"])
    assert table.frame.columns == ["item", "user"]
    table.frame.write_parquet(tmp_path / "f.parquet")
    table = _tables.read_table(tmp_path / "f.parquet", lambda header, names: ["user"])
    assert table.frame["user"].to_list() == [1, 3]


def test_unsigned_and_negative_labels() -> None:
    labels = np.array([2**64 - 1, 2**63, 5], np.uint64)
    frame = {"user": labels, "item": np.array([-1, -(2**63), 3])}
    one = data.load(pl.DataFrame(frame))
    assert list(one.user_ids) == ["18446744073709551615", "9223372036854775808", "5"]
    assert list(one.item_ids) == ["-1", "-9223372036854775808", "3"]
