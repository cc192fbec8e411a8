"""Any file a user brings: formats, column names, and one clear sentence for each thing wrong."""

from __future__ import annotations

import gzip
from datetime import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from unskew import data
from unskew.types import UnskewError

HEADER = "user,item,rating,timestamp\n"
GOOD = HEADER + "".join(
    f"{user},{item},{rating},{1_600_000_000 + second}\n"
    for second, (user, item, rating) in enumerate(
        [("b", "x", 4), ("a", "y", 3.5), ("b", "y", 1), ("a", "x", 5), ("b", "z", 2), ("a", "z", 1)]
    )
)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(UnskewError) as caught:
        data.load(path, **options)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def check_good(interactions: Any) -> None:
    assert interactions.users.tolist() == [0, 1, 0, 1, 0, 1]
    assert interactions.items.tolist() == [0, 1, 1, 0, 2, 2]
    assert list(interactions.user_ids) == ["b", "a"]
    assert list(interactions.item_ids) == ["x", "y", "z"]
    assert interactions.ratings.tolist() == [4, 3.5, 1, 5, 2, 1]
    assert interactions.timestamps.tolist() == list(range(1_600_000_000, 1_600_000_006))
    assert interactions.clock == "time"
    assert interactions.min_user_rows == 1
    assert interactions.users.dtype == interactions.items.dtype == np.int32
    assert interactions.timestamps.dtype == np.int64


@pytest.mark.parametrize("separator", [",", "\t", ";", "|", "::", " "])
@pytest.mark.parametrize("packed", [False, True])
def test_delimiters_are_found_in_the_header(tmp_path: Path, separator: str, packed: bool) -> None:
    text = GOOD.replace(",", separator).encode()
    path = write(tmp_path / "my.ratings.gz", gzip.compress(text)) if packed else None
    interactions = data.load(path or write(tmp_path / "my.ratings", text))
    check_good(interactions)
    assert interactions.name == "my"


@pytest.mark.parametrize(
    "header",
    ["userId,movieId,rating,timestamp", "user_id,item_id,score,ts", "uid,mid,stars,time"],
)
def test_customary_column_names(tmp_path: Path, header: str) -> None:
    check_good(data.load(write(tmp_path / "f.csv", header + GOOD[len(HEADER) - 1 :])))


def test_recbole_header_types_are_stripped(tmp_path: Path) -> None:
    header = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    body = GOOD[len(HEADER) :].replace(",", "\t").replace("\n", ".0\n")
    check_good(data.load(write(tmp_path / "x.inter", header + body)))


def test_parquet(tmp_path: Path) -> None:
    frame = pl.read_csv(GOOD.encode())
    frame.write_parquet(tmp_path / "f.parquet")
    check_good(data.load(tmp_path / "f.parquet"))
    dated = frame.with_columns(pl.from_epoch("timestamp", time_unit="s"))
    dated.write_parquet(tmp_path / "dated.parquet")
    clock: Any = data.load(tmp_path / "dated.parquet").timestamps
    assert np.diff(clock).tolist() == [1_000_000] * 5
    dated.with_columns(pl.col("timestamp").dt.replace_time_zone("Asia/Tokyo")).write_parquet(
        tmp_path / "zoned.parquet"
    )
    zoned: Any = data.load(tmp_path / "zoned.parquet")
    assert (clock - zoned.timestamps).tolist() == [9 * 3_600 * 1_000_000] * 6


def test_damage_inside_a_parquet_file_is_a_sentence_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pl.read_csv(GOOD.encode()).write_parquet(path, compression="uncompressed")
    sound = path.read_bytes()
    for place in (16, 24, 34):
        path.write_bytes(sound[:place] + b"\xff\xff\xff" + sound[place + 3 :])
        assert "damaged or cut short" in refusal(path, skip_bad_rows=True)


def test_parquet_labels_that_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    pl.DataFrame({"user": [1.0] * 3, "item": [1.0, 2.0, 3.0]}).write_parquet(path)
    assert list(data.load(path).item_ids) == ["1", "2", "3"]
    pl.DataFrame({"user": [1.0] * 3, "item": [1.25, 1.5, 3.0]}).write_parquet(path)
    assert list(data.load(path).item_ids) == ["1.25", "1.5", "3.0"]


