"""FedNext: gradients against PyTorch's, its stages, recent popularity, and learning an order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import conformance
from unskew.engine import Checkpoints, Federation
from unskew.kernels import add_uploads, set_threads
from unskew.kernels.fednext import draw_windows
from unskew.kernels.history_network import GROUPS, unpack
from unskew.methods import create
from unskew.methods._fednext import (
    FIRST_STAGE_ROUNDS,
    POPULARITY_STEP,
    refit_part,
    scale,
    shuffle_ties,
)
from unskew.ragged import indptr_from_counts
from unskew.types import Cohort, Ragged, Split, UnskewError

SMALL: dict[str, Any] = {
    "dim": 16,
    "base_dim": 6,
    "window": 7,
    "negatives": 20,
    "dropout": 0.0,
    "rounds": 40,
    "warm_up": 2,
}


def ragged(lists: list[list[int]]) -> Ragged:
    flat = np.array([item for one in lists for item in one], np.int32)
    return Ragged(indptr_from_counts([len(one) for one in lists]), flat)


def cycles(n_users: int, n_items: int, length: int) -> Ragged:
    """Histories in which the next item is always the item's number plus one."""
    return ragged([[(u + t) % n_items for t in range(length)] for u in range(n_users)])


def cohort_of(history: Ragged, n_items: int, round: int = 1, **more: Any) -> Cohort:
    users = np.arange(len(history.counts()))
    return Cohort(users, history, history, n_items, 0, round, **more)


def train(method: Any, history: Ragged, n_items: int, rounds: int, ages: Any = None) -> Any:
    """The server after so many rounds in which everybody takes part."""
    server, private = method.init(len(history.counts()), n_items, 0)
    for round in range(1, rounds + 1):
        cohort = cohort_of(history, n_items, round, ages=ages)
        private, upload, _ = method.local(method.download(server), private, cohort)
        total = add_uploads(None, upload, n_items).result()
        server = method.aggregate(server, total)
    return server


def scores(method: Any, server: Any, history: Ragged) -> Any:
    _, private = method.init(len(history.counts()), len(server.U), 0)
    download = method.download(server)
    return method.score(download, method.refresh(download, private, history))


def torch_loss(
    torch: Any, method: Any, download: Any, items: Any, R: Any, net: Any
) -> tuple[Any, Any]:
    """The definition: logits of every position's next item, of the negatives, their cross-entropy.
    Also returns the vectors h."""
    d, n_items, T = method.config.dim, len(R), len(items) - 1
    w = unpack(np.arange(len(net)).astype(np.float32), d)  # where each weight is in the flat array
    take = lambda part: net[torch.from_numpy(part.astype(np.int64))]  # noqa: E731
    norms = take(w.norms)

    def normalise(x: Any, k: int) -> Any:
        return torch.nn.functional.layer_norm(x, (d,), norms[2 * k], norms[2 * k + 1], 1e-5)

    x0 = R[items[:-1], :d]
    y = normalise(x0, 0)
    v, gate = y @ take(w.Wv), torch.sigmoid(y @ take(w.Wg))
    keep = torch.sigmoid(take(w.decay_logits)).repeat_interleave(d // GROUPS)
    age = torch.arange(T)[:, None] - torch.arange(T)[None]
    past = torch.where(age[..., None] >= 0, keep ** age.clamp(0)[..., None], 0.0)
    mean = (past * v[None]).sum(1) / past.sum(1)
    x1 = x0 + (mean * gate) @ take(w.Wo)
    hidden = torch.relu(normalise(x1, 1) @ take(w.W1) + take(w.b1))
    h = normalise(x1 + hidden @ take(w.W2) + take(w.b2), 2)
    f = [
        method._refit.refresh(refit_part(download), method.init(1, n_items, 0)[1], ragged([p])).p[0]
        for p in (items[: t + 1].tolist() for t in range(T))
    ]
    base = torch.from_numpy(np.stack(f) @ download.V.T) / scale(download)
    g = torch.log(torch.nn.functional.softplus(base.double()) + 1e-4)
    z = h @ R[:, :d].T + R[:, d] + take(w.tau) * g
    raised = np.log(n_items / len(download.negatives))
    loss = 0.0
    for t in range(T):
        others = [j for j in download.negatives.tolist() if j != items[t + 1]]
        logits = torch.cat([z[t, items[t + 1]][None], z[t, others] + raised])
        loss = loss - torch.log_softmax(logits, 0)[0] / T
    return loss, h


def test_gradients_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    n_items, rng = 30, np.random.default_rng(3)
    history = ragged([rng.choice(n_items, 8, replace=False).tolist() for _ in range(12)])
    method: Any = create("fednext", **SMALL)
    server = train(method, history, n_items, FIRST_STAGE_ROUNDS)
    # Every weight away from its start, so that none has a gradient of zero by symmetry.
    shake = lambda a: (a + 0.1 * rng.standard_normal(a.shape)).astype(np.float32)  # noqa: E731
    server = server._replace(R=shake(server.R), net=shake(server.net))
    download = method.download(server)
    one = cohort_of(ragged([history.of(0).tolist()]), n_items)
    _, upload, losses = method.local(download, method.init(1, n_items, 0)[1], one)

    R = torch.from_numpy(download.R.astype(np.float64)).requires_grad_()
    net = torch.from_numpy(download.net.astype(np.float64)).requires_grad_()
    loss, _ = torch_loss(torch, method, download, history.of(0), R, net)
    loss.backward()
    assert losses[0] == pytest.approx(loss.item(), rel=1e-4)
    found, count = np.zeros((n_items, 17)), len(download.negatives)
    found[upload.rows.items] += upload.rows.values
    found[download.negatives, :16] += upload.dense[0, : count * 16].reshape(count, 16)
    found[download.negatives, 16] += upload.dense[0, count * 16 : count * 17]
    for ours, theirs in ((found, R.grad), (upload.dense[0, count * 17 :], net.grad)):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-3, atol=2e-5)


