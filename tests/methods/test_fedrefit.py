"""FedRefit against plain dense algebra: exact vectors, exact items, sums alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import conformance
from unskew.engine import Federation
from unskew.kernels import add_uploads, orthonormal
from unskew.types import Cohort, Ragged, Split, UnskewError

SETTINGS: dict[str, Any] = {"dim": 6, "space_rounds": 2, "rounds": 6}


@pytest.fixture(scope="module")
def method() -> Any:
    return conformance.make("fedrefit", **(SETTINGS | {"participation": 1.0}))


def played(method: Any, split: Split, rounds: int) -> tuple[Any, Any]:
    federation = Federation(method, split, seed=1)
    state = federation.start()
    for _ in range(rounds):
        federation.step(state)
    return state, method.download(state.server)


def everyone(split: Split, round: int = 9) -> Cohort:
    return conformance.make_cohort(split, np.arange(split.n_users), round)


POWER = 0.2
"""The method's item_power."""


def matrix(split: Split) -> NDArray[np.float64]:
    """x_u has n_u^-1/2 c_i^-POWER for each of the user's items."""
    X = np.zeros((split.n_users, split.n_items))
    for u in range(split.n_users):
        X[u, split.seen.of(u)] = 1 / np.sqrt(len(split.seen.of(u)))
    counts = (X > 0).sum(0).clip(1)
    return np.asarray(X * counts**-POWER)


def features(split: Split, U: NDArray[Any], user: int, fast: float, slow: float) -> list[Any]:
    """f_t after each item of the history, every x_t written out and solved for by least squares."""
    counts = (matrix(split) > 0).sum(0).clip(1)
    found = []
    history = split.train.of(user)
    for t in range(len(history)):
        parts = []
        for pace in (fast, slow):
            x, weight = np.zeros(split.n_items), 0.0
            for s in range(t + 1):
                x[history[s]] += pace ** (t - s) * counts[history[s]] ** -POWER
                weight += pace ** (t - s)
            parts.append(np.linalg.lstsq(U, x / np.sqrt(weight), rcond=None)[0])
        found.append(np.concatenate([*parts, [1.0]]))
    return found


def next_items(split: Split, U: NDArray[Any], backward: float, config: Any) -> NDArray[np.float64]:
    """V by the definition: every feature and every faded target as one weighted regression."""
    F, Y, W = [], [], []
    horizon = config.horizon if backward == 0.3 else config.far_horizon
    turned = Ragged(
        split.train.indptr,
        np.concatenate([split.train.of(u)[::-1] for u in range(split.n_users)]),
    )
    for histories, weight in ((split.train, 1.0), (turned, backward)):
        read = split.__class__(**{**split.__dict__, "train": histories})
        for u in range(split.n_users):
            history = histories.of(u)
            along = features(read, U, u, config.fast, config.slow)
            for t in range(len(history) - 1):
                y = np.zeros(split.n_items)
                for s in range(t + 1, len(history)):
                    y[history[s]] += horizon ** (s - t - 1)
                F.append(along[t])
                Y.append(y)
                W.append(weight / np.sqrt(len(split.seen.of(u))))
    f, y, w = np.array(F), np.array(Y), np.array(W)[:, None]
    M = (w * f).T @ f
    M += np.eye(len(M)) * config.ridge * (10 if backward == 1 else 1) * np.trace(M) / len(M)
    counts = (matrix(split) > 0).sum(0).clip(1)
    discount = config.discount if backward < 1 else 0.0
    return np.asarray(np.linalg.solve(M, (w * f).T @ y).T * counts[:, None] ** -discount)


def test_the_space_is_that_of_alternating_least_squares(method: Any, tiny_split: Split) -> None:
    state, _ = played(method, tiny_split, 1)
    X, U = matrix(tiny_split), state.server.U.astype(np.float64)
    expected = np.linalg.qr(X.T @ (X @ U))[0]
    state, download = played(method, tiny_split, 2)
    U = state.server.U.astype(np.float64)
    np.testing.assert_allclose(U @ U.T, expected @ expected.T, atol=1e-5)
    assert download.V.shape[1] == 0


@pytest.mark.parametrize(("rounds", "backward"), [(3, 1.0), (4, 0.3), (5, 0.0)])
def test_the_fit_is_the_regression(
    method: Any, tiny_split: Split, rounds: int, backward: float
) -> None:
    state, _ = played(method, tiny_split, rounds)
    expected = next_items(tiny_split, state.server.U, backward, method.config)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(state.server.V / scale, expected / scale, atol=2e-4)


@pytest.mark.parametrize("rounds", [2, 6])
def test_the_vector_in_use_is_the_optimum_for_the_items_in_use(
    method: Any, tiny_split: Split, rounds: int
) -> None:
    """In every round, and after it: nobody scores with a vector made for other items."""
    state, _ = played(method, tiny_split, rounds)
    users = np.arange(tiny_split.n_users)
    held = state.devices.downloads[max(state.devices.downloads)]
    p = state.devices.take(users).p
    for u in users:
        if held.V.shape[1]:
            c = method.config
            best = features(tiny_split, held.U, int(u), c.fast, c.slow)[-1]
        else:
            counts = held.users.astype(np.float64)
            x = np.zeros(tiny_split.n_items)
            own = tiny_split.seen.of(int(u))
            x[own] = counts[own] ** -POWER / np.sqrt(len(own))
            best = np.linalg.lstsq(held.U.astype(np.float64), x, rcond=None)[0]
        np.testing.assert_allclose(p[u][: len(best)], best, atol=2e-6)


