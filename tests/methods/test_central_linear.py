"""EASE, item-knn and popularity against the same models written in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from unskew.methods.ease import EASE
from unskew.methods.item_knn import ItemKNN
from unskew.methods.local import Local
from unskew.methods.popularity import Popularity
from unskew.types import Cohort, Ragged, Split

Dense = NDArray[np.float64]


@pytest.fixture(params=[False, True], ids=["once", "repeats"])
def everyone(request: pytest.FixtureRequest, small_split: Split) -> Cohort:
    """All users; in the second case everybody has every item twice, as in LastFM-2K's rows."""
    train = small_split.train
    if request.param:
        lists = [np.tile(train.of(user), 2) for user in range(small_split.n_users)]
        train = Ragged(train.indptr * 2, np.concatenate(lists))
    users = np.arange(small_split.n_users)
    return Cohort(users, train, small_split.excluded, small_split.n_items, 0, 1)


def binary(cohort: Cohort) -> Dense:
    X = np.zeros((len(cohort.users), cohort.n_items))
    for user in range(len(cohort.users)):
        X[user, cohort.positives.of(user)] = 1
    return X


def fitted(method: Any, cohort: Cohort) -> tuple[Any, Any, float]:
    server, private = method.init(len(cohort.users), cohort.n_items, 0)
    server, private, loss = method.epoch(server, private, cohort)
    return method.download(server), private, loss


@pytest.mark.parametrize("ridge", [10.0, 300.0])
def test_ease_is_the_constrained_least_squares_solution(everyone: Cohort, ridge: float) -> None:
    """The closed form in float64; and, for some items, the regression on all others it solves."""
    X = binary(everyone)
    download, private, loss = fitted(EASE(EASE.Config(ridge=ridge)), everyone)
    gram = X.T @ X + ridge * np.eye(everyone.n_items)
    inverse = np.linalg.inv(gram)
    expected = -inverse / np.diag(inverse)
    np.fill_diagonal(expected, 0)
    for j in range(0, everyone.n_items, 40):
        others = np.flatnonzero(np.arange(everyone.n_items) != j)
        solution = np.linalg.solve(gram[np.ix_(others, others)], gram[others, j])
        np.testing.assert_allclose(expected[others, j], solution, rtol=1e-6, atol=1e-12)
    assert (np.diag(download.B) == 0).all()
    np.testing.assert_allclose(download.B, expected, rtol=1e-3, atol=2e-6)
    scores = EASE().score(download, private)
    np.testing.assert_allclose(scores, X @ expected, rtol=1e-3, atol=1e-4)
    objective = ((X - X @ expected) ** 2).sum() + ridge * (expected**2).sum()
    assert loss == pytest.approx(objective / len(X), rel=1e-3)


def test_item_knn_is_cosine_with_shrinkage_over_the_nearest(everyone: Cohort) -> None:
    k, shrinkage = 7, 3.0
    X = binary(everyone)
    method = ItemKNN(ItemKNN.Config(neighbours=k, shrinkage=shrinkage))
    download, private, _ = fitted(method, everyone)
    shared, users = X.T @ X, X.sum(0)
    similarity = shared / (np.sqrt(np.outer(users, users)) + shrinkage)
    np.fill_diagonal(similarity, 0)
    similarity = similarity.astype(np.float32)
    kept = np.zeros_like(similarity)
    for j in range(everyone.n_items):
        nearest = np.argsort(-similarity[:, j], kind="stable")[:k]
        kept[nearest, j] = similarity[nearest, j]
    np.testing.assert_allclose(method.score(download, private), X @ kept, rtol=1e-4, atol=1e-5)
    assert (np.diff(download.similarity, axis=1) <= 0).all(), "most similar first"


def test_item_knn_with_more_neighbours_than_items(everyone: Cohort) -> None:
    method = ItemKNN(ItemKNN.Config(neighbours=10_000, shrinkage=0.0))
    download, private, _ = fitted(method, everyone)
    X = binary(everyone)
    users = np.maximum(X.sum(0), 1)
    similarity = (X.T @ X) / np.sqrt(np.outer(users, users))
    np.fill_diagonal(similarity, 0)
    np.testing.assert_allclose(method.score(download, private), X @ similarity, rtol=1e-4)


def test_popularity_counts_users_not_rows(everyone: Cohort) -> None:
    method = Popularity()
    download, private, _ = fitted(method, everyone)
    expected = binary(everyone).sum(0)
    np.testing.assert_array_equal(method.score(download, private)[5], expected)


@pytest.mark.parametrize("kind", [EASE, ItemKNN])
def test_a_newcomer_with_the_items_of_a_user_is_scored_like_that_user(
    everyone: Cohort, kind: Any
) -> None:
    method = kind()
    download, private, _ = fitted(method, everyone)
    one = everyone._replace(
        users=np.array([10_000]),
        positives=Ragged(
            np.array([0, len(everyone.positives.of(3))]), everyone.positives.of(3)[::-1].copy()
        ),
    )
    _, fresh = method.init(1, everyone.n_items, 0)
    folded = method.fold_in(download, fresh, one)
    np.testing.assert_array_equal(
        method.score(download, folded)[0], method.score(download, private)[3]
    )


def test_local_sends_nothing(small_split: Split) -> None:
    method = Local(Local.Config(local_epochs=2))
    users = np.arange(20)
    server, private = method.init(20, small_split.n_items, 0)
    indptr = small_split.train.indptr[:21]
    cohort = Cohort(
        users,
        Ragged(indptr, small_split.train.items[: indptr[-1]]),
        Ragged(
            small_split.excluded.indptr[:21],
            small_split.excluded.items[: small_split.excluded.indptr[20]],
        ),
        small_split.n_items,
        0,
        1,
    )
    trained, upload, _ = method.local(method.download(server), private, cohort)
    assert len(upload.rows.items) == 0
    assert (upload.weight == 0).all()
    assert len(trained.Q.items) > 0