def test_a_parquet_file_with_brackets_in_its_name(tmp_path: Path) -> None:
    pl.read_csv(GOOD.encode()).write_parquet(tmp_path / "ratings[1].parquet")
    check_good(data.load(tmp_path / "ratings[1].parquet"))


def test_parquet_labels_that_are_bytes(tmp_path: Path) -> None:
    """Some programs do not say that a column of bytes is text."""
    path = tmp_path / "f.parquet"
    pl.DataFrame({"user": ["é", "b"], "item": [b"x", b"y"]}).cast(pl.Binary).write_parquet(path)
    assert list(data.load(path).user_ids) == ["é", "b"]
    frame = pl.DataFrame({"user": ["é", "b"], "item": [b"x", b"\xff"]})
    frame.write_parquet(path)
    assert "column 'item' holds bytes that are not UTF-8" in refusal(path)
    with pytest.raises(UnskewError, match="column 'item' holds bytes that are not UTF-8"):
        data.load(frame)


@pytest.mark.parametrize("values", [[[1], [2]], [{"a": 1}, {"a": 2}]])
def test_titles_and_labels_that_are_lists(tmp_path: Path, values: Any) -> None:
    path, more = write(tmp_path / "f.csv", GOOD), tmp_path / "more.parquet"
    pl.DataFrame({"item": ["x", "y"], "title": values}).write_parquet(more)
    with pytest.raises(UnskewError, match=r"more\.parquet: column 'title' has the type"):
        data.load(path, titles=more)
    pl.DataFrame({"item": values}).write_parquet(more)
    with pytest.raises(UnskewError, match=r"more\.parquet: column 'item' has the type"):
        data.load_split(path, test=path, items=more)


def test_line_ends_byte_order_mark_quotes_and_spaces(tmp_path: Path) -> None:
    text = "\ufeff" + GOOD.replace("b,x,4", '"b","x",4')
    check_good(data.load(write(tmp_path / "f.csv", text.replace("\n", "\r\n"))))
    check_good(data.load(write(tmp_path / "g.csv", GOOD.replace(",", ", ") + "\n\n")))


def test_quoted_fields_may_hold_separators_and_line_breaks(tmp_path: Path) -> None:
    text = 'user,item\na,"x,1"\na,"y\n2"\na,z\n,z\n'
    assert "line 6: the user is missing" in refusal(write(tmp_path / "f.csv", text))
    assert list(data.load(tmp_path / "f.csv", skip_bad_rows=True).item_ids) == ["x,1", "y\n2", "z"]


def test_columns_can_be_named_or_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", GOOD.replace("user,item", "who,what"))
    check_good(data.load(path, columns={"user": "who", "item": "what"}))
    bare = data.load(path, columns={"user": "who", "item": "what", "rating": None})
    assert bare.ratings is None
    assert "'whom'" in refusal(path, columns={"user": "whom", "item": "what"})
    assert "did you mean 'who'" in refusal(path, columns={"user": "whom", "item": "what"})
    with pytest.raises(UnskewError, match="'film'"):
        data.load(path, columns={"film": "what"})


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_one_column_can_have_two_roles(tmp_path: Path, suffix: str) -> None:
    path, frame = tmp_path / f"f.{suffix}", pl.DataFrame({"user": [3, 3, 5], "item": [5, 7, 3]})
    frame.write_csv(path) if suffix == "csv" else frame.write_parquet(path)
    interactions: Any = data.load(
        path, columns=dict.fromkeys(("item", "rating", "timestamp"), "item")
    )
    assert interactions.ratings.tolist() == interactions.timestamps.tolist() == [5, 7, 3]


def test_without_ratings_and_timestamps(tmp_path: Path) -> None:
    interactions = data.load(write(tmp_path / "f.csv", "user,item\na,1\na,2\na,3\n"))
    assert interactions.ratings is None
    assert interactions.timestamps is None
    assert interactions.clock == "none"


def test_a_name_with_a_null_byte_gets_a_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", GOOD)
    for options in ({"titles": "a\0b"}, {"item_features": "a\0b"}):
        with pytest.raises(UnskewError, match="no such file"):
            data.load(path, **options)
    with pytest.raises(UnskewError, match="no such file"):
        data.load_split("a\0b", test=path)


