"""The kernels against their plain twins, and the tie rule by hand."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import pytest
from evaluation_twins import make_split, plain_ranks, plain_top_k
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.evaluation import held_out_ranks, per_user, top_k
from unskew.types import Float32, Int64, Split

PARTS: tuple[Literal["validation", "test"], ...] = ("validation", "test")
SCORES = np.array([np.nan, -np.inf, -1.0, -0.0, 0.0, 0.5, 2.0, np.inf], np.float32)


@st.composite
def scored_splits(draw: st.DrawFn) -> tuple[Float32, Int64, Split]:
    """Few distinct scores (ties, NaN, infinities), zero to many held-out items, padded candidates,
    and now and then a held-out item that also stands in training or validation."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_items = draw(st.integers(1, 80))
    n_users = draw(st.integers(1, 6))
    levels = draw(st.integers(1, len(SCORES)))
    overlap = draw(st.booleans())
    seen, validation, test, sampled = [], [], [], []
    for _ in range(n_users):
        items = rng.permutation(n_items)
        cuts = np.sort(rng.integers(0, n_items + 1, 4))
        seen.append(items[: cuts[0]].tolist())
        validation.append(items[cuts[0] : cuts[1]].tolist())
        held = items[cuts[1] : cuts[2]].tolist()
        test.append(held if not overlap else rng.permutation(items[: cuts[2]]).tolist())
        others = items[cuts[2] :][:9].tolist()
        sampled.append(others + [-1] * (9 - len(others)))
    split = make_split(n_items, seen, validation, test, sampled)
    users = rng.integers(0, n_users, draw(st.integers(0, 8)))
    scores = rng.permutation(SCORES)[:levels][rng.integers(0, levels, (len(users), n_items))]
    return scores, users, split


@settings(max_examples=150, deadline=None)
@given(scored_splits())
def test_ranks_agree_with_the_plain_twin(case: tuple[Float32, Int64, Split]) -> None:
    scores, users, split = case
    for part in PARTS:
        for sampled in (False, True):
            ranks = held_out_ranks(scores, users, split, part, sampled)
            assert ranks.dtype == np.int32
            assert ranks.tolist() == plain_ranks(scores, users, split, part, sampled)


@settings(max_examples=150, deadline=None)
@given(scored_splits(), st.integers(1, 90))
def test_top_k_agrees_with_the_plain_twin(case: tuple[Float32, Int64, Split], k: int) -> None:
    scores, users, split = case
    assert top_k(scores, users, split, k).tolist() == plain_top_k(scores, users, split, k).tolist()


def test_top_k_on_many_items() -> None:
    rng = np.random.default_rng(3)
    split = make_split(1000, [[5, 6, 7]] * 20, [[8]] * 20, [[9]] * 20)
    scores = rng.standard_normal((20, 1000)).astype(np.float32).round(1)
    for k in (1, 10, 100, 999):
        expected = plain_top_k(scores, np.arange(20), split, k)
        assert np.array_equal(top_k(scores, np.arange(20), split, k), expected)


@pytest.mark.parametrize("constant", [0.0, 1.0, -np.inf, np.inf, np.nan])
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_a_scorer_that_cannot_tell_items_apart_earns_nothing(
    constant: float, sampled: bool, part: Literal["validation", "test"]
) -> None:
    split = make_split(12, [[0, 1], [3]], [[2], [11]], [[4], [0]], [[5, 6, 7], [4, 5, -1]])
    scores = np.full((2, 12), constant, np.float32)
    ranks = held_out_ranks(scores, np.arange(2), split, part, sampled)
    n_among_all = {"validation": [10, 11], "test": [9, 10]}[part]
    n_candidates = [4, 3] if sampled else n_among_all
    assert ranks.tolist() == n_candidates
    values = per_user(ranks, np.array([0, 1, 2]), ks=range(1, min(n_candidates)))
    assert all((value == 0).all() for value in values.values())


def test_one_nan_among_the_scores_is_worst_and_the_held_out_item_still_loses_to_it() -> None:
    split = make_split(4, [[]], [[]], [[1]])
    users = np.array([0])
    nan = np.nan

    def rank(*scores: float) -> int:
        row = np.array([scores], np.float32)
        return int(held_out_ranks(row, users, split, "test", False)[0])

    assert rank(nan, -np.inf, nan, nan) == 1
    assert rank(0.0, nan, 0.0, nan) == 4
    assert rank(5.0, 1.0, 1.0, 0.0) == 3


def test_when_validating_the_test_items_are_ordinary_candidates() -> None:
    split = make_split(5, [[0]], [[1]], [[2]])
    scores = np.array([[9, 5, 8, 1, 2]], np.float32)
    users = np.array([0])
    assert held_out_ranks(scores, users, split, "validation", False).tolist() == [2]
    assert held_out_ranks(scores, users, split, "test", False).tolist() == [1]


def test_threads_and_chunks_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    n_users, n_items = 64, 300
    lists = [rng.permutation(n_items)[:20].tolist() for _ in range(n_users)]
    split = make_split(
        n_items,
        [row[:10] for row in lists],
        [row[10:12] for row in lists],
        [row[12:15] for row in lists],
    )
    scores = rng.standard_normal((n_users, n_items)).astype(np.float32)
    whole = held_out_ranks(scores, np.arange(n_users), split, "test", False)
    chunks = np.array_split(np.arange(n_users), 9)
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda c: held_out_ranks(scores[c], c, split, "test", False), chunks)
        assert np.array_equal(np.concatenate(list(parts)), whole)


def test_wrong_shapes_and_users_are_refused_before_the_kernel() -> None:
    split = make_split(5, [[0]], [[1]], [[2]])
    with pytest.raises(ValueError, match="shape"):
        held_out_ranks(np.zeros((1, 4), np.float32), np.array([0]), split, "test", False)
    with pytest.raises(ValueError, match="user numbers"):
        top_k(np.zeros((1, 5), np.float32), np.array([1]), split, 3)
    with pytest.raises(ValueError, match="k must"):
        top_k(np.zeros((1, 5), np.float32), np.array([0]), split, 0)
