"""pFedGraph against a solver of quadratic programmes, and against PyTorch on dense tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize

from conformance import make_cohort
from conftest import relative_error
from unskew.engine import Federation
from unskew.kernels import draw_samples
from unskew.kernels.pfedgraph import project_on_simplex
from unskew.methods.pfedgraph import Config, PFedGraph, Server, collaboration
from unskew.rng import Purpose
from unskew.types import Cohort, Rows, Split, Upload, Uploads

SEED = 4
TOLERANCE = 1e-4


def given_tables(server: Server) -> Any:
    """The aggregates as whole tables."""
    return server.Q + server.aggregates.reshape(-1, *server.Q.shape)


def dense_distances(updates: Any) -> Any:
    """The paper's d: negative cosines, those below -0.9 counted as -1."""
    sizes = np.linalg.norm(updates, axis=1)
    d = -(updates @ updates.T) / np.outer(sizes, sizes)
    return np.where(d < -0.9, -1.0, d)


def solved(d: Any, shares: Any, evenness: float) -> Any:
    """The programme as written, by a general solver."""
    answer = scipy.optimize.minimize(
        lambda x: evenness * x @ x + (d - 2 * evenness * shares) @ x,
        np.full(len(d), 1 / len(d)),
        jac=lambda x: 2 * evenness * x + d - 2 * evenness * shares,
        bounds=[(0, None)] * len(d),
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert answer.success
    return answer.x


def bisected(d: Any, shares: Any, evenness: float) -> Any:
    """The same to machine precision: the multiplier of sum x = 1, found as a root."""
    point = shares - d / (2 * evenness)
    excess = lambda t: np.maximum(point - t, 0).sum() - 1  # noqa: E731
    threshold = scipy.optimize.brentq(excess, point.min() - 1, point.max(), xtol=1e-15)
    return np.maximum(point - threshold, 0)


@pytest.mark.parametrize("evenness", [0.05, 0.8, 5.0])
@pytest.mark.parametrize("n", [1, 2, 7, 15])
def test_the_weights_solve_the_quadratic_programme(n: int, evenness: float) -> None:
    rng = np.random.default_rng(n)
    common = rng.standard_normal(40)
    updates = (common * rng.uniform(0, 3, (n, 1)) + rng.standard_normal((n, 40))).astype(np.float32)
    shares = rng.dirichlet(np.ones(n))
    ours = collaboration(updates, shares, evenness)
    d = dense_distances(updates.astype(np.float64))
    theirs = np.array([solved(row, shares, evenness) for row in d])
    np.testing.assert_allclose(ours, theirs, atol=2e-5)
    exact = np.array([bisected(row, shares, evenness) for row in d])
    np.testing.assert_allclose(ours, exact, atol=2e-5)
    assert (ours >= 0).all()
    np.testing.assert_allclose(ours.sum(1), 1.0, atol=1e-12)


def test_a_projection_changes_nothing_on_the_simplex_and_finds_corners() -> None:
    inside = np.random.default_rng(0).dirichlet(np.ones(9), 50)
    np.testing.assert_allclose(project_on_simplex(inside), inside, atol=1e-15)
    corner = project_on_simplex(np.array([[5.0, 1.0, -3.0], [0.2, 0.2, 0.2]]))
    np.testing.assert_allclose(corner, [[1, 0, 0], [1 / 3, 1 / 3, 1 / 3]], atol=1e-15)


def test_the_server_gives_each_sender_its_weighted_mean() -> None:
    rng = np.random.default_rng(1)
    n, n_items, dim = 6, 30, 4
    method = PFedGraph(Config(dim=dim))
    server, _ = method.init(50, n_items, SEED)
    tables = server.Q + rng.standard_normal((n, n_items, dim)).astype(np.float32)
    silent = 2
    weight = rng.integers(5, 50, n).astype(np.float64)
    weight[silent] = 0.0
    sends = weight > 0
    items = [np.arange(n_items) if sends[u] else np.arange(0) for u in range(n)]
    rows = Rows(
        np.concatenate(([0], np.cumsum([len(part) for part in items]))),
        np.concatenate(items).astype(np.int32),
        (tables - server.Q)[sends].reshape(-1, dim),
    )
    users = np.array([3, 8, 9, 20, 33, 41])
    upload = Upload(rows, np.zeros((n, 0), np.float32), weight)
    after = method.aggregate(server, Uploads(users, upload))
    flat = (tables - server.Q)[sends].reshape(5, -1).astype(np.float64)
    shares = weight[sends] / weight.sum()
    x = np.array([solved(d, shares, 0.8) for d in dense_distances(flat)])
    expected = np.einsum("uj,jik->uik", x, tables[sends])
    np.testing.assert_array_equal(after.users, users[sends])
    assert relative_error(given_tables(after), expected) < TOLERANCE


SETTINGS: list[dict[str, Any]] = [
    {"dim": 8, "aggregated": 0.5},
    {"dim": 16, "aggregated": 0.5, "pull": 0.0, "batch": 64},
    {"dim": 5, "aggregated": 0.7, "pull": 0.3, "batch": 64, "local_epochs": 3, "evenness": 0.3},
    {"dim": 5, "aggregated": 1.0, "aggregate_from": 2, "participation": 1.0, "local_epochs": 2},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_three_rounds_are_what_pytorch_computes(
    settings: dict[str, Any], tiny_split: Split
) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the independent oracle")
    from oracle import EpochOrders

    method: Any = PFedGraph(Config(**{"tolerance": 0.0, "participation": 0.8, **settings}))
    config, split = method.config, tiny_split
    sent: dict[int, tuple[Upload, int]] = {}

    def record(upload: Upload, cohort: Cohort) -> Upload:
        sent.update({int(u): (upload, c) for c, u in enumerate(cohort.users)})
        return upload

    federation = Federation(method, split, SEED, chunk=7, transform=record)
    state = federation.start()
    start = torch.tensor(state.server.Q).double()
    fresh = state.devices.take(np.arange(split.n_users))
    vectors = [torch.tensor(p).double() for p in fresh.p]
    tables = [start.clone() for _ in vectors]
    aggregates: dict[int, Any] = {}
    began_from_aggregate = 0

    def train(user: int, round: int) -> None:
        nonlocal began_from_aggregate
        cohort = make_cohort(split, np.array([user]), round, SEED)
        samples = draw_samples(cohort, config.negatives)
        items = torch.tensor(samples.touched.items[samples.row]).long()
        labels = torch.tensor(samples.label).double()
        target = aggregates.get(user)
        began_from_aggregate += target is not None
        p = vectors[user].clone().requires_grad_()
        Q = (tables[user] if target is None else target).clone().requires_grad_()
        optimiser = torch.optim.Adam([p, Q], lr=config.learning_rate)
        orders = EpochOrders(len(items), cohort, user, Purpose.SHUFFLE_LOCAL)
        for _ in range(config.local_epochs):
            for batch in torch.split(orders.next(), config.batch):
                optimiser.zero_grad()
                logits = Q[items[batch]] @ p
                loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[batch])
                if target is not None:
                    flat = torch.nn.functional.cosine_similarity(Q.ravel(), target.ravel(), dim=0)
                    loss = loss - config.pull * flat
                loss.backward()
                optimiser.step()
        vectors[user], tables[user] = p.detach(), Q.detach()

    for round in (1, 2, 3):
        sent.clear()
        federation.step(state)
        users = federation.cohort_of(round).tolist()
        for user in users:
            train(user, round)
        weights = {u: float(sent[u][0].weight[sent[u][1]]) for u in users}
        senders = [u for u in users if weights[u] > 0]
        aggregates = {}
        if senders:
            shares = np.array([weights[u] for u in senders])
            shares /= shares.sum()
            moved = np.array([(tables[u] - start).numpy().ravel() for u in senders])
            for user, d in zip(senders, dense_distances(moved), strict=True):
                x = torch.tensor(bisected(d, shares, config.evenness))
                mixed = sum(w * tables[v] for w, v in zip(x, senders, strict=True))
                aggregates[user] = mixed
        server: Server = state.server
        assert server.users.tolist() == senders
        for table, user in zip(given_tables(server), senders, strict=True):
            assert relative_error(table - server.Q, aggregates[user] - start) < TOLERANCE
    assert began_from_aggregate > 3
    for user in range(split.n_users):
        private = state.devices.take(np.array([user]))
        scores = method.score(state.server, private)[0]
        assert relative_error(private.p[0], vectors[user]) < TOLERANCE
        assert relative_error(scores, tables[user] @ vectors[user]) < TOLERANCE


def test_devices_that_are_not_drawn_send_nothing(small_split: Split) -> None:
    method = PFedGraph(Config(dim=4, local_epochs=1))
    users = np.arange(small_split.n_users)
    server, private = method.init(len(users), small_split.n_items, SEED)
    shares = []
    for round in range(1, 6):
        _, upload, _ = method.local(server, private, make_cohort(small_split, users, round, SEED))
        sends = upload.weight > 0
        np.testing.assert_array_equal(np.diff(upload.rows.indptr) > 0, sends)
        shares.append(sends.mean())
    assert 0.05 < np.mean(shares) < 0.16, "about a tenth sends"


def test_only_an_aggregate_of_the_last_round_is_used(tiny_split: Split) -> None:
    """A client outside the last aggregation goes on with its own table, whatever others did."""
    method = PFedGraph(Config(dim=4, local_epochs=1))
    users = np.arange(tiny_split.n_users)
    server, private = method.init(len(users), tiny_split.n_items, SEED)
    foreign = np.ones((1, server.Q.size), np.float32)
    given = Server(server.Q, np.array([5]), foreign)
    cohort = make_cohort(tiny_split, users, 2, SEED)
    plain, with_one = (method.local(s, private, cohort)[0] for s in (server, given))
    same = [np.array_equal(a, b) for a, b in zip(plain.p, with_one.p, strict=True)]
    assert [user for user in users.tolist() if not same[user]] == [5]
    assert np.diff(with_one.Q.indptr)[5] == tiny_split.n_items
