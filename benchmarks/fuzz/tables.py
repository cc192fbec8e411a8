"""Data files: a table with faults in rows, bytes, types and options, read and split.

Whatever is accepted must come out the same from the fast reader and from the one that reads line by
line, and changes that mean nothing (line ends, quotes, gzip ...) must change nothing.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl

from benchmarks.fuzz.cases import Failure, Kind, attempt
from unskew import data
from unskew.data import _tables
from unskew.evaluation import find_protocol, prepare
from unskew.types import Interactions

HEADER = ["user", "item", "rating", "timestamp"]
FIELDS = (
    *("", " ", "  7 ", "NaN", "nan", "inf", "-inf", "null", "None", "NA", "-", "0", "-1", "1e400"),
    *("9" * 19, "9" * 40, "-" + "9" * 30, "1e30", "1.5", "07", "+7", "7.0", "1_000", "٣", "½", "é"),
    *("true", "0x10", "1,5", "a;b", "a|b", "a::b", "a\tb", '"', '""', '"a', 'a"b', '"a,b"', "'x'"),
    *("2020-01-01", "2020-13-45", "2020-02-30T25:00", "2020-01-01 10:00:00", "01/02/2020"),
    *("2020-01-01T00:00:00Z", "2020-01-01T00:00:00.5+02:00", "9999-12-31", "0001-01-01", "1e18"),
    *("-62135596800", "253402300800", "1600000000000", "1600000000.25", "18446744073709551616"),
    *("\x00", "\x1f", "\x1a", "\u2028", "\ufeff", "🎬", "日本", "x" * 5000, "a\nb", "a\r", "\x0b"),
)
"""Fields of all sorts."""
HEADERS = (
    *("user,item,user,timestamp", "User,ITEM,Rating,Timestamp", "uid,movieId,stars,ts", ",,,"),
    *(
        "user,item,rating",
        "user,item,rating,timestamp,more",
        "1,2,3,4",
        '"user","item",a,b',
        "user",
    ),
    *("user_id:token,item_id:token,rating:float,timestamp:float", "user:token,item,rating,when"),
    *(" user , item ,rating,timestamp", "user,item,item_id,timestamp", "user\u200b,item,a,b", "#"),
)
BYTES = (b"\0", b"\xff", b"\xfe\xff", b"\xed\xa0\x80", b"\xc3", b"\r", b"\n\n", b'"', b"\x1a", b"")
CODECS = ("utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252", "shift_jis", "utf-7")
ENDINGS = (".csv", ".csv", ".csv", ".tsv", ".txt", ".inter", ".gz", ".csv.gz", "", ".")
PROTOCOLS = ("leak-free", "sequential", "ratio", "time", "paper")
Rows = list[list[str]]


class Tables(Kind):
    name, share = "data-files", 0.35

    def play(self, rng: random.Random) -> str | None:
        for path in Path().iterdir():
            path.unlink()
        options: dict[str, Any] = {"skip_bad_rows": rng.random() < 0.4}
        if rng.random() < 0.1:
            options["min_user_rows"] = rng.choice((1, 2, 100, 0, -5, 2**40))
        if rng.random() < 0.1:
            columns = ({"user": "user"}, {"timestamp": None}, {"user": "x"}, {"who": "user"})
            options["columns"] = rng.choice((*columns, {"user": "item"}, {"rating": "timestamp"}))
        kind = rng.random()
        if kind < 0.1:
            return self._frame(rng, options)
        if kind < 0.2:
            return self._split(rng, options)
        if kind < 0.25:
            return self._beside(rng, options)
        return self._text(rng, options)

    def _text(self, rng: random.Random, options: dict[str, Any]) -> str | None:
        rows = good_rows(rng)
        same = rng.random() < 0.2
        path = Path("own" + (".csv" if same else rng.choice(ENDINGS)))
        path.write_bytes(_neutral(rows, rng) if same else _spoilt(rows, rng))
        self._describe(path, options, "means nothing" if same else "")
        if not same:
            return self._read(lambda: data.load(path, **options), rng, text=True)
        Path("good.csv").write_text("\n".join(map(",".join, [HEADER, *rows])) + "\n")
        found, told = attempt(lambda: data.load(path))
        if told is not None:
            raise Failure(f"refused a good table: {told}")
        _check_same(data.load("good.csv"), found, "a change that means nothing")
        return self._read(lambda: data.load(path), rng, text=True)

    def _frame(self, rng: random.Random, options: dict[str, Any]) -> str | None:
        """A Parquet file with columns of odd types, or with damaged bytes; or a frame in memory."""
        frame = _odd_frame(rng)
        path = Path("own" + rng.choice((".parquet", ".parquet", ".csv", ".pq")))
        self.about = [f"{dict(zip(frame.columns, frame.dtypes, strict=True))} {options} {path}"]
        if rng.random() < 0.3:
            return self._read(lambda: data.load(frame, **options), rng)
        try:
            frame.write_parquet(path)
        except pl.exceptions.PolarsError:  # a type that Parquet does not have
            return self._read(lambda: data.load(frame, **options), rng)
        if rng.random() < 0.03:  # each is decoded in a process of its own first: slow
            content = bytearray(path.read_bytes())
            for _ in range(rng.choice((1, 5))):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content[: rng.choice((None, None, rng.randrange(len(content))))])
            self.about.append(f"damaged: {bytes(content)!r}")
            return self._read(lambda: data.load(path, **options), rng)
        with mock.patch.object(sys, "executable", ""):
            return self._read(lambda: data.load(path, **options), rng)

    def _split(self, rng: random.Random, options: dict[str, Any]) -> str | None:
        """Files of a split, as files or in a folder."""
        options.pop("columns", None)
        files = {}
        for part in ("train", "validation", "test", "users", "items"):
            if rng.random() < 0.8:
                rows = good_rows(rng)
                path = files[part] = Path(f"{part}.csv")
                good = rng.random() < 0.7
                path.write_bytes(_neutral(rows, rng) if good else _spoilt(rows, rng))
                self._describe(path, options)
        if rng.random() < 0.5:
            return self._read(lambda: data.load(".", **options), rng)
        if "train" not in files:
            return None
        return self._read(lambda: data.load_split(**files, **options), rng)

    def _beside(self, rng: random.Random, options: dict[str, Any]) -> str | None:
        """A good table with a table of titles or features that is not."""
        rows, more = good_rows(rng), [["item", rng.choice(("title", "a", "name"))]]
        more += [[f"i{n}", rng.choice(FIELDS)] for n in range(rng.randrange(12))]
        Path("own.csv").write_text("\n".join(map(",".join, [HEADER, *rows])) + "\n")
        path = Path("more.csv")
        path.write_bytes(_spoilt(more[1:], rng, ",".join(more[0])))
        what = rng.choice(("titles", "item_features"))
        options[what] = path
        self._describe(path, options)
        if rng.random() < 0.3:
            frame = pl.DataFrame([_odd_column(4, rng).alias(name) for name in more[0]])
            self.about = [f"{what}: {frame}"]
            if what == "item_features":
                options[what] = frame
            else:
                frame = frame.cast({pl.Duration: pl.Int64, pl.Null: pl.Int64})
                path = options[what] = Path("more.pq")
                frame.write_parquet(path)
            with mock.patch.object(sys, "executable", ""):
                return self._read(lambda: data.load("own.csv", **options), rng)
        return self._read(lambda: data.load("own.csv", **options), rng)

    def _describe(self, path: Path, options: dict[str, Any], more: str = "") -> None:
        self.about.append(f"{path} {options} {more}: {path.read_bytes()[:900]!r}")

    def _read(
        self, load: Callable[[], Interactions], rng: random.Random, *, text: bool = False
    ) -> str | None:
        """Load, count and split; compare with what the slow reader finds in a text."""
        found, told = attempt(load)
        if text:
            with mock.patch.object(_tables, "_read_fast", return_value=None):
                slow, told_slow = attempt(load)
            if (told is None) != (told_slow is None):
                raise Failure(f"the fast reader says {told!r}, the other {told_slow!r}")
            if slow is not None:
                _check_same(found, slow, "the reader line by line")
        if found is None:
            return told
        _check_sound(found)
        told = attempt(lambda: data.info(found))[1]
        return told or attempt(lambda: prepare(found, find_protocol(rng.choice(PROTOCOLS))))[1]


def good_rows(rng: random.Random) -> Rows:
    """Rows of a few users and items."""
    n_users, n_items = rng.choice((1, 2, 5, 9)), rng.choice((1, 3, 8, 12))
    rows = [
        [f"u{user}", f"i{rng.randrange(n_items)}", str(rng.randrange(1, 6)), str(10**9 + at)]
        for user in range(n_users)
        for at in range(rng.choice((1, 3, 6, 9)))
    ]
    rng.shuffle(rows)
    return rows


def _spoilt(rows: Rows, rng: random.Random, header: str = ",".join(HEADER)) -> bytes:
    """A text with some faults."""
    rows = [list(row) for row in rows]
    if rng.random() < 0.3:
        header = rng.choice(HEADERS)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        row = rng.choice(rows) if rows else []
        what = rng.random()
        if what < 0.6 and row:
            row[rng.randrange(len(row))] = rng.choice(FIELDS)
        elif what < 0.7 and row:
            del row[rng.randrange(len(row))]
        elif what < 0.8:
            row.append(rng.choice(FIELDS))
        elif what < 0.85 and row:
            value, at = rng.choice(FIELDS), rng.randrange(len(row))
            for one in rows:  # a whole column
                one[at : at + 1] = [value]
        elif what < 0.95:
            rows.insert(rng.randrange(len(rows) + 1), [])
        else:
            rows = rows[: rng.choice((0, 1))]
    separator = rng.choice((",", ",", ",", "\t", ";", "|", "::", " "))
    lines = [header.replace(",", separator), *map(separator.join, rows)]
    text = rng.choice(("\n", "\n", "\n", "\r\n", "\r")).join(lines) + rng.choice(("\n", "", "\n\n"))
    if rng.random() < 0.1:
        text = rng.choice(("\ufeff", "\n\n", " ", "\ufeff\ufeff", "# comment\n", "\x00")) + text
    content = text.encode(rng.choice(CODECS) if rng.random() < 0.05 else "utf-8", "replace")
    for _ in range(rng.choice((0, 0, 0, 0, 1, 3))):
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.choice(BYTES) + content[at + rng.choice((0, 1)) :]
    if rng.random() < 0.03:
        content = content[: rng.randrange(len(content) + 1)]
    if rng.random() < 0.03:
        content = gzip.compress(content)[: rng.choice((None, 15, -4))]
    return content


def _neutral(rows: Rows, rng: random.Random) -> bytes:
    """The rows in another form: every change means nothing."""
    order, separator = list(range(len(HEADER))), rng.choice((",", "\t", ";", "|", "::"))
    rng.shuffle(order)
    table = [[row[at] for at in order] for row in [HEADER, *rows]]
    if rng.random() < 0.3:
        table = [[*row, "more" if row is table[0] else rng.choice(("", "x", "7"))] for row in table]
    if separator in ",;" and rng.random() < 0.5:
        table = [[f'"{one}"' if rng.random() < 0.3 else one for one in row] for row in table]
    if separator != "\t" and rng.random() < 0.3:
        table = [[f" {one}" if '"' not in one else one for one in row] for row in table]
    lines = [separator.join(row) for row in table]
    text = rng.choice(("\n", "\r\n", "\r")).join(lines) + rng.choice(("", "\n", "\n\n"))
    content = rng.choice(("", "\ufeff")).encode() + text.encode()
    return gzip.compress(content) if rng.random() < 0.2 else content


def _odd_frame(rng: random.Random) -> pl.DataFrame:
    """A frame whose columns may have odd types and values."""
    n = rng.choice((0, 1, 6, 20))
    columns = []
    for name in rng.choice((HEADER, HEADER, HEADER[:2], ["user", "item", "more"], ["item"])):
        plain = name in ("user", "item") and rng.random() < 0.5
        column = pl.Series([f"{name[0]}{rng.randrange(5)}" for _ in range(n)], dtype=pl.String)
        columns.append((column if plain else _odd_column(n, rng)).alias(name))
    return pl.DataFrame(columns)


def _odd_column(n: int, rng: random.Random) -> pl.Series:
    numbers = [rng.randrange(5) for _ in range(n)]
    pools: list[tuple[Any, list[Any]]] = [
        (pl.Int64, [2**63 - 1, -(2**63), 0, 5, 10**9]),
        (pl.UInt64, [2**64 - 1, 0, 10**9]),
        (pl.Int128, [2**100, 1]),
        (pl.Int8, [-128, 127]),
        (pl.Float64, [float("nan"), float("inf"), 1e308, -0.0, 1.5, 1e9]),
        (pl.Float32, [float("nan"), 3e38, 1.0]),
        (pl.String, ["", "a", "7", " 7", "é", "\x00", "2020-01-01"]),
        (pl.Binary, [b"\xff", b"a"]),
        (pl.Boolean, [True, False]),
        (pl.Date, [date(2020, 1, 1), date(1, 1, 1), date(9999, 1, 1)]),
        (pl.Datetime("ns"), [datetime(2020, 1, 1), datetime(1970, 1, 1)]),
        (pl.Datetime("us", "UTC"), [datetime(2020, 1, 1), datetime(9999, 1, 1)]),
        (pl.Duration, [None]),
        (pl.Time, [None]),
        (pl.Null, [None]),
        (pl.List(pl.Int64), [[1], [], [1, 2]]),
        (pl.Array(pl.Int64, 2), [[1, 2]]),
        (pl.Struct({"a": pl.Int64}), [{"a": 1}]),
        (pl.Categorical, ["a", "b"]),
        (pl.Enum(["a", "b"]), ["a", "b"]),
        (pl.Decimal(20, 2), [1, 2]),
    ]
    kind, values = rng.choice(pools)
    blanks = [None] if rng.random() < 0.3 else []
    return pl.Series([rng.choice([*values, *blanks]) for _ in numbers], dtype=kind, strict=False)


def _check_same(a: Interactions, b: Interactions, what: str) -> None:
    """Raise a Failure unless two readings are equal, but for the path and notes."""
    for name in ("users", "items", "ratings", "timestamps"):
        ours, theirs = getattr(a, name), getattr(b, name)
        if (ours is None) != (theirs is None) or not np.array_equal(ours, theirs):
            raise Failure(f"{what} gives other {name}: {ours} and {theirs}")
    labels = [(list(one.user_ids), list(one.item_ids), one.clock) for one in (a, b)]
    if labels[0] != labels[1]:
        raise Failure(f"{what} gives other labels: {labels}")


def _check_sound(found: Interactions) -> None:
    """Raise a Failure if a number of a user or item has no label, or a label is no text."""
    for numbers, labels in ((found.users, found.user_ids), (found.items, found.item_ids)):
        named = len(labels) and all(isinstance(label, str) for label in labels)
        if not len(numbers) or not named or numbers.min() < 0 or numbers.max() >= len(labels):
            raise Failure(f"numbers without labels: {numbers}, {labels}")
        if len(set(labels)) < len(labels):
            raise Failure(f"the same label twice: {labels}")
    for values in (found.ratings, found.timestamps):
        if values is not None and (
            len(values) != len(found.users) or not np.isfinite(values).all()
        ):
            raise Failure(f"values that are no numbers: {values}")
