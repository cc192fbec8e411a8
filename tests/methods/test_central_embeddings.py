"""MF, NCF and LightGCN against PyTorch: the same samples in the same order, dense tables, autograd,
torch's own Adam; and newcomers, who are to be treated like everybody else."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from unskew.engine import Federation
from unskew.kernels import draw_samples, set_threads
from unskew.methods.lightgcn import LightGCN
from unskew.methods.mf import MF
from unskew.methods.ncf import NCF
from unskew.types import Cohort, Split

torch = pytest.importorskip("torch", reason="PyTorch is the independent oracle")

from oracle import EpochOrders  # noqa: E402

from unskew.rng import Purpose  # noqa: E402

SEED, EPOCHS, TOLERANCE = 4, 2, 1e-4


def cohort_of(split: Split, round: int, users: Any = None) -> Cohort:
    assert users is None
    everyone = np.arange(split.n_users)
    return Cohort(everyone, split.train, split.excluded, split.n_items, SEED, round)


def drawn(split: Split, round: int, negatives: int) -> tuple[Any, Any, Any]:
    """User, item and label of every sample of an epoch, written out in plain loops."""
    samples = draw_samples(cohort_of(split, round), negatives)
    users, items = [], []
    for user in range(split.n_users):
        touched = samples.touched.of(user)
        for place in range(samples.indptr[user], samples.indptr[user + 1]):
            users.append(user)
            items.append(int(touched[samples.row[place]]))
    return torch.tensor(users), torch.tensor(items), torch.tensor(samples.label)


def epoch_order(n: int, split: Split, round: int) -> Any:
    return EpochOrders(n, cohort_of(split, round), 0, Purpose.SHUFFLE_LOCAL).next()


def relative(ours: Any, start: Any, theirs: Any) -> float:
    """The difference, relative to how far PyTorch has moved from the start."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs.detach(), np.float64)
    moved = np.linalg.norm(b - start)
    assert moved > 0
    return float(np.linalg.norm(a - b) / moved)


def parameter(array: Any) -> Any:
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


def trained(method: Any, split: Split) -> tuple[Any, Any, Any, Any, list[float]]:
    server, private = method.init(split.n_users, split.n_items, SEED)
    start, losses = (server, private), []
    for round in range(1, EPOCHS + 1):
        server, private, loss = method.epoch(server, private, cohort_of(split, round))
        losses.append(loss)
    return *start, server, private, losses


def batches_of(order: Any, size: int) -> Any:
    return torch.split(order, size)


def minimise(optimiser: Any, loss: Any) -> None:
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()


@pytest.mark.parametrize(("dim", "batch", "decay"), [(16, 100, 0.02), (5, 4096, 0.0)])
def test_mf_computes_what_pytorch_computes(
    tiny_split: Split, dim: int, batch: int, decay: float
) -> None:
    method = MF(MF.Config(dim=dim, batch=batch, decay=decay, learning_rate=0.02))
    first, fresh, server, private, losses = trained(method, tiny_split)
    P, Q = parameter(fresh.p), parameter(first.Q)
    optimiser = torch.optim.Adam([P, Q], lr=0.02)
    for round in range(1, EPOCHS + 1):
        users, items, labels = drawn(tiny_split, round, method.config.negatives)
        total = 0.0
        for batch_ in batches_of(epoch_order(len(users), tiny_split, round), batch):
            p, q, y = P[users[batch_]], Q[items[batch_]], labels[batch_].double()
            bce = torch.nn.functional.binary_cross_entropy_with_logits((p * q).sum(1), y)
            penalty = decay / 2 * ((p**2).sum(1) + (q**2).sum(1)).mean()
            minimise(optimiser, bce + penalty)
            total += bce.item() * len(batch_)
        assert losses[round - 1] == pytest.approx(total / len(users), rel=1e-5)
    assert relative(private.p, fresh.p, P) <= TOLERANCE
    assert relative(server.Q, first.Q, Q) <= TOLERANCE
    scores = method.score(method.download(server), private)
    np.testing.assert_allclose(scores, (P @ Q.T).detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [MF, NCF])
