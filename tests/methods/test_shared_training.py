"""The settings, the aggregation and the folding in that the gradient-trained methods share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import conformance
from unskew.engine import Federation
from unskew.kernels import draw_samples
from unskew.methods import METHODS, create
from unskew.types import Cohort, Split, UnskewError, UploadSum

Array = NDArray[np.float64]
PASSES = 20
"""How often a newcomer trains on fresh negatives."""
SHARED = ["fedmf", "pfedclr", "fedmf-af", "pfedgraph"]
"""Methods that fold in a newcomer by training its user vector alone."""
DRAWING = [
    name
    for name, kind in METHODS.items()
    if kind.aggregation != "central"
    and hasattr(kind.Config(), "negatives")
    and hasattr(kind.Config(), "local_epochs")
]
"""Federated methods that draw negatives for each client."""


def slow_for_gpfedrec(names: list[str]) -> list[Any]:
    """Parameters of a test; GPFedRec's twenty passes take long."""
    return [
        pytest.param(name, marks=pytest.mark.slow) if name == "gpfedrec" else name for name in names
    ]


class Adam:
    """Kingma & Ba, ICLR 2015, with its usual constants."""

    def __init__(self, rate: float, size: int) -> None:
        self.rate, self.m, self.v, self.t = rate, np.zeros(size), np.zeros(size), 0

    def step(self, p: Array, gradient: Array) -> Array:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        m, v = self.m / (1 - 0.9**self.t), self.v / (1 - 0.999**self.t)
        moved: Array = p - self.rate * m / (np.sqrt(v) + 1e-8)
        return moved


def newcomer(split: Split, user: int = 3) -> Cohort:
    return conformance.make_cohort(split, np.array([user]), 1)


def expected_vector(method: Any, Q: Array, p: Array, cohort: Cohort) -> Array:
    """Full batches: in each pass new negatives, fresh moments, frozen items."""
    c = method.config
    for number in range(1, PASSES + 1):
        samples = draw_samples(cohort._replace(round=number), c.negatives)
        items, labels = Q[samples.touched.items[samples.row]], samples.label.astype(np.float64)
        adam = Adam(c.learning_rate, len(p))
        for _ in range(c.local_epochs):
            error = 1 / (1 + np.exp(-items @ p)) - labels
            p = adam.step(p, items.T @ error / len(labels))
    return p


