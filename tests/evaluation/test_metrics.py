"""Metric values worked out by hand, and against a plain twin."""

from __future__ import annotations

import math

import numpy as np
import pytest
from evaluation_twins import plain_metrics, ragged
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.evaluation import coverage, mean_metrics, per_user, popularity


@pytest.mark.parametrize(
    ("rank", "ndcg"), [(1, 1.0), (2, 0.63093), (3, 0.5), (10, 0.28906), (11, 0)]
)
def test_one_held_out_item(rank: int, ndcg: float) -> None:
    values = per_user(np.array([rank], np.int32), np.array([0, 1]), ks=(10,))
    assert values["ndcg@10"][0] == pytest.approx(ndcg, abs=1e-5)
    if rank <= 10:
        assert values["ndcg@10"][0] == pytest.approx(math.log(2) / math.log(1 + rank), abs=1e-15)
    hit = rank <= 10
    assert values["hr@10"][0] == values["recall@10"][0] == hit
    assert values["mrr@10"][0] == values["map@10"][0] == pytest.approx(hit / rank)


def test_three_held_out_items_by_hand() -> None:
    values = per_user(np.array([7, 1, 4], np.int32), np.array([0, 3]), ks=(2, 5))
    assert values["recall@5"][0] == pytest.approx(2 / 3)
    assert values["map@5"][0] == pytest.approx((1 / 1 + 2 / 4) / 3)
    assert values["map@2"][0] == pytest.approx(1 / 2)
    ideal = 1 + 1 / math.log2(3) + 1 / 2
    assert values["ndcg@5"][0] == pytest.approx((1 + 1 / math.log2(5)) / ideal)
    assert values["mrr@5"][0] == 1


def test_a_cut_off_may_be_longer_than_any_list() -> None:
    ranks, indptr = np.array([7, 1, 4], np.int32), np.array([0, 3])
    long, huge = (per_user(ranks, indptr, ks=(k,)) for k in (100, 2**62))
    assert [one.tolist() for one in huge.values()] == [one.tolist() for one in long.values()]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(1, 40), unique=True, max_size=12), max_size=8))
def test_any_ranks_against_the_plain_twin(lists: list[list[int]]) -> None:
    flat = ragged(lists)
    values = per_user(flat.items, flat.indptr)
    assert len(values) == 20
    for key, value in values.items():
        name, k = key.split("@")
        expected = [plain_metrics(ranks, int(k))[name] for ranks in lists]
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        present = [x for x in expected if not math.isnan(x)]
        mean = mean_metrics(values)[key]
        assert math.isnan(mean) if not present else mean == pytest.approx(np.mean(present))


def test_users_with_nothing_held_out_do_not_lower_the_mean() -> None:
    values = per_user(np.array([1], np.int32), np.array([0, 0, 1, 1]))
    assert np.isnan(values["hr@10"]).tolist() == [True, False, True]
    assert mean_metrics(values)["hr@10"] == 1.0


def test_ranks_that_do_not_fit_the_lists_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fill"):
        per_user(np.array([1, 2], np.int32), np.array([0, 1]))


def test_coverage_and_popularity() -> None:
    top = np.array([[0, 1], [1, -1]], np.int32)
    train = ragged([[0, 0, 1], [1, 2]])
    assert coverage(top, 4) == 0.5
    assert popularity(top, train, 4) == pytest.approx((0.5 + 1 + 1) / 3)
    assert math.isnan(popularity(np.full((1, 2), -1, np.int32), train, 4))