def test_dropout_is_the_client_s_own_and_keeps_the_mean() -> None:
    """Another client in the chunk changes nothing; another round draws other entries."""
    n_items = 30
    method: Any = create("fednext", **(SMALL | {"dropout": 0.5}))
    history = cycles(12, n_items, 8)
    server = train(method, history, n_items, FIRST_STAGE_ROUNDS + 1)
    download, (_, private) = method.download(server), method.init(12, n_items, 0)

    def upload(users: NDArray[np.int64], round: int) -> Any:
        mine = ragged([history.of(u).tolist() for u in users])
        cohort = Cohort(users, mine, mine, n_items, 0, round)
        states = type(private)(*(leaf[users] for leaf in private))
        return method.local(download, states, cohort)[1]

    together, alone = upload(np.arange(4), 20), upload(np.array([2]), 20)
    np.testing.assert_array_equal(together.dense[2], alone.dense[0])
    assert not np.array_equal(upload(np.array([2]), 21).dense, alone.dense)


def test_a_window_is_a_run_of_the_history() -> None:
    history = ragged([list(range(10)), [4], [], [7, 8, 9]])
    starts = set()
    for round in range(40):
        windows = draw_windows(cohort_of(history, 10, round), 4)
        first = windows.of(0)
        np.testing.assert_array_equal(np.diff(first), 1)
        starts.add(int(first[0]))
        assert windows.counts().tolist() == [4, 0, 0, 3]
    assert starts == set(range(7))


def test_the_second_stage_starts_from_the_last_fit(tiny_split: Split) -> None:
    """The same order of items, before the network has learned anything."""
    method: Any = create("fednext", **SMALL)
    server = train(method, tiny_split.train, tiny_split.n_items, FIRST_STAGE_ROUNDS)
    found = scores(method, server, tiny_split.train)
    part = refit_part(server)
    _, private = method._refit.init(tiny_split.n_users, tiny_split.n_items, 0)
    base = method._refit.score(part, method._refit.refresh(part, private, tiny_split.train))
    for ours, theirs in zip(found, base, strict=True):
        best = np.argsort(-theirs)[:10]
        assert (np.diff(ours[best]) <= 1e-6).all()


def test_recent_items_are_popular_in_the_trend_round() -> None:
    """Items 0 and 1 have as many users, item 1's interactions are new."""
    history = ragged([[2, 3, 0], [2, 3, 1], [3, 2, 0], [3, 2, 1]] * 3)
    new = [1.0, 0.9, 0.9, 0.1, 0.1, 0.0] * 6
    method: Any = create("fednext", **SMALL)
    with_ages = train(method, history, 6, POPULARITY_STEP + 1, np.array(new))
    assert 2 < with_ages.recent[1] > 10 * with_ages.recent[0]
    old, new_item = scores(method, with_ages, ragged([[2, 3]]))[0, :2]
    assert new_item > old + 1
    without = train(method, history, 6, POPULARITY_STEP + 1)
    np.testing.assert_allclose(without.recent[:2], without.recent[0])
    assert without.recent.mean() == pytest.approx(1)


def test_nothing_is_sent_in_the_popularity_round(tiny_split: Split) -> None:
    method: Any = create("fednext", **SMALL)
    server = train(method, tiny_split.train, tiny_split.n_items, POPULARITY_STEP)
    cohort = conformance.make_cohort(tiny_split, np.arange(tiny_split.n_users), POPULARITY_STEP + 1)
    _, private = method.init(tiny_split.n_users, tiny_split.n_items, 0)
    _, upload, _ = method.local(method.download(server), private, cohort)
    assert not len(upload.rows.items)
    assert not upload.dense.size