def test_a_newcomer_gets_the_vector_of_a_member_with_the_same_history(
    method: Any, tiny_split: Split
) -> None:
    state, _ = played(method, tiny_split, 6)
    held = state.devices.downloads[max(state.devices.downloads)]
    users = np.arange(tiny_split.n_users)
    _, fresh = method.init(tiny_split.n_users, tiny_split.n_items, 5)
    folded = method.fold_in(held, fresh, everyone(tiny_split))
    np.testing.assert_array_equal(folded.p, state.devices.take(users).p)


def test_the_order_of_a_history_matters_to_the_vector(method: Any, tiny_split: Split) -> None:
    state, download = played(method, tiny_split, 6)
    cohort = everyone(tiny_split)
    _, fresh = method.init(tiny_split.n_users, tiny_split.n_items, 5)
    items = np.concatenate([tiny_split.train.of(u)[::-1] for u in range(tiny_split.n_users)])
    turned = cohort._replace(positives=Ragged(cohort.positives.indptr, items))
    ours, theirs = (method.fold_in(download, fresh, one).p for one in (cohort, turned))
    assert not np.allclose(ours, theirs, atol=1e-3)
    assert len(state.rows) == 6


def test_a_repeated_item_is_one_row_of_the_upload(method: Any, tiny_split: Split) -> None:
    _, download = played(method, tiny_split, 3)
    items = np.array([4, 2, 4, 4, 7], np.int32)
    lists = Ragged(np.array([0, 5], np.int64), items)
    cohort = Cohort(np.array([0]), lists, lists, tiny_split.n_items, 1, 4)
    _, fresh = method.init(1, tiny_split.n_items, 5)
    _, upload, _ = method.local(download, fresh, cohort)
    assert upload.rows.items.tolist() == [2, 4, 7]


def test_when_all_fits_are_delivered_nothing_is_sent(method: Any, tiny_split: Split) -> None:
    state, _ = played(method, tiny_split, 5)
    download = method.download(state.server)
    cohort = everyone(tiny_split, 6)
    private = state.devices.take(np.arange(tiny_split.n_users))
    _, upload, _ = method.local(download, private, cohort)
    assert len(upload.rows.items) == 0
    assert not upload.dense.any()
    after = method.aggregate(state.server, add_uploads(None, upload, tiny_split.n_items).result())
    assert after is state.server


@pytest.mark.parametrize(("order", "fits"), [("choose", 3), ("forward", 1), ("both", 1)])
def test_devices_get_every_fit_that_the_order_asks_for(
    tiny_split: Split, order: str, fits: int
) -> None:
    settings = {"dim": 6, "space_rounds": 1, "participation": 1.0, "order": order}
    method = conformance.make("fedrefit", **settings)
    downloads = [played(method, tiny_split, rounds)[1] for rounds in range(fits + 3)]
    assert [download.V.shape[1] > 0 for download in downloads] == [False, False] + [True] * (
        fits + 1
    )
    same = [np.array_equal(one.V, two.V) for one, two in itertools.pairwise(downloads)]
    assert same == [True] + [False] * fits + [True]  # after the last fit nothing changes any more


def test_a_catalogue_smaller_than_the_space() -> None:
    """More dimensions than items or users: the columns that are left over are zero, not noise."""
    method = conformance.make("fedrefit", dim=64, participation=1.0)
    server, private = method.init(2, 5, 0)
    lists = Ragged(np.array([0, 3, 5], np.int64), np.array([0, 1, 2, 1, 3], np.int32))
    for round in range(1, 9):
        download = method.download(server)
        cohort = Cohort(np.arange(2), lists, lists, 5, 0, round)
        private, upload, losses = method.local(download, private, cohort)
        assert np.isfinite(method.score(download, private)).all()
        assert (losses > -1e-6).all()
        server = method.aggregate(server, add_uploads(None, upload, 5).result())
    assert np.count_nonzero(np.abs(server.U).sum(0)) == 2


def test_settings_out_of_range() -> None:
    for name, value in (("slow", 1.5), ("ridge", 0), ("horizon", -1), ("order", "sideways")):
        with pytest.raises(UnskewError, match=name):
            conformance.make("fedrefit", **{name: value})


def test_directions_that_only_rounding_makes_are_left_out() -> None:
    draw = np.random.default_rng(0)
    S = draw.standard_normal((40, 5)) @ draw.standard_normal((5, 12))
    S *= 1 + 1e-8 * draw.standard_normal(S.shape)
    U = orthonormal(S)
    np.testing.assert_allclose(U.T @ U, np.diag([1.0] * 5 + [0.0] * 7), atol=1e-5)


def test_the_loss_is_what_the_space_leaves_of_a_history(method: Any, tiny_split: Split) -> None:
    """|x_u - U p_u|^2 with p_u = U^T x_u, in the first rounds and when V is fitted."""
    for rounds in (1, 3):
        state, download = played(method, tiny_split, rounds)
        private = state.devices.take(np.arange(tiny_split.n_users))
        _, _, losses = method.local(download, private, everyone(tiny_split, rounds + 1))
        U = download.U.astype(np.float64)
        X = matrix(tiny_split)
        X *= (download.users / (X > 0).sum(0).clip(1)) ** -POWER  # the counts it was told
        rest = X - X @ U @ U.T
        np.testing.assert_allclose(losses, (rest**2).sum(1), rtol=1e-4, atol=1e-6)
        assert losses.max() > 0.01


def test_the_space_explains_more_with_every_round(method: Any, tiny_split: Split) -> None:
    federation = Federation(method, tiny_split, seed=1)
    state = federation.start()
    losses = [federation.step(state)["loss"] for _ in range(3)]
    assert losses[0] > losses[1] > losses[2] > 0
