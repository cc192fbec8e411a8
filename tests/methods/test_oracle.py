"""Every gradient-trained variant against PyTorch, client by client and number by number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from conftest import relative_error
from unskew.engine import Federation, State
from unskew.evaluation import prepare
from unskew.methods import create
from unskew.types import Cohort, Float32, Interactions, Rows, Split, Upload

torch = pytest.importorskip("torch", reason="PyTorch is the independent oracle")

from oracle import Oracle  # noqa: E402

if TYPE_CHECKING:
    from oracle import Variant

TOLERANCE = 1e-4
SEED = 3
SIZES = (1, 2, 3, 5, 8, 13, 20, 30, 51, 52, 60, 130)
"""Training rows per user. With 4 negatives: less than a batch, one short of a batch (51), four past
it (52), and three batches (130, in which every item stands twice)."""
N_ITEMS = 90


class Case(NamedTuple):
    variant: Variant
    settings: dict[str, Any]
    rounds: int = 2

    @property
    def name(self) -> str:
        return "pfedclr" if self.variant.startswith("pfedclr") else self.variant

    def label(self) -> str:
        return "-".join([self.variant, *(f"{k}={v}" for k, v in self.settings.items())])


CASES = [
    *(Case("fedmf", {"dim": dim}) for dim in (16, 5)),
    *(Case("fedmf-af", {"dim": dim, "buffer_rate": 0.02}) for dim in (16, 5)),
    Case("pfedclr-low-rank", {"dim": 16, "rank": 2, "buffer_rate": 0.02}),
    Case("pfedclr-low-rank", {"dim": 16, "rank": 3}),
    Case("pfedclr-low-rank", {"dim": 5, "rank": 2}),
    Case("pfedclr-low-rank", {"dim": 5, "rank": 3, "buffer_rate": 0.005}),
    *(Case("pfedclr-full", {"dim": dim, "buffer": "full", "buffer_rate": 0.02}) for dim in (16, 5)),
    *(
        Case(variant, {"dim": 5, "aggregate_from": start}, rounds=3)
        for variant in ("fedmf", "fedmf-af", "pfedclr-low-rank")
        for start in (2, 0)
    ),
    Case("fedmf", {"dim": 16, "batch": 64, "local_epochs": 3, "negatives": 7, "tolerance": 0.0}),
]
"""A short tolerance makes some clients stop early; the last case runs every epoch."""
STOPS_EARLY = 0.025


def hand_made() -> Split:
    """Twelve users of very different sizes; the last has every training item twice."""
    generator = np.random.default_rng(5)
    users, items = [], []
    for user, size in enumerate(SIZES):
        if size == max(SIZES):
            distinct = generator.permutation(N_ITEMS)[: size // 2 + 2]
            mine = np.concatenate((distinct[2:], distinct[2:], distinct[:2]))
        else:
            mine = generator.permutation(N_ITEMS)[: size + 2]
        users += [user] * len(mine)
        items += mine.tolist()
    interactions = Interactions(
        name="hand-made",
        users=np.array(users, np.int32),
        items=np.array(items, np.int32),
        user_ids=[str(user) for user in range(len(SIZES))],
        item_ids=[str(item) for item in range(N_ITEMS)],
        timestamps=np.arange(len(users), dtype=np.int64),
        clock="time",
    )
    return prepare(interactions, "paper")


@pytest.fixture(scope="module")
def split() -> Split:
    made = hand_made()
    assert sorted(made.train.counts().tolist()) == sorted(SIZES)
    return made


class Recorder:
    """Takes down what leaves the devices and lets it pass."""

    def __init__(self) -> None:
        self.sent: list[tuple[Upload, Cohort]] = []

    def __call__(self, upload: Upload, cohort: Cohort) -> Upload:
        self.sent.append((upload, cohort))
        return upload


def table(rows: Rows, client: int, base: Float32) -> Float32:
    """A client's whole item table: its own rows laid over ``base``."""
    mine = slice(rows.indptr[client], rows.indptr[client + 1])
    whole = base.copy()
    whole[rows.items[mine]] = rows.values[mine]
    return whole