def test_titles_from_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "f.csv", GOOD)
    titles = write(tmp_path / "t.csv", 'item,title\ny,"Why, oh why"\nx,Ex\n')
    entitled: Any = data.load(path, titles=titles)
    assert list(entitled.titles) == ["Ex", "Why, oh why", "z"]
    with pytest.raises(UnskewError, match="item and title"):
        data.load(path, titles=path)


LINE_FAULTS = {
    "ragged, too many": ("a,q,3,1600000000,9", "5 fields", "1 ragged line"),
    "ragged, too few": ("a,q", "2 fields", "1 ragged line"),
    "rating is a word": (
        "a,q,good,1600000000",
        "non-numeric rating 'good'",
        "1 non-numeric rating",
    ),
    "rating is NaN": ("a,q,NaN,1600000000", "NaN", "1 NaN rating"),
    "rating is infinite": ("a,q,inf,1600000000", "infinite", "1 infinite rating"),
    "rating is above float32": ("a,q,1e39,1600000000", "too large", "1 infinite rating"),
    "rating is missing": ("a,q,,1600000000", "rating is missing", "1 missing rating"),
    "user is missing": (",q,3,1600000000", "user is missing", "1 missing user"),
    "item is missing": ("a,,3,1600000000", "item is missing", "1 missing item"),
    "time is a word": ("a,q,3,soon", "non-numeric timestamp 'soon'", "1 non-numeric timestamp"),
    "time is negative": ("a,q,3,-5", "negative timestamp '-5'", "1 negative timestamp"),
    "time is in the year 3000": ("a,q,3,32503680000", "after the year 2200", "1 absurd timestamp"),
    "time is beyond 64 bits": (
        "a,q,3,99999999999999999999",
        "non-numeric",
        "1 non-numeric timestamp",
    ),
}


@pytest.mark.parametrize("fault", LINE_FAULTS)
@pytest.mark.parametrize("quoted", [False, True])
def test_a_bad_line_is_named_or_dropped(tmp_path: Path, fault: str, quoted: bool) -> None:
    line, said, noted = LINE_FAULTS[fault]
    text = GOOD.replace("b,z,2", '"b",z,2') if quoted else GOOD
    path = write(tmp_path / "f.csv", text + line + "\n")
    message = refusal(path)
    assert f"{path}, line 8: " in message
    assert said in message
    assert "skip_bad_rows" in message
    mended = data.load(path, skip_bad_rows=True)
    check_good(mended)
    assert mended.notes == (f"dropped 1 row: {noted}",)


def test_a_byte_order_mark_inside_is_part_of_a_label(tmp_path: Path) -> None:
    """Also in the first row, with which the reader of blocks begins."""
    text = HEADER + "\ufeffb,x,4,1600000000\n" + GOOD[len(HEADER) :]
    loaded = data.load(write(tmp_path / "f.csv", text))
    assert list(loaded.user_ids) == ["\ufeffb", "b", "a"]


def test_the_topmost_bad_line_is_reported_and_all_are_counted(tmp_path: Path) -> None:
    bad = "a,q\nb,w,high,1600000000\nb,v,low,1600000000\n"
    path = write(tmp_path / "f.csv", HEADER + bad + GOOD[len(HEADER) :])
    assert "line 2" in refusal(path)
    notes = data.load(path, skip_bad_rows=True).notes
    assert notes == ("dropped 3 rows: 1 ragged line, 2 non-numeric ratings",)


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_the_unit_of_time_is_taken_from_the_typical_value(tmp_path: Path, scale: int) -> None:
    times = [1_600_000_000 * scale + n for n in range(3)]
    rows = "".join(f"a,{n},{moment}\n" for n, moment in enumerate(times))
    path = write(tmp_path / "f.csv", "user,item,timestamp\n" + rows)
    loaded: Any = data.load(path)
    assert loaded.timestamps.tolist() == times
    late = 7_300_000_000 * scale
    assert "line 5" in refusal(write(path, path.read_text() + f"a,9,{late}\n"))


