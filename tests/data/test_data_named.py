"""Data sets known by name: the publishers' own files, the search order, the published counts."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from unskew import data
from unskew.types import UnskewError

PLAIN = "user,item,rating,timestamp\n7,30,5,9\n7,20,0,8\n8,30,1,7\n"


def write(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode(encoding))
    return path


@pytest.fixture(autouse=True)
def own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the real cache or reaches the publishers."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("UNSKEW_MIRROR", "http://127.0.0.1:9/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("UNSKEW_DATA", raising=False)


def test_ml_100k_as_published(tmp_path: Path) -> None:
    write(tmp_path / "ml-100k/u.data", "9001\t501\t3\t1111\n9002\t502\t2\t2222\n")
    write(tmp_path / "ml-100k/u.item", "501|Café Nowhere|1-Jan-2000\n502|Other|x\n", "latin-1")
    got: Any = data.load("ml-100k", data_dir=tmp_path)
    assert got.name == "ml-100k"
    assert list(got.user_ids) == ["9001", "9002"]
    assert got.timestamps.tolist() == [1111, 2222]
    assert list(got.titles) == ["Café Nowhere", "Other"]
    assert (got.clock, got.min_user_rows, got.notes) == ("time", 10, ())


def test_ml_1m_as_published(tmp_path: Path) -> None:
    write(tmp_path / "ml-1m/ratings.dat", "9001::501::5::1111\r\n9001::502::3::2222\r\n")
    write(tmp_path / "ml-1m/movies.dat", "502::Über: Nichts::Animation\n", "latin-1")
    got: Any = data.load("ml-1m", data_dir=tmp_path)
    assert got.ratings.tolist() == [5, 3]
    assert list(got.titles) == ["501", "Über: Nichts"]


def test_hetrec2011_as_published(tmp_path: Path) -> None:
    rows = "userID\tmovieID\trating\ttimestamp\n9001\t501\t1\t7000\n9001\t502\t4.5\t8000\n"
    write(tmp_path / "hetrec2011/user_ratedmovies-timestamps.dat", rows)
    titles = "id\ttitle\timdbID\n501\tOld Hat\t0\n502\tMañana\t0\n"
    write(tmp_path / "hetrec2011/movies.dat", titles, "latin-1")
    got: Any = data.load("hetrec2011", data_dir=tmp_path)
    assert got.ratings.tolist() == [1, 4.5]
    assert got.timestamps.tolist() == [7000, 8000]
    assert list(got.titles) == ["Old Hat", "Mañana"]
    assert got.clock == "time"


def test_lastfm_tags_are_not_ratings_and_odd_rows_stay(tmp_path: Path) -> None:
    rows = "userID\tartistID\ttagID\ttimestamp\n9001\t501\t13\t7000\n9001\t501\t0\t-8000\n"
    write(tmp_path / "lastfm-2k/user_taggedartists-timestamps.dat", rows)
    write(tmp_path / "lastfm-2k/artists.dat", "id\tname\turl\n501\tMörk\thttp://x\n")
    got: Any = data.load("lastfm-2k", data_dir=tmp_path)
    assert got.ratings is None
    assert got.items.tolist() == [0, 0]
    assert got.timestamps.tolist() == [7000, -8000]
    assert list(got.titles) == ["Mörk"]
    assert got.min_user_rows == 5
    plain = "user,item,rating,timestamp\n9001,501,13,5\n9001,501,0,5\n"
    write(tmp_path / "lastfm-2k/ratings.csv", plain)
    assert data.load("lastfm-2k", data_dir=tmp_path).ratings is None


def test_filmtrust_order_stands_in_for_time(tmp_path: Path) -> None:
    write(tmp_path / "filmtrust/ratings.txt", "91 7 2\n91 5 4\n92 5 0.5\n92 9 1\n")
    got: Any = data.load("filmtrust", data_dir=tmp_path)
    assert got.timestamps.tolist() == [0, 1, 1, 2]
    assert got.clock == "order"
    assert data.info(got).first_time is None
    write(tmp_path / "filmtrust/ratings.csv", PLAIN)
    assert data.load("filmtrust", data_dir=tmp_path).clock == "order"


def test_ml_latest_small_as_published(tmp_path: Path) -> None:
    write(
        tmp_path / "ml-latest-small/ratings.csv",
        "userId,movieId,rating,timestamp\r\n9001,501,4.0,1111\r\n9001,502,0.5,2222\r\n",
    )
    write(tmp_path / "ml-latest-small/movies.csv", 'movieId,title,genres\n502,"Hats, The",Comedy\n')
    got: Any = data.load("ml-latest-small", data_dir=tmp_path)
    assert list(got.item_ids) == ["501", "502"]
    assert list(got.titles) == ["501", "Hats, The"]


def test_plain_csv_comes_before_the_publishers_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "ml-100k/u.data", "1\t2\t3\t4\n")
    (tmp_path / "ml-100k/ratings.csv.gz").write_bytes(gzip.compress(PLAIN.encode()))
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    got: Any = data.load("ml-100k")
    assert list(got.user_ids) == ["7", "8"]
    assert got.ratings.tolist() == [5, 0, 1]


def test_the_cache_comes_after_the_data_folder(tmp_path: Path) -> None:
    write(tmp_path / "cache/unskew/ml-100k/u.data", "1\t2\t3\t4\n")
    assert data.load("ml-100k", data_dir=tmp_path / "nothing").user_ids == ["1"]
    write(tmp_path / "own/ml-100k/ratings.csv", PLAIN)
    assert data.load("ml-100k", data_dir=tmp_path / "own").user_ids == ["7", "8"]


def test_a_damaged_published_file_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path / "ml-1m/ratings.dat", "9001::501::5::1111\n9001::502::3\n")
    with pytest.raises(UnskewError, match="line 2: 3 fields"):
        data.load("ml-1m", data_dir=tmp_path)
    assert data.load("ml-1m", data_dir=tmp_path, skip_bad_rows=True).notes == (
        "dropped 1 row: 1 ragged line",
    )
    path.write_text("1::1::5::1\n1::2::five::1\n")
    with pytest.raises(UnskewError, match="line 2: non-numeric rating 'five'"):
        data.load("ml-1m", data_dir=tmp_path)


def test_published_duplicates_and_short_users_stay(tmp_path: Path) -> None:
    write(tmp_path / "ml-100k/ratings.csv", PLAIN + "7,30,2,6\n")
    got: Any = data.load("ml-100k", data_dir=tmp_path, min_user_rows=2)
    assert len(got.users) == 4
    assert got.min_user_rows == 2
    counts = data.info(got)
    assert (counts.n_users, counts.n_items, counts.n_rows, counts.n_pairs) == (1, 1, 2, 1)
    assert (counts.n_users_read, counts.n_items_read, counts.n_rows_read) == (2, 2, 4)


def test_offline_says_what_to_get_and_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(UnskewError) as caught:
        data.load("ml-1m", data_dir=tmp_path)
    message = str(caught.value)
    assert "https://files.grouplens.org/datasets/movielens/ml-1m.zip" in message
    assert str(tmp_path / "cache/unskew/ml-1m") in message
    assert "licence: research use" in message
    with pytest.raises(UnskewError, match=r"ratings\.txt .*licence: none stated"):
        data.load("filmtrust", data_dir=tmp_path)


def test_the_registry_is_complete() -> None:
    names = [source.name for source in data.sources()]
    assert names == [
        *("demo", "filmtrust", "ml-100k", "ml-1m", "hetrec2011", "lastfm-2k", "ml-latest-small"),
    ]
    for source in data.sources():
        assert source.min_user_rows == (5 if source.name == "lastfm-2k" else 10)
        assert source.licence
        assert source.citation
        assert source.name == "demo" or (source.url and source.files)
        assert source.sha256 is None or len(source.sha256) == 64


def real_data() -> Path | None:
    """``$UNSKEW_DATA``, or a folder of that kind beside the checkout."""
    beside = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    root = Path(os.environ["UNSKEW_DATA"]) if os.environ.get("UNSKEW_DATA") else beside
    return root if root.is_dir() else None


REAL = real_data()

PUBLISHED = {
    "filmtrust": (1_002, 2_042, 33_372, "98.37"),
    "ml-100k": (943, 1_682, 100_000, "93.70"),
    "ml-1m": (6_040, 3_706, 1_000_209, "95.53"),
    "lastfm-2k": (1_600, 12_454, 185_650, "99.07"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_table_of_data_sets(name: str) -> None:
    if REAL is None or not (REAL / name).is_dir():
        pytest.skip(f"{name} is not here: set UNSKEW_DATA to a folder that holds it")
    counts = data.info(data.load(name, data_dir=REAL))
    sparsity = f"{100 * counts.sparsity:.2f}"
    assert (counts.n_users, counts.n_items, counts.n_rows, sparsity) == PUBLISHED[name]