def personal_buffer(case: Case, private: Any, Q: Float32) -> Float32:
    """A, W, or for AF the W that its fine-tuned rows stand for."""
    if case.variant == "fedmf-af":
        return table(private.tuned, 0, Q) - Q
    return table(private.A, 0, np.zeros((len(Q), private.A.values.shape[1]), np.float32))


def compare(case: Case, split: Split, dtype: Any) -> dict[str, float]:
    """Play the rounds on both sides; the largest relative error of each quantity over all clients.

    What starts from random values is compared by how far it has moved from them.
    """
    method = create(case.name, **{"tolerance": STOPS_EARLY, **case.settings})
    recorder = Recorder()
    federation = Federation(method, split, SEED, chunk=5, transform=recorder)
    oracle = Oracle(case.variant, method, split, SEED, dtype)
    state: State = federation.start()
    first, fresh = state.server.Q, state.devices.snapshot()
    errors: dict[str, float] = {}

    def note(what: str, error: float) -> None:
        errors[what] = max(errors.get(what, 0.0), error)

    took_part = np.zeros(split.n_users, np.int64)
    for round in range(1, case.rounds + 1):
        users = federation.cohort_of(round)
        took_part[users] += 1
        before = state.server.Q
        recorder.sent.clear()
        federation.step(state)
        expected, weights = oracle.play(round, users)
        assert sum(len(cohort.users) for _, cohort in recorder.sent) == len(users)
        for upload, cohort in recorder.sent:
            for client, user in enumerate(cohort.users.tolist()):
                sent = table(upload.rows, client, np.zeros_like(before))
                note("upload", relative_error(sent, expected.get(user, np.zeros_like(before))))
                assert upload.weight[client] == weights.get(user, 0.0)
        note("server Q", relative_error(state.server.Q - first, oracle.Q - torch.tensor(first)))

    assert {0, 1, 2} <= set(took_part.tolist()), "some clients in no round, one round, two rounds"
    for user, device in enumerate(oracle.devices):
        download = state.devices.downloads[int(state.devices.version[user])]
        private, began = state.devices.take(np.array([user])), fresh.take(np.array([user]))
        Q = table(private.Q, 0, download.Q)
        note("p", relative_error(private.p[0] - began.p[0], device.p - torch.tensor(began.p[0])))
        note("private Q", relative_error(Q - first, device.Q - torch.tensor(first)))
        if case.variant != "fedmf":
            note("buffer", relative_error(personal_buffer(case, private, Q), device.A))
        if case.variant == "pfedclr-low-rank":
            start = torch.tensor(began.B[0])
            note("B", relative_error(private.B[0] - began.B[0], device.B - start))
        note("scores", relative_error(method.score(download, private)[0], oracle.score(user)))
    if method.config.tolerance:
        epochs = [n for device in oracle.devices for run in device.epochs.values() for n in run]
        assert min(epochs) < method.config.local_epochs, "nobody stopped early"
        assert max(epochs) == method.config.local_epochs, "everybody stopped early"
    return errors


@pytest.mark.parametrize("case", CASES, ids=Case.label)
def test_the_variant_computes_what_pytorch_computes(case: Case, split: Split) -> None:
    errors = compare(case, split, torch.float32)
    assert max(errors.values()) <= TOLERANCE, errors


@pytest.mark.parametrize("case", [c for c in CASES if c.settings["dim"] == 5], ids=Case.label)
def test_the_variant_computes_what_double_precision_computes(case: Case, split: Split) -> None:
    """Short vectors only: in long ones some positive has a logit so large that sigmoid(z) - 1
    rounds to a few bits of float32, here as in PyTorch, and Adam turns that into visible steps."""
    errors = compare(case, split, torch.float64)
    assert max(errors.values()) <= TOLERANCE, errors