def test_fractions_of_a_second_keep_their_order(tmp_path: Path) -> None:
    rows = "a,1,1600000000.5\na,2,1600000000.25\na,3,1600000000\n"
    interactions: Any = data.load(write(tmp_path / "f.csv", "user,item,time\n" + rows))
    assert np.argsort(interactions.timestamps).tolist() == [2, 1, 0]
    assert "microseconds" in interactions.notes[0]


def test_short_histories_and_repeated_pairs_are_read(tmp_path: Path) -> None:
    text = GOOD + "c,x,5,1600000000\nc,y,5,1600000000\nc,y,4,1600000000\nd,z,0,1600000000\n"
    path = write(tmp_path / "f.csv", text)
    found = data.info(data.load(path))
    assert (found.n_users, found.n_rows, found.n_pairs) == (3, 9, 8)
    asked = data.load(path, min_user_rows=4)
    assert asked.min_user_rows == 4
    assert len(asked.user_ids) == 4


WHOLE_FILE_FAULTS = {
    "empty": (b"", "empty"),
    "blank": (b"\n \n", "empty"),
    "header only": (HEADER.encode(), "no rows"),
    "no user column": (b"a,item\n1,2\n", "line 1: no user column"),
    "neither column": (b"a,b\n1,2\n", "no user column and no item column"),
    "no header": (b"1,2,3\n1,3,4\n", "add a header line"),
    "one endless line": (b"{" + b"x" * 200_000 + b",}\n1,2\n", "line 1: no user column"),
    "column twice": (b"user,item,user\n1,2,3\n", "'user' twice"),
    "latin-1": (GOOD.replace("a,x", "André,x").encode("latin-1"), "line 5: byte 0xe9"),
    "UTF-16": (GOOD.encode("utf-16"), "UTF-16"),
    "UTF-16 without mark": (GOOD.encode("utf-16-le"), "line 1: byte 0x00"),
    "truncated gzip": (gzip.compress(GOOD.encode())[:-12], "truncated"),
    "damaged gzip": (gzip.compress(GOOD.encode())[:-12] + b"0" * 12, "damaged"),
    "zip": (b"PK\x03\x04\x14\x00\x00\x00" + b"0" * 40, "zip archive"),
    "corrupt parquet": (b"PAR1" + b"0" * 40, "Parquet"),
    "truncated parquet": (b"PAR1" + b"\0" * 40 + b"PAR1", "Parquet"),
    "nothing usable": (b"user,item\n,\n,\n", "missing"),
}


@pytest.mark.parametrize("fault", WHOLE_FILE_FAULTS)
def test_a_file_that_cannot_be_read(tmp_path: Path, fault: str) -> None:
    content, said = WHOLE_FILE_FAULTS[fault]
    path = write(tmp_path / "f.dat", content)
    assert said in refusal(path)
    refusal(path, skip_bad_rows=True)


def test_a_wrong_ending_opens_a_folder_and_a_missing_file_do_not(tmp_path: Path) -> None:
    check_good(data.load(write(tmp_path / "f.csv.gz", GOOD)))
    (tmp_path / "folder").mkdir()
    assert "without train and test files" in refusal(tmp_path / "folder")
    assert "no such file" in refusal(tmp_path / "none.csv")
    assert "no such file" in refusal(tmp_path / ("long" * 100))
    with pytest.raises(UnskewError, match="did you mean 'ml-100k'"):
        data.load("ml-100")


def test_parquet_faults_name_the_row(tmp_path: Path) -> None:
    path = tmp_path / "f.parquet"
    frame = pl.DataFrame({"user": ["a"] * 4, "item": [1, 2, 3, 4], "rating": [1.0, 2.0, None, 3.0]})
    frame.write_parquet(path)
    assert "row 3: the rating is missing" in refusal(path)
    assert data.load(path, skip_bad_rows=True).item_ids == ["1", "2", "4"]
    pl.DataFrame({"user": [["a"]], "item": [1]}).write_parquet(path)
    assert "'user' has the type List" in refusal(path)
    pl.DataFrame({"user": ["a"], "item": [1], "rating": [[1]]}).write_parquet(path)
    assert "ratings as numbers" in refusal(path)
    pl.DataFrame({"user": ["a"], "item": [1], "time": [time(1, 2)]}).write_parquet(path)
    assert "timestamps as numbers or dates" in refusal(path)
    frame.clear().write_parquet(path)
    assert "no rows" in refusal(path)
