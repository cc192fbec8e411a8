"""Data that is already in memory: frames, sparse matrices, tuples; and the log of a small shop."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

import unskew
from unskew.evaluation import prepare
from unskew.types import Interactions, UnskewError

ROWS = [(7, 40, 4.0, 100), (5, 41, 3.5, 200), (7, 41, 1.0, 300), (5, 40, 5.0, 400)]


def same(ours: Interactions, theirs: Interactions) -> None:
    for name in ("users", "items", "ratings", "timestamps", "user_ids", "item_ids"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert (ours.clock, ours.min_user_rows) == (theirs.clock, theirs.min_user_rows)


@pytest.fixture(scope="module")
def from_file(tmp_path_factory: pytest.TempPathFactory) -> Interactions:
    path = tmp_path_factory.mktemp("data") / "f.csv"
    path.write_text(
        "user,item,rating,timestamp\n" + "".join(",".join(map(str, row)) + "\n" for row in ROWS)
    )
    return unskew.load(path)


def test_frames_and_tuples_are_read_as_files_are(from_file: Interactions) -> None:
    frame = pl.DataFrame(ROWS, ["userId", "movieId", "rating", "ts"], orient="row")
    for data in (frame, frame.lazy(), frame.cast(pl.String), ROWS, [list(row) for row in ROWS]):
        same(unskew.load(data), from_file)
    renamed = frame.rename({"userId": "who"})
    same(unskew.load(renamed, columns={"user": "who"}, name="films"), from_file)
    assert unskew.load(renamed, columns={"user": "who"}, name="films").name == "films"
    pairs = unskew.load([row[:2] for row in ROWS])
    assert (pairs.ratings, pairs.timestamps, pairs.name) == (None, None, "data")


def test_pandas_frames(from_file: Interactions) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed; its frames are untried")
    frame = pandas.DataFrame(ROWS, columns=["user", "item", "rating", "timestamp"])
    same(unskew.load(frame), from_file)
    frame["user"] = frame["user"].astype("Int64")
    frame["item"] = frame["item"].astype("category")
    same(unskew.load(frame), from_file)
    frame["timestamp"] = pandas.to_datetime(frame["timestamp"], unit="s", utc=True)
    assert unskew.load(frame).timestamps.tolist() == [n * 100_000_000 for n in (1, 2, 3, 4)]
    frame.loc[2, "user"] = None
    with pytest.raises(UnskewError, match="row 2: the user is missing"):
        unskew.load(frame)


def test_labels_of_several_types_and_dates() -> None:
    day = datetime(2024, 5, 1, tzinfo=UTC)
    loaded = unskew.load([(1, "a", 1, day), ("1", 7, 1, day), (2, 7, 1, day)])
    assert (loaded.user_ids, loaded.item_ids) == (["1", "2"], ["a", "7"])
    assert loaded.clock == "time"


def test_a_sparse_matrix() -> None:
    grid = np.arange(12).reshape(3, 4) % 5
    loaded = unskew.load(sparse.csr_array(grid))
    assert loaded.ratings is not None
    back = np.zeros_like(grid)
    users, items = np.array(loaded.user_ids, int), np.array(loaded.item_ids, int)
    back[users[loaded.users], items[loaded.items]] = loaded.ratings
    assert np.array_equal(back, grid)
    assert "no order in time" in loaded.notes[0]
    same(unskew.load(sparse.coo_matrix(grid)), loaded)
    # Nobody's last items are simply the last columns.
    full = prepare(unskew.load(sparse.csr_array(np.ones((50, 30)))))
    assert len(set(full.test.items.tolist())) > 15


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "data has no rows"),
        (pl.DataFrame({"user": [], "item": []}), "data has no rows"),
        (42, "A int is no data"),
        ([(1,), (2,)], r"row 0: .* \(user, item\)"),
        ([(1, 2), (3, 4, 5)], r"row 1: .*\(3, 4, 5\)"),
        (["ab", "cd"], "row 0: 'ab'"),
        (pl.DataFrame({"who": [1], "item": [2]}), "data: no user column among 'who', 'item'"),
        (pl.DataFrame({"user": [1, None], "item": [1, 2]}), "row 1: the user is missing"),
        ([(1, 2, "good")], "row 0: non-numeric rating 'good'"),
    ],
)
def test_what_is_no_data_gets_a_sentence(data: Any, said: str) -> None:
    with pytest.raises(UnskewError, match=said) as caught:
        unskew.load(data)
    assert "\n" not in str(caught.value)


def shop_log() -> dict[str, list[int]]:
    """Purchases of forty customers, most with one or two, some twice of the same product."""
    random = np.random.default_rng(5)
    counts = [1, 2, 1, 2, 6] * 8
    products = [random.integers(0, 6, n) + 6 * (n_th % 3) for n_th, n in enumerate(counts)]
    return {
        "customer_id": np.repeat(np.arange(1, 41), counts).tolist(),
        "product_id": (np.concatenate(products) + 100).tolist(),
    }


def test_labels_that_are_python_objects_get_a_sentence() -> None:
    frame = pl.DataFrame({"user": [1, 2]}).with_columns(
        pl.Series("item", [object()] * 2, pl.Object)
    )
    with pytest.raises(UnskewError, match="column 'item' has the type Object"):
        unskew.load(frame)


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_the_log_of_a_shop(library: str) -> None:
    frames = pytest.importorskip(library, reason=f"{library} is not installed; polars is tried")
    df = frames.DataFrame(shop_log())
    data = unskew.load(df)
    result = unskew.fit("fedmf", data, rounds=3)
    once, many = result.recommend(1, k=5), result.recommend(5, k=5)
    newcomer = result.recommender().fold_in([101, "102"], k=5)
    assert [len(found) for found in (once, many, newcomer)] == [5, 5, 5]
    assert result.recommend("1", k=5) == once
    assert not {found["item"] for found in newcomer} & {"101", "102"}
    assert result.split.n_users == 40
    assert any("repeated (user, item) rows left out" in note for note in result.split.notes)
    assert any("32 users with fewer than 3 rows" in note for note in result.split.notes)
    per_user = result.outcomes[0].per_user["best", "all"]["ndcg@10"]
    assert np.isnan(per_user).sum() >= 32
    assert 0 <= result.metrics["ndcg@10"] <= 1
    with pytest.raises(UnskewError, match='no user "41"'):
        result.recommend(41)


def test_a_shop_where_nobody_bought_three_things(tmp_path: Any) -> None:
    result = unskew.fit("fedmf", [(u, i % 7) for u in range(9) for i in (u, u + 3)], rounds=3)
    assert result.outcomes[0].best_round == 3
    assert np.isnan(result.metrics["ndcg@10"])
    assert len(result.recommend(4, k=3)) == 3
