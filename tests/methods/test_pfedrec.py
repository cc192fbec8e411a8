"""PFedRec against PyTorch: two SGD optimisers in turns on dense tables, client after client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from conformance import make_cohort
from conftest import relative_error
from unskew.engine import Federation
from unskew.kernels import add_uploads, draw_samples
from unskew.methods.pfedrec import Config, PFedRec
from unskew.rng import Purpose
from unskew.types import Cohort, Rows, Split, Upload

torch = pytest.importorskip("torch", reason="PyTorch is the independent oracle")

from oracle import EpochOrders  # noqa: E402

SEED = 4
TOLERANCE = 1e-4
SETTINGS: list[dict[str, Any]] = [
    {"dim": 16},
    {"dim": 5, "batch": 32, "participation": 0.5},
    {"dim": 16, "batch": 20, "local_epochs": 3, "item_rate_factor": 10.0, "learning_rate": 0.05},
    {"dim": 8, "batch": 32, "aggregate_from": 2},
]


class Device(torch.nn.Module):  # type: ignore[misc,name-defined,unused-ignore]
    """One client's model in double precision: a whole item table and an affine score function."""

    def __init__(self, Q: Any, theta: Any, bias: Any) -> None:
        super().__init__()
        self.items = torch.nn.Embedding.from_pretrained(torch.tensor(Q).double(), freeze=False)
        self.affine = torch.nn.Linear(len(theta), 1).double()
        with torch.no_grad():
            self.affine.weight[:] = torch.tensor(theta)
            self.affine.bias[:] = float(bias)

    def forward(self, items: Any) -> Any:
        return torch.sigmoid(self.affine(self.items(items))).squeeze(1)

    def train_round(self, config: Config, cohort: Cohort) -> None:
        rate = config.learning_rate
        on_score = torch.optim.SGD(self.affine.parameters(), lr=rate)
        on_items = torch.optim.SGD(
            self.items.parameters(), lr=rate * cohort.n_items * config.item_rate_factor
        )
        samples = draw_samples(cohort, config.negatives)
        items = torch.tensor(samples.touched.items[samples.row]).long()
        labels = torch.tensor(samples.label).double()
        user = int(cohort.users[0])
        orders = EpochOrders(len(items), cohort, user, Purpose.SHUFFLE_LOCAL)
        for _ in range(config.local_epochs):
            for batch in torch.split(orders.next(), config.batch):
                for optimiser in (on_score, on_items):
                    self.zero_grad()
                    torch.nn.functional.binary_cross_entropy(
                        self(items[batch]), labels[batch]
                    ).backward()
                    optimiser.step()

    def table(self) -> Any:
        return self.items.weight.detach().clone()


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_two_rounds_are_what_pytorch_computes(settings: dict[str, Any], tiny_split: Split) -> None:
    method: Any = PFedRec(Config(**settings))
    config = method.config
    federation = Federation(method, tiny_split, SEED, chunk=7)
    state = federation.start()
    first = state.server.Q
    fresh = state.devices.take(np.arange(tiny_split.n_users))
    Q = torch.tensor(first).double()
    devices = [Device(first, *own) for own in zip(fresh.theta, fresh.bias, strict=True)]
    errors: dict[str, float] = {}

    def note(what: str, ours: Any, theirs: Any) -> None:
        errors[what] = max(errors.get(what, 0.0), relative_error(ours, theirs))

    for round in (1, 2):
        federation.step(state)
        users = federation.cohort_of(round)
        for user in users.tolist():
            if round > config.aggregate_from:
                devices[user].items.weight.data = Q.clone()
            devices[user].train_round(
                config, make_cohort(tiny_split, np.array([user]), round, SEED)
            )
        if round >= config.aggregate_from:
            Q = torch.stack([devices[user].table() for user in users.tolist()]).mean(0)
        note("server's items", state.server.Q - first, Q - torch.tensor(first))
    for user, device in enumerate(devices):
        private = state.devices.take(np.array([user]))
        download = state.devices.downloads[int(state.devices.version[user])]
        note("theta", private.theta[0], device.affine.weight[0].detach())
        note("bias", private.bias, device.affine.bias.detach())
        with torch.no_grad():
            expected = device.affine(device.table()).squeeze(1)
        note("scores", method.score(download, private)[0], expected)
    assert max(errors.values()) <= TOLERANCE, errors


def test_the_score_function_stays_at_home_bias_included(tiny_split: Split) -> None:
    """The upload has room for the touched rows and nothing more, and no dense part."""
    method, users = PFedRec(Config(dim=8)), np.arange(tiny_split.n_users)
    server, private = method.init(len(users), tiny_split.n_items, SEED)
    cohort = make_cohort(tiny_split, users, 1, SEED)
    after, upload, _ = method.local(server, private, cohort)
    assert (after.bias != private.bias).all()
    assert (after.theta != private.theta).any(1).all()
    touched = draw_samples(cohort, method.config.negatives).touched
    assert upload.dense.shape == (len(users), 0)
    np.testing.assert_array_equal(upload.rows.items, touched.items)
    assert upload.rows.values.shape == (len(touched.items), 8)
    np.testing.assert_array_equal(upload.weight, np.ones(len(users)))


def test_every_client_counts_alike_and_untouched_rows_dilute() -> None:
    """An item that one of four clients moves, moves by a quarter of that on the server."""
    method = PFedRec(Config(dim=2))
    server, _ = method.init(4, 3, SEED)
    delta = np.array([[1.0, -2.0]], np.float32)
    rows = Rows(np.array([0, 0, 1, 1, 1]), np.array([2], np.int32), delta)
    upload = Upload(rows, np.zeros((4, 0), np.float32), np.ones(4))
    after = method.aggregate(server, add_uploads(None, upload, 3).result())
    expected = np.array([[0, 0], [0, 0], [0.25, -0.5]])
    np.testing.assert_allclose(np.asarray(after.Q - server.Q, np.float64), expected, atol=1e-6)


def test_all_devices_start_as_copies_of_one_model() -> None:
    _, private = PFedRec().init(3, 5, SEED)
    assert private.theta.shape == (3, 16)
    assert (private.theta == private.theta[0]).all()
    assert (private.bias == private.bias[0]).all()
    assert np.abs(private.theta).max() <= 0.25


def test_a_newcomer_learns_a_score_function_for_the_global_items(small_split: Split) -> None:
    method: Any = PFedRec(Config(dim=8))
    federation = Federation(method, small_split, SEED)
    state = federation.start()
    for _ in range(5):
        federation.step(state)
    users = np.arange(small_split.n_users)
    _, fresh = method.init(len(users), small_split.n_items, SEED)
    folded = method.fold_in(state.server, fresh, make_cohort(small_split, users, 1, SEED))
    assert len(folded.Q.items) == 0
    lifts = []
    for private in (fresh, folded):
        scores = method.score(state.server, private)
        scores = (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)
        own = [scores[user, small_split.seen.of(user)].mean() for user in users.tolist()]
        lifts.append(np.mean(own))
    assert lifts[1] > lifts[0] + 0.1, "its own items stand higher than before"