def test_the_network_learns_what_the_base_cannot() -> None:
    """Two kinds of history share their last items; what follows depends on an early one."""
    n_items = 24
    walks = [[kind, 2, 3, 4, 5, 6 + kind] for kind in (0, 1)] * 40
    history = ragged(walks)
    method: Any = create("fednext", **(SMALL | {"learning_rate": 0.01, "rounds": 200}))
    asked = ragged([[0, 2, 3, 4, 5], [1, 2, 3, 4, 5]])
    server = train(method, history, n_items, 150)
    assert scores(method, server, asked).argmax(1).tolist() == [6, 7]


def test_states_of_newcomers_and_members_are_the_same(tiny_split: Split) -> None:
    method: Any = create("fednext", **SMALL)
    federation = Federation(method, tiny_split, 0)
    state = federation.run(FIRST_STAGE_ROUNDS + 2)
    download = state.devices.downloads[int(state.devices.version[3])]
    cohort = federation.cohort(np.array([3]), 1)
    folded = method.fold_in(download, method.init(1, tiny_split.n_items, 0)[1], cohort)
    for ours, kept in zip(folded, state.devices.take(np.array([3])), strict=True):
        np.testing.assert_array_equal(ours, kept)


def test_only_a_coarse_clock_loses_the_order_of_equal_times() -> None:
    history = ragged([list(range(40)), list(range(40))])
    months = np.repeat([0.9, 0.5, 0.4, 0.1], 10)
    minutes = np.repeat(np.linspace(0.9, 0.1, 20), 2)
    cohort = cohort_of(history, 40, ages=np.concatenate([months, minutes]))
    first, second = (shuffle_ties(cohort.at_round(round)).positives for round in (9, 10))
    assert not np.array_equal(first.of(0), second.of(0))
    for month in range(0, 40, 10):
        same = slice(month, month + 10)
        assert sorted(first.of(0)[same]) == sorted(history.of(0)[same])
    np.testing.assert_array_equal(first.of(1), history.of(1))
    alone = cohort_of(ragged([list(range(40))]), 40, 9, ages=months)
    np.testing.assert_array_equal(shuffle_ties(alone).positives.of(0), first.of(0))


def test_devices_with_and_without_times_count_alike() -> None:
    """On average over all ages; otherwise a device without times would count seventyfold."""
    history = ragged([[0, 1, 2, 3]] * 40)
    method: Any = create("fednext", **SMALL)
    server, private = method.init(40, 6, 0)
    sums = []
    for ages in (np.linspace(0, 1, 160), None):
        cohort = cohort_of(history, 6, ages=ages)
        _, upload, _ = method.local(method.download(server), private, cohort)
        sums.append(upload.rows.values[:, -1].sum())
    assert sums[0] == pytest.approx(sums[1], rel=0.3)


def test_a_download_that_mixes_the_stages_is_refused(tiny_split: Split) -> None:
    method: Any = create("fednext", **SMALL)
    n_items = tiny_split.n_items
    server = train(method, tiny_split.train, n_items, FIRST_STAGE_ROUNDS)
    whole = method.download(server)
    early = method.download(train(method, tiny_split.train, n_items, 2))
    assert method.check_download(whole) is None
    assert method.check_download(early) is None
    stages = "it mixes the two stages"
    assert method.check_download(whole._replace(V=early.V)) == stages
    assert method.check_download(whole._replace(net=early.net)) == stages
    assert method.check_download(whole._replace(step=early.step)) == stages
    assert method.check_download(early._replace(step=whole.step)) == stages
    outside = whole.negatives.copy()
    outside[-1] = n_items
    told = method.check_download(whole._replace(negatives=outside))
    assert told == "its negatives are not item numbers in ascending order"
    assert method.check_download(whole._replace(users=whole.users * 0)) is not None


@pytest.mark.usefixtures("threads_restored")
def test_the_second_stage_has_the_same_bits_however_it_runs(
    tmp_path: Path, tiny_split: Split
) -> None:
    """Whatever the number of threads and of clients at a time, and after a stop in between."""
    last, method = FIRST_STAGE_ROUNDS + 4, create("fednext", **(SMALL | {"participation": 0.5}))
    plain = Federation(method, tiny_split, 0).run(last)
    checkpoints = Checkpoints(tmp_path / "state")
    Federation(method, tiny_split, 0).run(last - 2, checkpoints=checkpoints)
    resumed = Federation(method, tiny_split, 0).run(last, checkpoints=checkpoints)
    set_threads(1)
    small = Federation(method, tiny_split, 0, chunk=3).run(last)
    for other in (resumed, small):
        for ours, theirs in zip(plain.server, other.server, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert plain.rows[-1]["loss"] == other.rows[-1]["loss"]


def test_a_dimension_that_its_groups_cannot_share_is_refused() -> None:
    with pytest.raises(UnskewError, match="give a multiple of 8"):
        create("fednext", dim=12)
