"""FedNCF against PyTorch: modules, autograd and dense Adam, client after client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conftest import relative_error
from unskew.engine import Federation
from unskew.kernels import draw_samples
from unskew.kernels.perceptron import score_mlp
from unskew.methods.fedncf import Config, FedNCF, initial_mlp
from unskew.ragged import select
from unskew.rng import Purpose
from unskew.types import Cohort, Rows, Split, UnskewError, Upload

torch = pytest.importorskip("torch", reason="PyTorch is the independent oracle")

from oracle import EpochOrders  # noqa: E402

SEED = 2
TOLERANCE = 1e-4
SETTINGS = [
    {"dim": 16, "batch": 64, "local_epochs": 2, "tolerance": 0.0},
    {"dim": 7, "batch": 50, "local_epochs": 3, "tolerance": 0.0},
    {"dim": 8, "batch": 256, "local_epochs": 8, "tolerance": 0.02},
    {"dim": 8, "batch": 32, "local_epochs": 2, "aggregate_from": 2},
]


def network(dim: int, weights: Any) -> Any:
    nn = torch.nn
    layers = [nn.Linear(2 * dim, dim), nn.Linear(dim, dim // 2), nn.Linear(dim // 2, 1)]
    made = nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2]).double()
    nn.utils.vector_to_parameters(torch.tensor(weights).double(), made.parameters())
    return made


def flat(module: Any) -> Any:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()


def logits(net: Any, p: Any, q: Any) -> Any:
    return net(torch.cat([p.expand(len(q), -1), q], dim=1)).squeeze(1)


def whole_table(rows: Rows, client: int, base: Any) -> Any:
    run = slice(rows.indptr[client], rows.indptr[client + 1])
    table = base.copy()
    table[rows.items[run]] = rows.values[run]
    return table


class Oracle:
    """Dense devices in double precision, and a server that averages whole models."""

    def __init__(self, method: FedNCF, split: Split) -> None:
        server, private = method.init(split.n_users, split.n_items, SEED)
        self.config, self.split = method.config, split
        self.Q, self.mlp = server.Q.astype(np.float64), server.mlp.astype(np.float64)
        self.p = private.p.astype(np.float64)
        self.models = dict.fromkeys(range(split.n_users), (self.Q, self.mlp))
        self.early = 0

    def play(self, round: int, users: Any) -> None:
        c, sent, weights = self.config, [], []
        for user in users.tolist():
            if round > c.aggregate_from:
                self.models[user] = (self.Q, self.mlp)
            only = np.array([user])
            lists = (select(self.split.train, only), select(self.split.excluded, only))
            cohort = Cohort(only, *lists, self.split.n_items, SEED, round)
            samples = draw_samples(cohort, c.negatives)
            items = torch.tensor(samples.touched.items[samples.row]).long()
            self.train(user, items, torch.tensor(samples.label).double(), cohort)
            sent.append(self.models[user])
            weights.append(len(items))
        if round >= c.aggregate_from:
            self.Q, self.mlp = (
                np.average([model[part] for model in sent], axis=0, weights=weights)
                for part in (0, 1)
            )

    def train(self, user: int, items: Any, labels: Any, cohort: Cohort) -> None:
        c, (Q, mlp) = self.config, self.models[user]
        net = network(c.dim, mlp)
        q, p = torch.tensor(Q, requires_grad=True), torch.tensor(self.p[user], requires_grad=True)
        adam = torch.optim.Adam([q, p, *net.parameters()], lr=c.learning_rate)
        orders = EpochOrders(len(items), cohort, user, Purpose.SHUFFLE_LOCAL)
        total, previous = 0.0, None
        for epoch in range(1, c.local_epochs + 1):
            for batch in torch.split(orders.next(), c.batch):
                adam.zero_grad()
                predicted = torch.sigmoid(logits(net, p, q[items[batch]]))
                loss = torch.nn.functional.binary_cross_entropy(predicted, labels[batch])
                loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
                adam.step()
                total += loss.item() * len(batch)
            mean = total / (epoch * len(items))
            if previous is not None and abs(mean - previous) / previous < c.tolerance:
                self.early += epoch < c.local_epochs
                break
            previous = mean
        self.p[user] = p.detach().numpy()
        self.models[user] = (q.detach().numpy(), flat(net))


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_two_rounds_are_what_pytorch_computes(settings: dict[str, Any], tiny_split: Split) -> None:
    method: Any = FedNCF(Config(**settings))
    oracle, sent = Oracle(method, tiny_split), []

    def record(upload: Upload, cohort: Cohort) -> Upload:
        sent.append((upload, cohort))
        return upload

    federation = Federation(method, tiny_split, SEED, chunk=7, transform=record)
    state = federation.start()
    first, fresh = state.server, state.devices.take(np.arange(tiny_split.n_users))
    errors: dict[str, float] = {}

    def note(what: str, ours: Any, theirs: Any) -> None:
        errors[what] = max(errors.get(what, 0.0), relative_error(ours, theirs))

    for round in (1, 2):
        before, Q, mlp = state.server, oracle.Q, oracle.mlp
        sent.clear()
        federation.step(state)
        oracle.play(round, federation.cohort_of(round))
        for upload, cohort in sent if round >= method.config.aggregate_from else []:
            for client, user in enumerate(cohort.users.tolist()):
                delta = whole_table(upload.rows, client, np.zeros_like(before.Q))
                note("uploaded items", delta, oracle.models[user][0] - Q)
                note("uploaded network", upload.dense[client], oracle.models[user][1] - mlp)
                n_samples = 5 * len(tiny_split.train.of(user))
                assert upload.weight[client] == n_samples
    note("server's items", state.server.Q - first.Q, oracle.Q - first.Q)
    note("server's network", state.server.mlp - first.mlp, oracle.mlp - first.mlp)
    for user, (Q, mlp) in oracle.models.items():
        private = state.devices.take(np.array([user]))
        download = state.devices.downloads[int(state.devices.version[user])]
        note("user", private.p[0] - fresh.p[user], oracle.p[user] - fresh.p[user])
        with torch.no_grad():
            expected = logits(
                network(method.config.dim, mlp), torch.tensor(oracle.p[user]), torch.tensor(Q)
            )
        note("scores", method.score(download, private)[0], expected)
    assert max(errors.values()) <= TOLERANCE, errors
    assert not method.config.tolerance > 1e-4 or oracle.early, "nobody stopped early"


def test_the_network_has_the_published_shape_and_starts_as_torch_starts_it() -> None:
    """2d -> d -> d/2 -> 1: 673 numbers for d = 16, each within 1 / sqrt(inputs)."""
    assert len(initial_mlp(16, 0)) == (32 * 16 + 16) + (16 * 8 + 8) + (8 + 1)
    mlp = initial_mlp(16, SEED)
    for part, inputs in zip(np.split(mlp, (528, 664)), (32, 16, 8), strict=True):
        assert np.abs(part).max() <= inputs**-0.5
        assert np.abs(part).max() > 0.5 * inputs**-0.5
    _, private = FedNCF().init(3, 5, SEED)
    np.testing.assert_array_equal(private.mlp, np.tile(mlp, (3, 1)))
    np.testing.assert_array_equal(private.p[0], private.p[2])


def test_only_items_and_network_leave_the_device(tiny_split: Split) -> None:
    method, users = FedNCF(Config(dim=8, local_epochs=2)), np.arange(4)
    server, private = method.init(len(users), tiny_split.n_items, SEED)
    lists = (select(tiny_split.train, users), select(tiny_split.excluded, users))
    cohort = Cohort(users, *lists, tiny_split.n_items, SEED, 1)
    after, upload, _ = method.local(server, private, cohort)
    assert upload.dense.shape == (4, len(initial_mlp(8, 0)))
    np.testing.assert_array_equal(upload.dense, after.mlp - server.mlp)
    assert upload.rows.values.shape[1] == 8
    assert (after.p != private.p).all()


def test_scores_of_many_items_use_the_rows_a_client_holds() -> None:
    """More items than are scored at a time; the second client holds rows at the block's edges."""
    generator, dim, n_items = np.random.default_rng(0), 6, 530
    table = generator.standard_normal((n_items, dim), np.float32)
    p = generator.standard_normal((2, dim), np.float32)
    mlps = np.stack([initial_mlp(dim, seed) for seed in (0, 1)])
    items = np.array([0, 255, 256, 300, n_items - 1], np.int32)
    values = generator.standard_normal((len(items), dim), np.float32)
    held = Rows(np.array([0, 0, len(items)]), items, values)
    scores = score_mlp(table, p, mlps, held)
    for client in (0, 1):
        own = torch.tensor(whole_table(held, client, table)).double()
        expected = logits(network(dim, mlps[client]), torch.tensor(p[client]).double(), own)
        assert relative_error(scores[client], expected.detach()) <= 1e-6


def test_a_network_needs_two_dimensions() -> None:
    with pytest.raises(UnskewError, match=r"dim = 1 must be .*at least 2"):
        Config(dim=1)
