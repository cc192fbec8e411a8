"""markov and slist against the same models written as plain loops, and what they learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unskew.kernels import get_threads, set_threads
from unskew.kernels.transitions import Fading, fade_items, sum_pairs, sum_products
from unskew.methods import create
from unskew.ragged import indptr_from_counts
from unskew.types import Cohort, Ragged

Dense = NDArray[np.float64]
N_ITEMS = 12
SEQUENCES = ("markov", "slist")
LINEAR = ("popularity", "item-knn", "ease", *SEQUENCES)


def ragged(lists: list[list[int]]) -> Ragged:
    flat = np.array([item for one in lists for item in one], np.int32)
    return Ragged(indptr_from_counts([len(one) for one in lists]), flat)


def prefixes(history: Ragged, drop: int) -> Ragged:
    """The histories without their last ``drop`` items."""
    users = range(len(history.indptr) - 1)
    return ragged([history.of(user).tolist()[: -drop or None] for user in users])


def cohort_of(history: Ragged, n_items: int = N_ITEMS) -> Cohort:
    users = np.arange(len(history.indptr) - 1)
    return Cohort(users, history, history, n_items, 0, 1)


def fitted(name: str, history: Ragged, n_items: int = N_ITEMS, **settings: Any) -> Any:
    method: Any = create(name, **settings)
    server, private = method.init(len(history.indptr) - 1, n_items, 0)
    server, private, _ = method.epoch(server, private, cohort_of(history, n_items))
    return method, method.download(server), private


@pytest.fixture(params=[False, True], ids=["once", "repeats"])
def history(request: pytest.FixtureRequest) -> Ragged:
    """Histories of 0 to 9 items, among them an empty one and one of a single item."""
    rng = np.random.default_rng(0)
    lengths = [0, 1, 2, 9, 5, 7, 3]
    return ragged([rng.choice(N_ITEMS, n, replace=request.param).tolist() for n in lengths])


def weighted_past(items: Any, t: int, fading: Fading) -> Dense:
    """The history after item ``t``: the weight by age at each item so far."""
    s = np.zeros(N_ITEMS)
    for p in range(t + 1):
        s[items[p]] += (fading.shares * fading.rates ** (t - p)).sum()
    return s


def least_squares(history: Ragged, fading: Fading, horizon: float, back: float) -> Any:
    """S^T S and S^T Y as sums over all steps of all histories, read forward and backward."""
    G, R = np.zeros((2, N_ITEMS, N_ITEMS))
    for user in range(len(history.indptr) - 1):
        for weight, items in ((1.0, history.of(user)), (back, history.of(user)[::-1])):
            for t in range(len(items) - 1):
                s, y = weighted_past(items, t, fading), np.zeros(N_ITEMS)
                for q in range(t + 1, len(items)):
                    y[items[q]] += horizon ** (q - t - 1)
                G += weight * np.outer(s, s)
                R += weight * np.outer(s, y)
    return G, R


@pytest.mark.parametrize("back", [0.0, 0.3])
@pytest.mark.parametrize("rates", [(0.5, 0.9), (0.0, 1.0)])
def test_products_of_weighted_histories(
    history: Ragged, rates: tuple[float, float], back: float
) -> None:
    fading = Fading(np.array(rates), np.array([0.6, 0.4]))
    expected, _ = least_squares(history, fading, 0.0, back)
    found = sum_products(history, N_ITEMS, fading, back)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_weighted_pairs(history: Ragged) -> None:
    """Both arrays shorter than some histories: pairs further apart add nothing."""
    after, before = np.array([9.0, 1.0, 0.5, 0.2]), np.array([9.0, 0.3, 0.1])
    expected = np.zeros((N_ITEMS, N_ITEMS))
    for user in range(len(history.indptr) - 1):
        items = history.of(user)
        for p in range(len(items)):
            for q in range(len(items)):
                weights, d = (after, q - p) if q > p else (before, p - q)
                if 0 < d < len(weights):
                    expected[items[p], items[q]] += weights[d]
    found = sum_pairs(history, N_ITEMS, after, before)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_weights_by_age(history: Ragged) -> None:
    fading = Fading(np.array([0.5, 0.9]), np.array([0.6, 0.4]))
    rows = fade_items(history, N_ITEMS, fading)
    for user in range(len(history.indptr) - 1):
        items, mine = history.of(user), slice(rows.indptr[user], rows.indptr[user + 1])
        found = np.zeros(N_ITEMS)
        found[rows.items[mine]] = rows.values[mine, 0]
        assert (np.diff(rows.items[mine]) > 0).all()
        np.testing.assert_allclose(found, weighted_past(items, len(items) - 1, fading), rtol=1e-6)


@pytest.mark.parametrize("horizon", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("back", [0.0, 0.3, 1.0])
def test_slist_is_the_least_squares_solution(history: Ragged, horizon: float, back: float) -> None:
    settings = {"horizon": horizon, "backward": back, "ridge": 0.5, "discount": 0.2}
    method, download, private = fitted("slist", history, **settings)
    G, R = least_squares(history, method.fading, horizon, back)
    B = np.linalg.solve(G + 0.5 * np.trace(G) / N_ITEMS * np.eye(N_ITEMS), R)
    B *= np.bincount(history.items, minlength=N_ITEMS).clip(1) ** -0.2
    np.testing.assert_allclose(download.B, B, rtol=1e-3, atol=1e-5)
    users = range(len(history.indptr) - 1)
    S = [weighted_past(history.of(u), len(history.of(u)) - 1, method.fading) for u in users]
    np.testing.assert_allclose(method.score(download, private), S @ B, rtol=1e-3, atol=1e-5)


def test_markov_is_the_share_of_transitions() -> None:
    """One history a b c: b follows a at once and c two positions later."""
    settings = {"window": 2, "decay": 0.5, "fade": 0.1, "shrinkage": 3.0, "discount": 0.0}
    method, download, private = fitted("markov", ragged([[0, 1, 2], [2]]), 3, **settings)
    expected = [[0, 1 / 4, 0.5 / 4], [0, 0, 1 / 4], [0, 0, 0]]
    np.testing.assert_allclose(download.M, expected, rtol=1e-6)
    _, wide, _ = fitted("markov", ragged([[0, 1, 2], [2]]), 3, **settings | {"window": 2**60})
    np.testing.assert_array_equal(wide.M, download.M)  # and takes no memory
    scores = [[0, 0.01 / 4, 0.01 * 0.5 / 4 + 0.1 / 4], [0, 0, 0]]
    np.testing.assert_allclose(method.score(download, private), scores, rtol=1e-5)


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_planted_sequence_is_learned(name: str) -> None:
    """Everybody walks around the same circle of items from another start; half a walk later the
    next item is the one with the highest score."""
    n = 30
    walks = ragged([[(start + step) % n for step in range(12)] for start in range(n)])
    method, download, private = fitted(name, walks, n)
    nearest = method.score(download, private)
    nearest[np.repeat(np.arange(n), 12), walks.items] = -np.inf
    np.testing.assert_array_equal(nearest.argmax(1), (np.arange(n) + 12) % n)


@pytest.mark.parametrize("name", LINEAR)
def test_refreshing_with_a_history_is_folding_it_in(name: str, history: Ragged) -> None:
    """Whatever the state was before; with the whole history it is the trained state."""
    method, download, private = fitted(name, history)
    for drop in (0, 1, 2):
        part = prefixes(history, drop)
        refreshed = method.refresh(download, private, part)
        folded = method.fold_in(download, private, cohort_of(part))
        for ours, theirs in zip(refreshed.X, folded.X, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        if not drop:
            np.testing.assert_array_equal(refreshed.X.values, private.X.values)


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_number_of_threads_does_not_matter(name: str) -> None:
    rng = np.random.default_rng(1)
    many = ragged([rng.choice(80, rng.integers(1, 40), replace=False).tolist() for _ in range(60)])
    threads, found = get_threads(), []
    try:
        for count in (1, 2, 5):
            set_threads(count)
            found.append(fitted(name, many, 80)[1][0])
    finally:
        set_threads(threads)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("name", SEQUENCES)
def test_histories_without_a_pair_of_items_score_nothing(name: str) -> None:
    method, download, private = fitted(name, ragged([[3], [], [5]]))
    assert not method.score(download, private).any()