def test_a_batch_larger_than_the_data_is_all_of_it(tiny_split: Split, kind: Any) -> None:
    whole, huge = (
        trained(kind(kind.Config(dim=4, batch=batch)), tiny_split) for batch in (10**6, 2**62)
    )
    assert huge[4] == whole[4]
    np.testing.assert_array_equal(huge[2].Q, whole[2].Q)


def test_ncf_scores_every_user_with_the_one_network() -> None:
    """Without a copy of it for each: with dim = 1600 those of a few users would take 600 MB."""
    method = NCF(NCF.Config(dim=4))
    server, private = method.init(9, 30, SEED)
    p = np.random.default_rng(2).standard_normal((9, 4)).astype(np.float32)
    download = method.download(server)
    scores = method.score(download, private._replace(p=p))
    for user in range(9):
        alone = method.score(download, private._replace(p=p[user : user + 1]))
        np.testing.assert_array_equal(scores[user], alone[0])
    assert len(np.unique(scores)) > 200


@pytest.mark.parametrize(("dim", "batch", "decay"), [(16, 600, 0.02), (5, 100, 0.0)])
def test_ncf_computes_what_pytorch_computes(
    tiny_split: Split, dim: int, batch: int, decay: float
) -> None:
    """Batches of more and of less than the kernel's columns."""
    method = NCF(NCF.Config(dim=dim, batch=batch, decay=decay, learning_rate=0.01))
    first, fresh, server, private, losses = trained(method, tiny_split)
    P, Q = parameter(fresh.p), parameter(first.Q)
    widths = [2 * dim, dim, dim // 2, 1]
    network: list[Any] = []
    place = 0
    for wide, narrow in pairwise(widths):
        layer = torch.nn.Linear(wide, narrow, dtype=torch.float64)
        with torch.no_grad():
            for part in (layer.weight, layer.bias):
                chunk = first.w[place : place + part.numel()]
                part.copy_(torch.tensor(chunk).reshape(part.shape))
                place += part.numel()
        network += [layer, torch.nn.ReLU()]
    assert place == len(first.w)
    mlp = torch.nn.Sequential(*network[:-1])
    optimiser = torch.optim.Adam([P, Q, *mlp.parameters()], lr=0.01)
    for round in range(1, EPOCHS + 1):
        users, items, labels = drawn(tiny_split, round, method.config.negatives)
        total = 0.0
        for batch_ in batches_of(epoch_order(len(users), tiny_split, round), batch):
            p, q, y = P[users[batch_]], Q[items[batch_]], labels[batch_].double()
            z = mlp(torch.cat((p, q), 1))[:, 0]
            bce = torch.nn.functional.binary_cross_entropy_with_logits(z, y)
            minimise(optimiser, bce + decay / 2 * ((p**2).sum(1) + (q**2).sum(1)).mean())
            total += bce.item() * len(batch_)
        assert losses[round - 1] == pytest.approx(total / len(users), rel=1e-5)
    weights = torch.cat([part.reshape(-1) for part in mlp.parameters()])
    assert relative(private.p, fresh.p, P) <= TOLERANCE
    assert relative(server.Q, first.Q, Q) <= TOLERANCE
    assert relative(server.w, first.w, weights) <= TOLERANCE
    scores = method.score(method.download(server), private)
    for user in (0, tiny_split.n_users - 1):
        pairs = torch.cat((P[user].expand(len(Q), dim), Q), 1)
        np.testing.assert_allclose(scores[user], mlp(pairs)[:, 0].detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("layers", "negatives"), [(3, 1), (1, 2)])
def test_lightgcn_computes_what_pytorch_computes(
    tiny_split: Split, layers: int, negatives: int
) -> None:
    method = LightGCN(
        LightGCN.Config(
            layers=layers, negatives=negatives, batches=3, decay=0.02, learning_rate=0.02
        )
    )
    first, fresh, server, private, losses = trained(method, tiny_split)
    n_users, n_items = tiny_split.n_users, tiny_split.n_items
    X = torch.zeros(n_users, n_items, dtype=torch.float64)
    for user in range(n_users):
        X[user, torch.tensor(tiny_split.train.of(user), dtype=torch.long)] = 1
    adjacency = torch.zeros(n_users + n_items, n_users + n_items, dtype=torch.float64)
    adjacency[:n_users, n_users:], adjacency[n_users:, :n_users] = X, X.T
    root = adjacency.sum(1).clamp(min=1) ** -0.5
    A = root[:, None] * adjacency * root[None, :]
    E0 = parameter(np.concatenate((fresh.E0, first.E0)))

    def propagated() -> Any:
        every = [E0]
        for _ in range(layers):
            every.append(A @ every[-1])
        return torch.stack(every).mean(0)

    optimiser = torch.optim.Adam([E0], lr=0.02)
    for round in range(1, EPOCHS + 1):
        users, items, labels = drawn(tiny_split, round, negatives)
        u, i, j = [], [], []
        for place in torch.nonzero(labels == 0)[:, 0].tolist():
            before = place
            while labels[before] == 0:
                before -= 1
            u.append(int(users[place]))
            i.append(n_users + int(items[before]))
            j.append(n_users + int(items[place]))
        nodes = torch.tensor([u, i, j])
        total = 0.0
        for batch in torch.tensor_split(epoch_order(len(u), tiny_split, round), 3):
            E = propagated()
            p, better, worse = (E[nodes[k, batch]] for k in range(3))
            bpr = -torch.nn.functional.logsigmoid((p * (better - worse)).sum(1)).mean()
            penalty = 0.02 / 2 * (E0[nodes[:, batch]] ** 2).sum((0, 2)).mean()
            minimise(optimiser, bpr + penalty)
            total += bpr.item() * len(batch)
        assert losses[round - 1] == pytest.approx(total / len(u), rel=1e-5)
    start = np.concatenate((fresh.E0, first.E0))
    assert relative(np.concatenate((private.E0, server.E0)), start, E0) <= TOLERANCE
    both = np.concatenate((private.p, server.Q))
    assert relative(both, np.zeros_like(both), propagated()) <= TOLERANCE


def test_a_newcomer_to_lightgcn_is_a_user_whose_own_embedding_is_zero(tiny_split: Split) -> None:
    """e_u without its own share (E0 + A A E0 restricted to u ...) needs a graph with u in it; with
    one layer there is no way back from u to u and the two must agree exactly."""
    method = LightGCN(LightGCN.Config(layers=1, rounds=2))
    _, fresh, server, private, _ = trained(method, tiny_split)
    folded = method.fold_in(method.download(server), fresh, cohort_of(tiny_split, 1))
    np.testing.assert_allclose(folded.p, private.p - private.E0 / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [MF, NCF, LightGCN])
def test_it_learns_and_newcomers_are_served_nearly_as_well(small_split: Split, kind: Any) -> None:
    method = kind(kind.Config(rounds=40, learning_rate=0.02))
    federation = Federation(method, small_split, SEED)
    state = federation.start()
    for _ in range(method.config.rounds):
        row = federation.step(state)
    assert row["loss"] < state.rows[0]["loss"]
    everyone = np.arange(small_split.n_users)
    download = method.download(state.server)
    _, fresh = method.init(small_split.n_users, small_split.n_items, SEED)
    folded = method.fold_in(download, fresh, cohort_of(small_split, 1))
    own = method.score(download, state.devices.take(everyone))
    new = method.score(download, folded)
    agreement = [np.corrcoef(own[user], new[user])[0, 1] for user in everyone]
    assert np.mean(agreement) > 0.8, np.mean(agreement)


@pytest.mark.parametrize("kind", [MF, NCF, LightGCN])
def test_threads_change_nothing(tiny_split: Split, kind: Any, threads_restored: None) -> None:
    results = []
    for threads in (1, 3):
        set_threads(threads)
        _, _, server, private, losses = trained(
            kind(kind.Config(batch=200) if kind is not LightGCN else kind.Config()), tiny_split
        )
        results.append([array.tobytes() for array in (*server, *private)] + losses)
    assert results[0] == results[1]
