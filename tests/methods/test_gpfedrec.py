"""GPFedRec against PyTorch with three SGD optimisers, and its server against dense arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conformance import make_cohort
from conftest import relative_error
from unskew.engine import Federation
from unskew.kernels import draw_samples
from unskew.kernels.gpfedrec import (
    Packed,
    RoundTables,
    empty_packed,
    neighbour_graph,
    pack,
    unpack,
    unpack_rows,
)
from unskew.methods.gpfedrec import Config, GPFedRec, Server, own_tables
from unskew.rng import Purpose
from unskew.types import Ragged, Rows, Split, UnskewError, Upload, Uploads

SEED = 4
TOLERANCE = 1e-4
Array = NDArray[np.float64]


def pack_tables(values: NDArray[np.float32]) -> Packed:
    packed = empty_packed(*values.shape)
    pack(packed, np.arange(len(values)), 0, values)
    return packed


def dense_graph(tables: Array, threshold: float) -> Array:
    """Weights of message passing from whole tables: uniform over those far away, else oneself."""
    flat = tables.reshape(len(tables), -1)
    sizes = np.linalg.norm(flat, axis=1)
    apart = 1 - flat @ flat.T / np.outer(sizes, sizes)
    np.fill_diagonal(apart, 0.0)
    weights = np.zeros_like(apart)
    for user, row in enumerate(apart):
        far = row > threshold * apart.mean()
        if far.any():
            weights[user, far] = 1 / far.sum()
        else:
            weights[user, user] = 1.0
    return weights


@pytest.mark.parametrize(("n_users", "n_items"), [(12, 7), (12, 300), (500, 90)])
@pytest.mark.parametrize("threshold", [0.5, 1.0, 100.0])
@pytest.mark.parametrize("spread", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("beside", [1.0, 0.03], ids=["anywhere", "alike"])
def test_the_server_step_is_the_dense_one(
    n_users: int, n_items: int, threshold: float, spread: float, beside: float
) -> None:
    """Whether clients' tables lie anywhere, or near a few directions as means of many do, with a
    row or two that have hardly changed."""
    rng = np.random.default_rng(n_items)
    dim = 6
    method = GPFedRec(Config(dim=dim, threshold=threshold))
    Q = rng.standard_normal((n_items, dim)).astype(np.float32)
    alike = rng.standard_normal((n_users, 3)) @ rng.standard_normal((3, n_items * dim))
    anywhere = beside * rng.standard_normal((n_users, n_items * dim))
    own = (spread * (anywhere + (1 - beside) * alike)).astype(np.float32)
    server = Server(Q, *pack_tables(own))
    users = np.sort(rng.permutation(n_users)[: 2 * n_users // 3])
    factor = rng.uniform(0, 0.5, len(users)).astype(np.float32)
    items = [np.sort(rng.permutation(n_items)[: rng.integers(1, 7)]) for _ in users]
    flat = np.concatenate(items).astype(np.int32)
    values = rng.standard_normal((len(flat), dim))
    values[rng.random(len(flat)) < 0.3] *= 1e-5
    indptr = np.concatenate(([0], np.cumsum([len(part) for part in items])))
    rows = Rows(indptr, flat, values.astype(np.float32))
    upload = Upload(rows, factor[:, None], np.ones(len(users)))
    after = method.aggregate(server, Uploads(users, upload))

    r = Q + own_tables(server, np.arange(n_users)).reshape(n_users, n_items, dim).astype(np.float64)
    assert relative_error(r - Q, own.reshape(r.shape)) < TOLERANCE
    tables = r[users] + factor[:, None, None] * (Q - r[users])
    for client, touched in enumerate(items):
        tables[client, touched] += rows.values[rows.indptr[client] : rows.indptr[client + 1]]
    weights = dense_graph(tables, threshold)
    expected = np.einsum("uv,vik->uik", weights, tables)
    uploads = RoundTables(Packed(*server[1:]), users, rows, factor)
    graph = neighbour_graph(Q, uploads, threshold)
    np.testing.assert_array_equal(graph, weights > 0)
    assert relative_error(after.Q, expected.mean(0)) < TOLERANCE
    r[users] = expected
    ours = after.Q + own_tables(after, np.arange(n_users)).reshape(r.shape)
    assert relative_error(ours, r) < TOLERANCE
    np.testing.assert_array_equal(own_tables(server, users), own_tables(server, users))


def test_tables_that_have_diverged_do_not_stop_the_server() -> None:
    own = np.ones((8, 30), np.float32)
    own[3, 2] = np.nan
    method, rows = GPFedRec(Config(dim=6)), Rows.empty(8, 6)
    server = Server(np.ones((5, 6), np.float32), *pack_tables(own))
    upload = Upload(rows, np.zeros((8, 1), np.float32), np.ones(8))
    after = method.aggregate(server, Uploads(np.arange(8), upload))
    assert np.isnan(own_tables(after, np.arange(8))).any()


def test_packing_loses_little_and_zero_stays_zero() -> None:
    values = np.random.default_rng(0).standard_normal((5, 2055)).astype(np.float32)
    values[2] = 0.0
    values[3] *= 1e-20
    packed = pack_tables(values)
    users = np.array([4, 2, 3])
    back = unpack(packed, users, 0, values.shape[1])
    largest = np.abs(values[users]).max(1, keepdims=True)
    assert (np.abs(back - values[users]) <= 1.6e-5 * largest).all()
    assert not back[1].any()
    np.testing.assert_array_equal(unpack(packed, users, 1000, 2050), back[:, 1000:2050])
    width, chosen = 5, Ragged(np.array([0, 2, 2, 3]), np.array([12, 410, 99], np.int32))
    some = unpack_rows(packed, users, chosen, width)
    for row, (client, item) in zip(some, [(0, 12), (0, 410), (2, 99)], strict=True):
        np.testing.assert_array_equal(row, back[client, item * width : (item + 1) * width])
    newcomers = unpack_rows(packed, np.array([9, 2, 99]), chosen, width)
    last = unpack_rows(packed, np.array([4, 2, 4]), chosen, width)
    np.testing.assert_array_equal(newcomers, last)


SETTINGS: list[dict[str, Any]] = [
    {"dim": 16},
    {"dim": 16, "batch": 64, "local_epochs": 2, "reg": 0.5, "rate_factor": 20.0},
    {"dim": 8, "batch": 64, "participation": 0.6, "reg": 0.3, "threshold": 0.9},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_two_rounds_are_what_pytorch_computes(settings: dict[str, Any], tiny_split: Split) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is the independent oracle")
    from oracle import EpochOrders

    method: Any = GPFedRec(Config(**settings))
    c, split = method.config, tiny_split
    federation = Federation(method, split, SEED, chunk=7)
    state = federation.start()
    d = c.dim
    fresh = state.devices.take(np.arange(split.n_users))
    start = torch.tensor(state.server.Q).double()
    common, own = start.clone(), [start.clone() for _ in range(split.n_users)]
    vectors = [torch.tensor(p).double() for p in fresh.p]
    tables = [start.clone() for _ in own]
    networks = []
    for flat in fresh.mlp:
        layers, at = [], 0
        for inputs, outputs in ((2 * d, d), (d, d // 2), (d // 2, 1)):
            layer = torch.nn.Linear(inputs, outputs).double()
            size = inputs * outputs
            with torch.no_grad():
                layer.weight[:] = torch.tensor(flat[at : at + size]).reshape(outputs, inputs)
                layer.bias[:] = torch.tensor(flat[at + size : at + size + outputs])
            at += size + outputs
            layers += [layer, torch.nn.ReLU()]
        networks.append(torch.nn.Sequential(*layers[:-1]))

    def logits(user: int, p: Any, Q: Any) -> Any:
        return networks[user](torch.cat([p.expand(len(Q), -1), Q], dim=1)).squeeze(1)

    def train(user: int, round: int) -> None:
        cohort = make_cohort(split, np.array([user]), round, SEED)
        samples = draw_samples(cohort, c.negatives)
        items = torch.tensor(samples.touched.items[samples.row]).long()
        labels = torch.tensor(samples.label).double()
        p = vectors[user].clone().requires_grad_()
        Q = common.clone().requires_grad_()
        rate = c.learning_rate
        optimisers = (
            torch.optim.SGD(networks[user].parameters(), lr=rate),
            torch.optim.SGD([p], lr=rate / c.participation * c.rate_factor - rate),
            torch.optim.SGD([Q], lr=rate * split.n_items * c.rate_factor - rate),
        )
        orders = EpochOrders(len(items), cohort, user, Purpose.SHUFFLE_LOCAL)
        for _ in range(c.local_epochs):
            for batch in torch.split(orders.next(), c.batch):
                for optimiser in optimisers:
                    optimiser.zero_grad()
                ratings = torch.sigmoid(logits(user, p, Q[items[batch]]))
                loss = torch.nn.functional.binary_cross_entropy(ratings, labels[batch])
                loss = loss + c.reg * torch.nn.functional.mse_loss(Q, own[user])
                loss.backward()
                for optimiser in optimisers:
                    optimiser.step()
        vectors[user], tables[user] = p.detach(), Q.detach()

    for round in (1, 2):
        federation.step(state)
        users = federation.cohort_of(round).tolist()
        for user in users:
            train(user, round)
        weights = dense_graph(np.array([tables[u].numpy() for u in users]), c.threshold)
        mixed = torch.einsum(
            "uv,vik->uik", torch.tensor(weights), torch.stack([tables[u] for u in users])
        )
        common = mixed.mean(0)
        for place, user in enumerate(users):
            own[user] = mixed[place]
        r = state.server.Q + own_tables(state.server, np.arange(split.n_users)).reshape(
            -1, *start.shape
        )
        assert relative_error(state.server.Q - start.numpy(), common - start) < TOLERANCE
        assert relative_error(r - start.numpy(), torch.stack(own) - start) < TOLERANCE
    for user in range(split.n_users):
        private = state.devices.take(np.array([user]))
        download = state.devices.downloads[int(state.devices.version[user])]
        assert relative_error(private.p[0], vectors[user]) < TOLERANCE
        with torch.no_grad():
            expected = logits(user, vectors[user], tables[user])
        assert relative_error(method.score(download, private)[0], expected) < TOLERANCE


def test_the_network_and_the_vector_stay_at_home(tiny_split: Split) -> None:
    method, users = GPFedRec(Config(dim=8)), np.arange(tiny_split.n_users)
    server, private = method.init(len(users), tiny_split.n_items, SEED)
    cohort = make_cohort(tiny_split, users, 1, SEED)
    after, upload, _ = method.local(server, private, cohort)
    assert (after.mlp != private.mlp).any(1).all()
    assert upload.dense.shape == (len(users), 1), "one factor, no network"
    np.testing.assert_array_equal(
        upload.rows.items, draw_samples(cohort, method.config.negatives).touched.items
    )
    assert method.download_bytes(server) == 2 * server.Q.nbytes


def test_it_refuses_to_run_without_its_server() -> None:
    with pytest.raises(UnskewError, match="aggregate_from = 0 must be"):
        Config(aggregate_from=0)