@pytest.mark.parametrize("name", SHARED)
def test_a_newcomers_vector_is_trained_with_frozen_items_and_fresh_negatives(
    name: str, tiny_split: Split
) -> None:
    settings = {"dim": 6, "local_epochs": 3, "batch": 10_000, "tolerance": 0, "learning_rate": 0.1}
    method = create(name, **settings)
    server, fresh = method.init(1, tiny_split.n_items, 5)
    download, cohort = method.download(server), newcomer(tiny_split)
    before = download.Q.copy()
    folded = method.fold_in(download, fresh, cohort)
    expected = expected_vector(method, before.astype(np.float64), fresh.p[0].astype(float), cohort)
    np.testing.assert_allclose(folded.p[0], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(download.Q, before)
    for field, ours, theirs in zip(folded._fields, folded, fresh, strict=True):
        if field != "p":
            conformance.assert_same_bits(conformance.leaves(ours), conformance.leaves(theirs))


@pytest.mark.parametrize("name", slow_for_gpfedrec(DRAWING))
def test_a_newcomer_meets_more_negatives_than_one_draw_has(name: str, tiny_split: Split) -> None:
    """Items that matter to the folded state, found by moving one after the other."""
    method = create(name, dim=4, local_epochs=1, negatives=1, learning_rate=0.05)
    server, fresh = method.init(tiny_split.n_users, tiny_split.n_items, 5)
    download, cohort = method.download(server), newcomer(tiny_split)
    one = conformance.of_client(fresh, 3)
    own = set(cohort.positives.items.tolist())
    others = [item for item in range(tiny_split.n_items) if item not in own]
    base = conformance.leaves(method.fold_in(download, one, cohort))
    matter = 0
    for item in others:
        Q = download.Q.copy()
        Q[item] += 0.5
        changed = conformance.leaves(method.fold_in(download._replace(Q=Q), one, cohort))
        matter += any(
            changed[field].shape != base[field].shape or (changed[field] != base[field]).any()
            for field in base
        )
    assert len(own) < len(others), "else one draw could have all"
    assert matter > len(own), "one draw of one negative for each positive has no more than that"


def own_items_first(split: Split, scores: Any) -> float:
    """Share of (own item, other item) pairs in the right order, averaged over users."""
    rates = []
    for user in range(split.n_users):
        own = np.isin(np.arange(split.n_items), split.train.of(user))
        rates.append((scores[user, own][:, None] > scores[user, ~own]).mean())
    return float(np.mean(rates))


@pytest.mark.parametrize("name", slow_for_gpfedrec([n for n in DRAWING if n != "fedncf"]))
def test_a_newcomers_own_items_gain(name: str, tiny_split: Split) -> None:
    """After two rounds already; FedNCF's network needs more before a vector alone can rank."""
    case = conformance.make_case(conformance.make(name), tiny_split)
    method, download = case.method, case.method.download(case.server)
    _, fresh = method.init(tiny_split.n_users, tiny_split.n_items, conformance.SEED)
    folded = method.fold_in(download, fresh, case.cohort(case.users))
    before, after = (
        own_items_first(tiny_split, method.score(download, device)) for device in (fresh, folded)
    )
    assert after > max(before, 0.5) + 0.02


def test_the_average_of_the_clients_is_weighted() -> None:
    """Q <- Q + sum of weighted differences / sum of weights; nothing received, nothing moved."""
    method = create("fedmf", dim=2)
    server, _ = method.init(2, 3, 0)
    rows = np.array([[8.0, -4.0], [0.0, 0.0], [2.0, 2.0]])
    after = method.aggregate(server, UploadSum(rows, np.zeros(0), 4.0, 2))
    np.testing.assert_allclose(after.Q - server.Q, rows / 4, atol=1e-6)
    assert after.Q.dtype == np.float32
    nobody = UploadSum(np.zeros((3, 2)), np.zeros(0), 0.0, 0)
    np.testing.assert_array_equal(method.aggregate(server, nobody).Q, server.Q)


@pytest.mark.parametrize("aggregate_from", [0, 1, 3])
def test_the_round_from_which_the_server_aggregates(aggregate_from: int, tiny_split: Split) -> None:
    """Before it nothing is sent; until it clients start from their own items."""
    method = create(
        "fedmf", dim=4, local_epochs=1, participation=1.0, aggregate_from=aggregate_from
    )
    federation = Federation(method, tiny_split, 0)
    state = federation.start()
    first = state.server.Q.copy()
    for round in range(1, 6):
        before = state.server.Q.copy()
        row = federation.step(state)
        sends = aggregate_from != 0 and round >= aggregate_from
        assert (row["bytes_up"] > tiny_split.n_users * 8) == sends, f"round {round}"
        assert (before != state.server.Q).any() == sends, f"round {round}"
    assert (first != state.server.Q).any() == (aggregate_from != 0)
    c = method.config
    alone = [c.trains_alone(round) for round in range(1, 6)]
    assert alone == [aggregate_from == 0 or round <= aggregate_from for round in range(1, 6)]


def test_a_client_alone_goes_on_from_its_own_items(tiny_split: Split) -> None:
    """With the server switched off, a second round begins where the first one ended."""
    method = create("fedmf", dim=4, local_epochs=2, participation=1.0, aggregate_from=0)
    server, fresh = method.init(1, tiny_split.n_items, 0)
    download, cohort = method.download(server), newcomer(tiny_split)
    after, upload, _ = method.local(download, fresh, cohort)
    assert upload.weight.tolist() == [0.0]
    assert len(upload.rows.items) == 0
    second, _, _ = method.local(download, after, cohort._replace(round=2))
    forgot = after._replace(Q=fresh.Q)
    restarted, _, _ = method.local(download, forgot, cohort._replace(round=2))
    own = cohort.positives.items[0]

    def row_of(private: Any) -> Any:
        return private.Q.values[np.searchsorted(private.Q.items, own)]

    assert (row_of(second) != row_of(restarted)).any()
    assert set(after.Q.items.tolist()) <= set(second.Q.items.tolist()), "what it held it still has"


def test_the_weight_of_an_upload_is_its_number_of_samples(tiny_split: Split) -> None:
    method = create("fedmf", dim=4, local_epochs=1, negatives=3)
    server, fresh = method.init(2, tiny_split.n_items, 0)
    cohort = conformance.make_cohort(tiny_split, np.array([3, 7]), 1)
    private, upload, _ = method.local(method.download(server), fresh, cohort)
    np.testing.assert_array_equal(upload.weight, 4 * cohort.positives.counts())
    assert upload.rows.indptr.tolist() == private.Q.indptr.tolist()
    difference = private.Q.values - server.Q[private.Q.items]
    np.testing.assert_array_equal(upload.rows.values, difference)


GOOD = {
    "participation": (1e-9, 1.0),
    "tolerance": (0.0,),
    "aggregate_from": (0, 1),
    "negatives": (0,),
}
BAD: dict[str, tuple[tuple[float, ...], str]] = {
    "rounds": ((0, -1), "a whole number above 0"),
    "dim": ((0,), "a whole number above 0"),
    "local_epochs": ((0,), "a whole number above 0"),
    "batch": ((0,), "a whole number above 0"),
    "learning_rate": ((0.0, -1.0, float("inf"), float("nan")), "a finite number above 0"),
    "participation": ((0.0, float("nan")), "a finite number above 0"),
    "negatives": ((-1,), "a whole number of at least 0"),
    "tolerance": ((-1e-9, float("inf")), "a finite number of at least 0"),
    "aggregate_from": ((-1,), "a whole number of at least 0"),
}


def test_settings_at_their_limits() -> None:
    for name, values in GOOD.items():
        for value in values:
            assert getattr(create("fedmf", **{name: value}).config, name) == value
    for name, (wrong, words) in BAD.items():
        for value in wrong:
            with pytest.raises(UnskewError, match=rf"{name} = .* must be {words}\."):
                create("fedmf", **{name: value})
    with pytest.raises(UnskewError, match=r"negatives = 9223372036854775808 must be at most 9\.22"):
        create("fedmf", negatives=2**63)  # compiled code has 64-bit integers
    assert create("fedmf", negatives=2**63 - 1).config.negatives == 2**63 - 1
    with pytest.raises(UnskewError, match=r"participation = 1\.001 must be at most 1"):
        create("fedmf", participation=1.001)
