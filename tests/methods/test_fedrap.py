"""FedRAP against PyTorch: dense tables, autograd, torch's own SGD, weight decay and schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.kernels import draw_samples
from unskew.methods.fedrap import Config, FedRAP
from unskew.ragged import select
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Interactions, Rows, Split, UnskewError

torch = pytest.importorskip("torch", reason="PyTorch is the independent oracle")

from oracle import Data, EpochOrders  # noqa: E402

TOLERANCE = 1e-4
SEED = 3
SIZES = (1, 3, 8, 20, 51, 60)
"""Training rows per user; with 4 negatives and batches of 64, from less than one batch to five."""
N_ITEMS = 90
GENTLE: dict[str, Any] = {"learning_rate": 20.0, "score_rate": 0.05, "batch": 64, "local_epochs": 4}
STRONG: dict[str, Any] = {"weight_decay": 2e-3, "independence": 0.05, "sparsity": 0.2}
"""Terms so large that leaving out any of them is far above the tolerance."""
CASES: list[dict[str, Any]] = [
    {"dim": 16, **GENTLE, **STRONG},
    {"dim": 5, **GENTLE, **STRONG, "ramp": 0.0, "participation": 0.6},
    {"dim": 5, **GENTLE, **STRONG, "batch_decay": 0.7, "round_decay": 0.5, "tolerance": 0.02},
    {"dim": 8, **GENTLE, **STRONG, "aggregate_from": 2, "participation": 0.7},
    {"dim": 8, **GENTLE, **STRONG, "aggregate_from": 0},
    {"dim": 16, "independence": 0.0, "batch": 64, "local_epochs": 4},
]


@pytest.fixture(scope="module")
def split() -> Split:
    generator = np.random.default_rng(5)
    mine = [generator.permutation(N_ITEMS)[: size + 2] for size in SIZES]
    users = np.repeat(np.arange(len(SIZES)), [len(items) for items in mine])
    interactions = Interactions(
        name="hand-made",
        users=users.astype(np.int32),
        items=np.concatenate(mine).astype(np.int32),
        user_ids=[str(user) for user in range(len(SIZES))],
        item_ids=[str(item) for item in range(N_ITEMS)],
        timestamps=np.arange(len(users), dtype=np.int64),
        clock="time",
    )
    return prepare(interactions, "paper")


class Client:
    """One device as research code writes it: two whole tables and a linear layer."""

    def __init__(self, C: Any, D: Any, weight: Any, bias: Any) -> None:
        self.C, self.D = torch.nn.Parameter(C.clone()), torch.nn.Parameter(D.clone())
        self.downloaded: Any = None
        """What it scores with in place of its own D, once the server aggregates."""
        self.score = torch.nn.Linear(len(weight), 1, dtype=C.dtype)
        with torch.no_grad():
            self.score.weight.copy_(weight[None])
            self.score.bias.fill_(float(bias))

    def train(self, config: Config, round: int, data: Any, orders: Any) -> int:
        ramp = np.tanh((round - 1) / config.ramp) if config.ramp else 1.0
        slower = config.round_decay ** (round - 1)
        optimiser = torch.optim.SGD(
            [
                {"params": self.score.parameters(), "lr": config.score_rate * slower},
                {"params": [self.C, self.D], "lr": config.learning_rate * slower},
            ],
            weight_decay=config.weight_decay,
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, config.batch_decay)
        losses: list[float] = []
        means: list[float] = []
        for _ in range(config.local_epochs):
            for batch in torch.split(orders.next(), config.batch):
                items = data.items[batch]
                c, d = self.C[items], self.D[items]
                prediction = torch.sigmoid(self.score(c + d))[:, 0]
                loss = torch.nn.functional.binary_cross_entropy(prediction, data.labels[batch])
                apart = torch.nn.functional.mse_loss(c, d)
                sparse = torch.nn.functional.l1_loss(d, torch.zeros_like(d))
                loss = loss - config.independence * ramp * apart + config.sparsity * ramp * sparse
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                losses += [loss.item()] * len(batch)
            means.append(sum(losses) / len(losses))
            if len(means) > 1 and abs(means[-1] - means[-2]) / abs(means[-2]) < config.tolerance:
                break
        return len(means)


class Reference:
    """The whole federation, client by client."""

    def __init__(self, method: FedRAP, split: Split, dtype: Any) -> None:
        self.config, self.split, self.dtype = method.config, split, dtype
        server, private = method.init(split.n_users, split.n_items, SEED)
        self.D, C = torch.tensor(server.Q, dtype=dtype), torch.tensor(server.C_0, dtype=dtype)
        weights = torch.tensor(private.weight, dtype=dtype)
        self.clients = [Client(C, self.D, w, b) for w, b in zip(weights, private.bias, strict=True)]
        self.epochs: list[int] = []

    def play(self, round: int, users: Any) -> None:
        c = self.config
        alone = c.aggregate_from == 0 or round <= c.aggregate_from
        for user in users:
            one = np.array([user])
            lists = select(self.split.train, one), select(self.split.excluded, one)
            cohort = Cohort(one, *lists, self.split.n_items, SEED, round)
            samples = draw_samples(cohort, c.negatives)
            items = torch.tensor(samples.touched.items[samples.row], dtype=torch.long)
            data = Data(items, torch.tensor(samples.label, dtype=self.dtype))
            client = self.clients[user]
            if not alone:
                client.D = torch.nn.Parameter(self.D.clone())
            client.downloaded = self.D if c.aggregate_from and round >= c.aggregate_from else None
            orders = EpochOrders(len(items), cohort, int(user), Purpose.SHUFFLE_LOCAL)
            self.epochs.append(client.train(c, round, data, orders))
        if c.aggregate_from and round >= c.aggregate_from:
            self.D = torch.stack([self.clients[user].D.detach() for user in users]).mean(0)


def whole_table(table: Float32, held: Rows, scale: Float32) -> Float32:
    """A single device's table as it would lie there in full."""
    whole: Float32 = table.copy()
    whole[held.items] = held.values
    whole *= scale[0]
    return whole


