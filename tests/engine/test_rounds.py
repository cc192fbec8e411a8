"""Cohorts from named streams, the first of equal rounds, stores that keep what they were given."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from unskew.engine import Devices, Federation, Scoreboard, draw_cohort
from unskew.kernels import set_threads
from unskew.methods import METHODS, create
from unskew.ragged import select
from unskew.rng import Purpose, generator
from unskew.types import Cohort, Float32, Int64, Ragged, Rows, Split, Upload, Uploads


def test_cohorts_come_from_their_own_stream() -> None:
    """These numbers are part of every saved result."""
    assert draw_cohort(3, 2, 12, 6).tolist() == [0, 4, 6, 8, 10, 11]
    assert draw_cohort(2**40 + 1, 7, 9, 3).tolist() == [1, 2, 6]
    chosen = generator(5, Purpose.COHORT, 3).permutation(50)[:10]
    assert draw_cohort(5, 3, 50, 10).tolist() == sorted(chosen)


@pytest.mark.parametrize(
    ("n_users", "share", "size"),
    [(10, 0.3, 3), (100, 0.29, 29), (10, 0.39, 3), (10, 1.0, 10), (10, 0.01, 1), (1, 0.5, 1)],
)
def test_the_size_of_a_cohort(n_users: int, share: float, size: int) -> None:
    """Rounded down, but 0.29 of 100 is 29 and nobody is not a cohort."""
    method = create("fedmf", participation=share)
    cohort = draw_cohort(0, 1, n_users, method.cohort_size(1, n_users))
    assert len(cohort) == len(set(cohort.tolist())) == size
    assert (cohort.dtype, cohort.min() >= 0, cohort.max() < n_users) == (np.int64, True, True)


def test_models_begin_with_their_own_streams() -> None:
    """The first numbers of each stream that initialises a method, for seed 7."""
    expected = {
        Purpose.INIT_ITEMS: [0.06404, 0.36602],
        Purpose.INIT_USER: [0.11079, -2.0664],
        Purpose.INIT_BUFFER: [1.8051, 1.5833],
    }
    for purpose, numbers in expected.items():
        drawn = generator(7, purpose).standard_normal(2, np.float32)
        np.testing.assert_allclose(drawn, numbers, rtol=1e-4)
    items, user, buffer = expected.values()
    for name in ("pfedclr", "fedmf", "fedmf-af", "fedrap", "gpfedrec", "pfedgraph", "fedncf"):
        server, private = create(name, dim=4).init(3, 5, 7)
        np.testing.assert_allclose(server.Q.flat[:2], items, rtol=1e-4, err_msg=name)
        if hasattr(private, "p"):
            np.testing.assert_allclose(private.p[:, :2], [user] * 3, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(
        create("pfedclr", dim=4).init(3, 5, 7)[1].B[:, 0, :2], [buffer] * 3, rtol=1e-4
    )
    np.testing.assert_allclose(create("fedrap", dim=4).init(3, 5, 7)[0].C_0.flat[:2], buffer, 1e-4)
    for name in ("mf", "ncf"):
        server, private = create(name, dim=4, init_scale=0.1).init(3, 5, 7)
        np.testing.assert_allclose(10 * server.Q.flat[:2], items, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(10 * private.p.flat[:2], user, rtol=1e-4, err_msg=name)
    dense = [0.19396, -0.1815]
    np.testing.assert_allclose(create("fedncf", dim=4).init(3, 5, 7)[0].mlp[:2], dense, rtol=1e-4)
    np.testing.assert_allclose(create("ncf", dim=4).init(3, 5, 7)[0].w[:2], dense, rtol=1e-4)
    np.testing.assert_allclose(
        create("pfedrec", dim=4).init(3, 5, 7)[1].theta[0, :2], [0.27431, -0.25668], rtol=1e-4
    )


def test_of_equal_rounds_the_first_is_best(tiny_split: Split) -> None:
    """A rate so small that nothing moves: all rounds are equal on validation."""
    method = create("fedmf", dim=4, local_epochs=1, participation=0.5, learning_rate=1e-30)
    federation = Federation(method, tiny_split, 0)
    state = federation.start()
    for _ in range(3):
        federation.step(state)
    assert len({row["validation"]["ndcg@10"] for row in state.rows}) == 1
    assert state.best_round == 1
    assert set(state.best_devices.version.tolist()) == {0}


def test_a_worse_round_later_does_not_lower_the_bar(tiny_split: Split) -> None:
    """Whatever the figures are, the best round is the first maximum of those so far."""
    method = create("fedmf", dim=4, local_epochs=2, participation=0.5, learning_rate=1.0)
    federation = Federation(method, tiny_split, 3)
    state = federation.start()
    for round in range(1, 9):
        federation.step(state)
        figures = [row["validation"]["ndcg@10"] for row in state.rows]
        assert state.best_round == int(np.argmax(figures)) + 1, f"after round {round}"
    assert figures != sorted(figures), "else this test shows nothing"


class Watched(NamedTuple):
    """What clients and the server of a federation saw of a round."""

    losses: list[Any]
    uploads: list[tuple[Int64, Upload]]
    received: list[Any]


def watch(name: str, **settings: Any) -> tuple[Any, Watched]:
    """A method that notes what passes through it."""
    seen = Watched([], [], [])
    kind = METHODS[name]

    class Watching(kind):  # type: ignore[misc, valid-type]
        def local(self, download: Any, private: Any, cohort: Cohort) -> Any:
            private, upload, loss = super().local(download, private, cohort)
            seen.losses.append(loss)
            seen.uploads.append((cohort.users, upload))
            return private, upload, loss

        def aggregate(self, server: Any, total: Any) -> Any:
            seen.received.append(total)
            return super().aggregate(server, total)

    return Watching(create(name, **settings).config), seen


@pytest.mark.parametrize("name", ["fedmf", "pfedgraph"])
@pytest.mark.usefixtures("threads_restored")
def test_the_server_gets_all_uploads_of_a_round_in_the_order_of_users(
    name: str, tiny_split: Split
) -> None:
    set_threads(2)
    method, seen = watch(name, dim=4, local_epochs=1, participation=0.7)
    federation = Federation(method, tiny_split, 0, chunk=8)
    state = federation.start()
    row = federation.step(state)
    users = federation.cohort_of(1)
    sent = sorted(seen.uploads, key=lambda part: part[0][0])
    assert np.concatenate([part for part, _ in sent]).tolist() == users.tolist()
    assert len(sent) > 2, "else one chunk holds all"
    rows = [upload.rows for _, upload in sent]
    (received,) = seen.received
    weight = np.concatenate([upload.weight for _, upload in sent])
    if isinstance(received, Uploads):
        assert received.users.tolist() == users.tolist()
        counts = np.concatenate([np.diff(part.indptr) for part in rows])
        assert received.upload.rows.indptr.tolist() == [0, *np.cumsum(counts)]
        for field in ("items", "values"):
            wanted = np.concatenate([getattr(part, field) for part in rows])
            np.testing.assert_array_equal(getattr(received.upload.rows, field), wanted)
        np.testing.assert_array_equal(received.upload.weight, weight)
        assert received.upload.dense.shape == (len(users), 0)
    else:
        total = np.zeros((tiny_split.n_items, 4))
        for _, upload in sent:
            owner = np.repeat(np.arange(len(upload.weight)), np.diff(upload.rows.indptr))
            weighted = upload.rows.values * upload.weight[owner][:, None]
            np.add.at(total, upload.rows.items, weighted)
        np.testing.assert_allclose(received.rows, total, rtol=1e-6, atol=1e-9)
        assert received.weight == pytest.approx(weight.sum())
        assert received.clients == len(users)
    assert row["loss"] == pytest.approx(np.concatenate(seen.losses).mean())
    assert row["bytes_up"] == sum(upload.nbytes for _, upload in sent)


def test_an_epoch_of_a_central_baseline(tiny_split: Split) -> None:
    """Everybody takes part, nothing is sent, and everybody is evaluated with the newest items."""
    federation = Federation(create("mf", dim=4), tiny_split, 0)
    state = federation.start()
    for round in (1, 2):
        row = federation.step(state)
        assert (row["round"], row["clients"]) == (round, tiny_split.n_users)
        assert (row["bytes_up"], row["bytes_down"]) == (0, 0)
        assert np.isfinite(row["loss"])
        assert set(state.devices.version.tolist()) == {round}
        assert list(state.devices.downloads) == [round]
    again, everyone = Scoreboard(tiny_split), np.arange(tiny_split.n_users)
    download = federation.method.download(state.server)
    scores = federation.method.score(download, state.devices.take(everyone))
    again.update(everyone, scores, scores)
    for name, ranks in again.arrays().items():
        np.testing.assert_array_equal(ranks, state.scoreboard.arrays()[name], err_msg=name)


class Download(NamedTuple):
    Q: Float32


class Private(NamedTuple):
    p: Float32
    rows: Rows


def private_of(*runs: list[int], value: float = 0.0) -> Private:
    """One user per run of items; every number of user u is u + ``value``."""
    counts = [len(run) for run in runs]
    owner = np.repeat(np.arange(len(runs)), counts) + value
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    items = np.array([item for run in runs for item in run], np.int32)
    rows = Rows(indptr, items, np.tile(owner[:, None], (1, 2)).astype(np.float32))
    return Private((np.arange(len(runs)) + value)[:, None].astype(np.float32), rows)


def make_devices() -> Devices:
    return Devices(private_of([1, 2], [], [0, 1, 2, 3]), Download(np.zeros((4, 2), np.float32)))


def test_devices_give_back_what_they_were_given() -> None:
    devices = make_devices()
    taken = devices.take(np.array([2, 0]))
    assert taken.p.tolist() == [[2], [0]]
    assert taken.rows.indptr.tolist() == [0, 4, 6]
    assert taken.rows.items.tolist() == [0, 1, 2, 3, 1, 2]
    assert taken.rows.values[:, 1].tolist() == [2, 2, 2, 2, 0, 0]
    taken.p[:], taken.rows.values[:] = 99, 99
    assert devices.take(np.array([2])).p.tolist() == [[2]], "what is taken is a copy"
    assert devices.take(np.array([2])).rows.values.max() == 2
    left_out = devices.take(np.array([2, 0]), without=("rows",))
    assert left_out.rows.indptr.tolist() == [0, 0, 0]
    assert left_out.rows.values.shape == (0, 2)
    assert left_out.p.tolist() == [[2], [0]]


def test_devices_replace_the_state_of_some_users() -> None:
    devices = make_devices()
    new = private_of([3], [0, 1, 2, 3], value=10.0)
    devices.put(np.array([1, 0]), new, 5)
    assert devices.version.tolist() == [5, 5, 0]
    everyone = devices.take(np.arange(3))
    assert everyone.p.tolist() == [[11], [10], [2]]
    assert everyone.rows.indptr.tolist() == [0, 4, 5, 9]
    assert everyone.rows.items.tolist() == [0, 1, 2, 3, 3, 0, 1, 2, 3]
    assert everyone.rows.values[:, 0].tolist() == [11] * 4 + [10] + [2] * 4
    new.rows.values[:], new.rows.items[:] = 99, 99
    kept = devices.take(np.arange(3)).rows
    assert (kept.values.max(), kept.items.max()) == (11, 3), "what was given is copied"


def test_a_snapshot_stays_as_it_was() -> None:
    devices = make_devices()
    before = {name: array.copy() for name, array in devices.arrays().items()}
    snapshot = devices.snapshot()
    devices.remember(5, Download(np.ones((4, 2), np.float32)))
    devices.put(np.array([0, 1, 2]), private_of([0], [1], [2], value=10.0), 5)
    devices.forget()
    assert list(devices.downloads) == [5]
    assert list(snapshot.downloads) == [0]
    for name, array in snapshot.arrays().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_downloads_are_kept_as_long_as_a_device_has_them() -> None:
    devices = make_devices()
    for version in (1, 2):
        devices.remember(version, Download(np.full((4, 2), version, np.float32)))
        devices.put(np.array([version]), private_of([0]), version)
        devices.forget()
    assert sorted(devices.downloads) == [0, 1, 2]
    devices.put(np.array([0]), private_of([0]), 2)
    devices.forget()
    assert sorted(devices.downloads) == [1, 2]
    assert devices.downloads[1].Q[0, 0] == 1


def test_devices_come_back_from_their_arrays() -> None:
    devices = make_devices()
    devices.remember(7, Download(np.full((4, 2), 7, np.float32)))
    devices.put(np.array([1]), private_of([3], value=4.0), 7)
    arrays = devices.arrays()
    kinds = private_of([]), Download(np.zeros((4, 2), np.float32))
    again = Devices.from_arrays(arrays, *kinds)
    assert again.n_users == 3
    assert again.version.tolist() == [0, 7, 0]
    assert sorted(again.downloads) == [0, 7]
    assert again.downloads[7].Q[0, 0] == 7
    assert list(again.arrays()) == list(arrays)
    for name, array in again.arrays().items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


def test_the_bytes_on_a_device_are_counted() -> None:
    """Three vectors of one number and six rows of two."""
    assert make_devices().mean_bytes() == pytest.approx((3 * 4 + 6 * 8) / 3, abs=1)


def test_lists_of_some_users_in_their_order() -> None:
    lists = Ragged(np.array([0, 2, 2, 5]), np.array([7, 8, 1, 2, 3], np.int32))
    some = select(lists, np.array([2, 1, 0, 2]))
    assert some.indptr.tolist() == [0, 3, 3, 5, 8]
    assert some.items.tolist() == [1, 2, 3, 7, 8, 1, 2, 3]
    assert select(lists, np.zeros(0, np.int64)).indptr.tolist() == [0]


def test_a_scoreboard_is_copied_and_loaded_whole(tiny_split: Split) -> None:
    board, everyone = Scoreboard(tiny_split), np.arange(tiny_split.n_users)
    scores = np.random.default_rng(0).random((len(everyone), tiny_split.n_items), np.float32)
    board.update(everyone, scores, scores)
    copy, loaded = board.snapshot(), Scoreboard(tiny_split)
    loaded.load(board.arrays())
    before = {name: array.copy() for name, array in board.arrays().items()}
    board.update(everyone, -scores, -scores)
    assert any((board.arrays()[name] != array).any() for name, array in before.items())
    for other in (copy, loaded):
        for name, array in before.items():
            np.testing.assert_array_equal(other.arrays()[name], array, err_msg=name)
    some = np.array([3, 1])
    board.update(some, scores[some], scores[some])
    np.testing.assert_array_equal(board.top[some], copy.top[some])
    for part in ("validation", "test"):
        ours, theirs = board.per_user(part), copy.per_user(part)
        for name in ours:
            np.testing.assert_array_equal(ours[name][some], theirs[name][some], err_msg=name)