def relative(ours: Any, theirs: Any, start: Any) -> float:
    """How far the change since the start is from PyTorch's, relative to the latter."""
    start = np.asarray(start, np.float64)
    a, b = np.asarray(ours, np.float64) - start, np.asarray(theirs, np.float64) - start
    assert np.isfinite(a).all()
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def errors_of(settings: dict[str, Any], split: Split, dtype: Any, rounds: int = 3) -> list[float]:
    method: Any = FedRAP(Config(**settings))
    federation, reference = Federation(method, split, SEED), Reference(method, split, dtype)
    state = federation.start()
    server, began = method.init(split.n_users, split.n_items, SEED)
    took_part: set[int] = set()
    for round in range(1, rounds + 1):
        users = federation.cohort_of(round)
        took_part |= set(users.tolist())
        federation.step(state)
        reference.play(round, users)
    errors = []
    if method.config.aggregate_from:
        errors.append(relative(state.server.Q, reference.D, server.Q))
    else:
        np.testing.assert_array_equal(state.server.Q, server.Q)
    for user in sorted(took_part):
        client = reference.clients[user]
        private = state.devices.take(np.array([user]))
        download = state.devices.downloads[int(state.devices.version[user])]
        C = whole_table(download.C_0, private.C, private.C_scale)
        errors.append(relative(C, client.C.detach(), server.C_0))
        used = client.D.detach() if client.downloaded is None else client.downloaded
        if client.downloaded is None:
            D = whole_table(download.Q, private.D, private.D_scale)
            errors.append(relative(D, used, server.Q))
        else:
            assert len(private.D.items) == 0, "its own D has been uploaded and is gone"
        weight, bias = client.score.weight.detach(), client.score.bias.detach()
        errors.append(relative(private.weight, weight, began.weight[:1]))
        errors.append(relative(private.bias, bias, began.bias[:1]))
        scores = client.score(client.C + used).detach()[:, 0]
        errors.append(relative(method.score(download, private)[0], scores, 0.0))
    if method.config.tolerance > 1e-3:
        assert min(reference.epochs) < method.config.local_epochs, "nobody stopped early"
        assert max(reference.epochs) == method.config.local_epochs, "everybody stopped early"
    return errors


@pytest.mark.parametrize("settings", CASES, ids=range(len(CASES)))
def test_it_computes_what_pytorch_computes(settings: dict[str, Any], split: Split) -> None:
    assert max(errors_of(settings, split, torch.float32)) <= TOLERANCE


def test_it_computes_what_double_precision_computes(split: Split) -> None:
    assert max(errors_of(CASES[1], split, torch.float64)) <= TOLERANCE


def test_weight_decay_reaches_rows_nobody_touched(split: Split) -> None:
    """One positive, one negative: nearly the whole of both tables only decays."""
    settings = {**GENTLE, "dim": 4, "negatives": 1, "weight_decay": 5e-3}
    method: Any = FedRAP(Config(**settings))
    server, private = method.init(1, split.n_items, SEED)
    one = np.array([0])
    lists = select(split.train, one), select(split.excluded, one)
    cohort = Cohort(one, *lists, split.n_items, SEED, 1)
    after, upload, _ = method.local(server, private, cohort)
    n_batches = method.config.local_epochs
    factor = np.prod([1 - 20.0 * 0.95**t * 5e-3 for t in range(n_batches)])
    assert after.C_scale[0] == pytest.approx(factor, rel=1e-6)
    assert upload.dense[0, 0] == pytest.approx(factor - 1, rel=1e-6)
    assert len(upload.rows.items) == len(after.C.items) == 2


def test_the_ramp_starts_from_nothing_and_the_rates_fall() -> None:
    config = Config(independence=0.2, sparsity=0.4, learning_rate=8.0, round_decay=0.5)
    first, eleventh = config.rates(1), config.rates(11)
    assert first.independence == first.sparsity == 0.0
    assert eleventh.independence == pytest.approx(0.2 * np.tanh(1.0))
    assert eleventh.tables == pytest.approx(8.0 / 1024)
    assert Config(ramp=0.0).rates(1).independence == Config().independence


def test_divergence_is_one_sentence(split: Split) -> None:
    method: Any = FedRAP(Config(learning_rate=1e5, independence=10.0, ramp=0.0))
    federation = Federation(method, split, SEED)
    state = federation.start()

    def play_on() -> None:
        for _ in range(10):
            federation.step(state)

    with pytest.raises(UnskewError, match=r"^fedrap diverged in round \d+: .*independence.*\.$"):
        play_on()


@pytest.mark.parametrize(
    "settings", [{"batch_decay": 1.1}, {"round_decay": 2.0}, {"weight_decay": 1.0}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UnskewError, match=next(iter(settings))):
        Config(**settings)  # type: ignore[arg-type]


def test_the_presets_are_settings() -> None:
    for preset in FedRAP.PRESETS.values():
        assert FedRAP(Config(**preset)).config
