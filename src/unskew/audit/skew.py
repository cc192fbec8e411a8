"""The skew audit: measure the user-embedding skew of the PFedCLR paper while a method trains.

After round t a client has p^(t) and its own items Q_u^(t). The server then makes Q_g^(t), which
replaces them. Both gradients are taken on the samples D_u of round t and compared with the paper's
formulas (:mod:`unskew.audit.skew_formulas`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from unskew.audit import skew_formulas as formulas
from unskew.audit.skew_formulas import Bounds, Feedback
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.kernels import draw_samples, gather, overlay
from unskew.runs import RunSpec
from unskew.types import Bool, Cohort, Float64, Int32, Interactions, Method, UnskewError

Row = dict[str, Any]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedmf": ("fedmf", {}),
    "af": ("fedmf-af", {}),
    "cf": ("pfedclr", {"buffer": "full"}),
    "clr": ("pfedclr", {}),
    "fedrefit": ("fedrefit", {}),
}
"""Method and settings of the paper's backbone, its ablations, and FedRefit."""


def skew_command(
    name: str,
    data: str,
    protocol: str,
    rounds: int,
    clients: int,
    seed: int,
    settings: Mapping[str, Any] | None = None,
) -> str:
    """The command that makes the row of one variant."""
    words = ["unskew", "audit", "skew", "--methods", name, "--data", data, "--protocol", protocol]
    words += ["--rounds", str(rounds), "--clients", str(clients), "--seed", str(seed)]
    return shlex.join(
        [*words, *(f"--set={key}={value}" for key, value in (settings or {}).items())]
    )


class Client(NamedTuple):
    """A client right after its round, in float64."""

    user: int
    items: Int32
    p: Float64
    local: Float64
    shared: Float64
    """The client's own items, and the aggregated items that replace them."""
    feedback: Feedback
    answer: tuple[Float64, Float64]
    """Vector and items in use with the new items: the buffer added, or p solved anew."""
    used: tuple[Float64, Feedback]
    """The items that the vector was trained against, and the samples."""
    buffered: bool
    rate: float | None
    """Learning rate of the vector (eta); None if the vector is solved for."""
    buffer_rate: float


def trained_clients(
    method: Method, before: Any, after: Any, private: Any, cohort: Cohort
) -> Iterator[Client]:
    """Read clients whose vector is trained by gradient: FedMF, AF, CF and CLR."""
    c, samples = method.config, draw_samples(cohort, method.config.negatives)
    touched = samples.touched
    local = overlay(gather(before.Q, touched), touched, private.Q).astype(np.float64)
    shared = gather(after.Q, touched).astype(np.float64)
    at = samples.row + np.repeat(touched.indptr[:-1], samples.counts())
    count = np.bincount(at, minlength=len(touched.items)).astype(np.float64)
    label = np.bincount(at, samples.label, len(touched.items)).astype(np.float64)
    buffered = hasattr(private, "A")  # AF's matrix is for scoring only
    A = np.zeros((len(local), 0))
    if buffered:
        empty = np.zeros((len(local), private.A.values.shape[1]), np.float32)
        A = overlay(empty, touched, private.A).astype(np.float64)
    for i, user in enumerate(cohort.users):
        own = slice(touched.indptr[i], touched.indptr[i + 1])
        p, feedback = private.p[i].astype(np.float64), Feedback(count[own], label[own])
        W: Any = 0.0
        if buffered:
            W = A[own] @ private.B[i].astype(np.float64) if private.B.shape[1] else A[own]
        yield Client(
            int(user),
            touched.items[own],
            p,
            local[own],
            shared[own],
            feedback,
            (p, shared[own] + W),
            (local[own] + W, feedback),
            buffered,
            c.learning_rate,
            getattr(c, "buffer_rate", c.learning_rate),
        )


def solved_clients(
    method: Method, before: Any, after: Any, private: Any, cohort: Cohort
) -> Iterator[Client]:
    """Read FedRefit's clients: the loss is |x_u - U p|^2 over all items, and p is solved for again
    when U arrives."""
    d = before.U.shape[1]
    again = method.fold_in(after, private, cohort).p.astype(np.float64)
    local, shared = before.U.astype(np.float64), after.U.astype(np.float64)
    items, ones = np.arange(len(local), dtype=np.int32), np.ones(len(local))

    def feedback(i: int, users: Any) -> Feedback:
        own = np.unique(cohort.positives.of(i))
        x = np.zeros(len(local))
        x[own] = users[own].astype(np.float64) ** -method.config.item_power / np.sqrt(len(own))
        return Feedback(ones, x, "identity")

    for i, user in enumerate(cohort.users):
        p, x = private.p[i, :d].astype(np.float64), feedback(i, after.users)
        answer, used = (again[i, :d], shared), (local, feedback(i, before.users))
        yield Client(int(user), items, p, local, shared, x, answer, used, False, None, 0.0)


class History:
    """Sums over the rounds of a client so far."""

    def __init__(self, client: Client, size: tuple[Float64, Float64]) -> None:
        self.first, self.first_items, self.count = size, client.items, client.feedback.samples
        self.items, self.size = client.items, size
        self.growth: list[Float64] = []
        self.beyond: list[Bool] = []
        self.bounds = Bounds(0.0, 0.0, -np.inf)
        self.sums = np.zeros(2)
        self.rounds = 0
        self.true, self.formula, self.left = np.zeros((3, len(client.p)))

    def add(self, client: Client, size: tuple[Float64, Float64]) -> None:
        if self.rounds:
            _, before, now = np.intersect1d(self.items, client.items, True, True)
            self.growth.append(formulas.growth(self.size[0][before], size[0][now]))
            _, before, now = np.intersect1d(self.first_items, client.items, True, True)
            self.beyond.append(size[1][now] > self.first[1][before])
        if client.rate is not None:
            found = formulas.largest_slopes(client.p, client.local, client.feedback)
            self.bounds = self.bounds.widen(found)
        self.sums += [float(client.feedback.samples @ part) for part in size]
        self.items, self.size, self.rounds = client.items, size, self.rounds + 1


def audit_skew(
    name: str,
    data: str,
    interactions: Interactions,
    *,
    protocol: str = "leak-free",
    settings: dict[str, Any] | None = None,
    rounds: int = 20,
    clients: int = 200,
    seed: int = 0,
    on_round: Callable[[str, Row], None] | None = None,
    on_client: Callable[[Row], None] | None = None,
) -> Row:
    """Train a variant and measure the skew of up to ``clients`` clients in all their rounds.

    Returns a row as JSON: figures over all clients and rounds, and round by round.
    """
    if name not in VARIANTS:
        raise UnskewError(f'There is no skew to measure of "{name}"; give {", ".join(VARIANTS)}.')
    method_name, own = VARIANTS[name]
    known = own | (settings or {})
    if name == "fedrefit":  # afterwards its items stand still
        rounds = min(rounds, RunSpec(method_name, known).build().config.space_rounds)
    spec = RunSpec(method_name, {**known, "rounds": rounds}, data, protocol, (seed,))
    method, split = spec.build(), prepare(interactions, protocol)
    federation = Federation(method, split, seed)
    state = federation.start()
    watched = np.unique(np.linspace(0, split.n_users - 1, clients).astype(np.int64))
    histories: dict[int, History] = {}
    every: list[Row] = []
    each_round: list[Row] = []
    for round in range(1, rounds + 1):
        before = method.download(state.server)
        federation.run(round, state=state)
        users = np.intersect1d(federation.cohort_of(round), watched)
        if not len(users):
            continue
        read = solved_clients if name == "fedrefit" else trained_clients
        after, private = method.download(state.server), state.devices.take(users)
        found, vectors = [], []
        for client in read(method, before, after, private, federation.cohort(users, round)):
            row, pair = _measure(client, round, histories)
            vectors.append(pair)
            found.append(row | {"variant": name, "user": str(split.user_ids[client.user])})
            if on_client is not None:
                on_client(found[-1])
        every += found
        line = {"round": round, "clients": len(found), **_medians(found)}
        line["correlation"] = _correlation(vectors)
        each_round.append(line)
        if on_round is not None:
            on_round(name, line)
    row = {
        "variant": name,
        "method": method_name,
        "settings": dict(spec.settings),
        "data": data,
        "protocol": protocol,
        "seed": seed,
        "rounds": rounds,
        "clients": len(histories),
        "client_rounds": len(every),
        "median": _medians(every),
        "correlation": float(np.median([line["correlation"] for line in each_round])),
        "opposed": _share_of(every, "calibration_cosine", lambda cosine: cosine < 0),
        "buffer_opposed": _share_of(every, "buffer_cosine", lambda cosine: cosine < 0),
        "lemma": _lemma(list(histories.values()), getattr(method.config, "learning_rate", None)),
        "by_round": each_round,
    }
    rounded: Row = _round_figures(row)
    return rounded


def _measure(
    client: Client, round: int, histories: dict[int, History]
) -> tuple[Row, tuple[Float64, Float64]]:
    """A client's figures of one round, and its true and first-order skew."""
    p, local, shared, feedback = client.p, client.local, client.shared, client.feedback
    true = formulas.true_skew(p, local, shared, feedback)
    pair = formulas.first_order_skew(p, local, shared, feedback)
    answered = formulas.gradient(*client.answer, feedback)
    used, fed = client.used
    left = answered - formulas.gradient(p, local, fed)
    met = answered - formulas.gradient(p, used, fed)
    scale = formulas.pull(p, local, feedback)
    size = formulas.sizes(p, local, shared)
    history = histories.setdefault(client.user, History(client, size))
    history.add(client, size)
    history.true -= true * (client.rate or 1.0)  # Eq. 20
    history.formula -= pair.total * (client.rate or 1.0)
    history.left -= left * (client.rate or 1.0)
    row: Row = {
        "round": round,
        "items": len(client.items),
        "delta": float(size[0].mean()),
        "skew": float(np.linalg.norm(true)),
        "skew_of_pull": float(np.linalg.norm(true)) / scale,
        "scaling": float(np.linalg.norm(pair.scaling)),
        "shift": float(np.linalg.norm(pair.shift)),
        "cosine": formulas.cosine(pair.total, true),
        "error": formulas.norm_ratio(pair.total - true, true),
        "left_of_pull": float(np.linalg.norm(left)) / scale,
        "left": formulas.norm_ratio(left, true),
        "met_of_pull": float(np.linalg.norm(met)) / scale,
        "off_optimum": float(np.linalg.norm(formulas.gradient(p, used, fed)))
        / formulas.pull(p, used, fed),
        "accumulated": float(np.linalg.norm(history.true)),
        "accumulated_left": float(np.linalg.norm(history.left)),
        "growth": float(history.growth[-1].max(initial=0)) if history.growth else None,
        "calibration": None,
        "calibration_cosine": None,
        "negative_slopes": None,
        "buffer": None,
        "buffer_cosine": None,
    }
    if client.buffered:
        expected = formulas.calibration(p, local, feedback, client.buffer_rate).total
        change = answered - formulas.gradient(p, shared, feedback)
        row |= {
            "calibration": formulas.norm_ratio(expected, true),
            "calibration_cosine": formulas.cosine(expected, true),
            "negative_slopes": float(np.mean(formulas.slopes(p, local, feedback)[0] < 0)),
            "buffer": formulas.norm_ratio(change, true),
            "buffer_cosine": formulas.cosine(change, true),
        }
    return row, (true, pair.total)


def _lemma(histories: Sequence[History], rate: float | None) -> Row | None:
    """Lemma 3.3 against the measured skew: its gamma, constants and bounds."""
    several = [history for history in histories if history.rounds > 1]
    if rate is None or not several:
        return None
    ratios = [np.concatenate(history.growth) for history in several]
    beyond = np.concatenate([part for history in several for part in history.beyond])
    rows = []
    for history, ratio in zip(several, ratios, strict=True):
        gamma, happened = float(ratio.max()), float(np.linalg.norm(history.formula))
        parts = (rate, history.bounds, history.first, history.count)
        stepwise = rate * float(np.array(history.bounds[:2]) @ history.sums)  # Eq. 21, summed
        typical = formulas.accumulated_bound(*parts, float(np.median(ratio)))
        full = formulas.accumulated_bound(*parts, gamma, history.rounds)
        rows.append((gamma, happened, happened / stepwise, happened / typical, happened / full))
    gamma, happened, stepwise_used, typical_used, full_used = np.array(rows).T
    pooled = np.concatenate(ratios)
    return {
        "clients": len(several),
        "accumulated": float(np.median(happened)),
        "gamma_median": float(np.median(pooled)),
        "gamma_largest": float(gamma.max()),
        "gamma_largest_median": float(np.median(gamma)),
        "grew": float(np.mean(pooled >= 1)),
        "clients_with_gamma_below_1": int(np.sum(gamma < 1)),
        "beyond_first": float(np.mean(beyond)),
        "c1": float(max(history.bounds.c1 for history in several)),
        "c1_printed": float(max(history.bounds.printed for history in several)),
        "c2": float(max(history.bounds.c2 for history in several)),
        "of_stepwise_bound": float(np.median(stepwise_used)),
        "of_bound_at_median_gamma": float(np.median(typical_used)),
        "bound_at_median_gamma_broken": float(np.mean(typical_used > 1)),
        "of_bound_at_largest_gamma": float(np.median(full_used)),
    }


def _correlation(pairs: Sequence[tuple[Float64, Float64]]) -> float:
    """Pearson's correlation over all clients and dimensions of a round; 0 if nothing moved."""
    true, formula = (np.concatenate(side) for side in zip(*pairs, strict=True))
    if true.std() == 0 or formula.std() == 0:
        return 0.0
    return float(np.corrcoef(true, formula)[0, 1])


def _medians(rows: Sequence[Row]) -> Row:
    medians: Row = {}
    for name, first in rows[0].items():
        if name in ("round", "user", "variant") or isinstance(first, str):
            continue
        values = [row[name] for row in rows if row[name] is not None]
        medians[name] = float(np.median(values)) if values else None
    return medians


def _share_of(rows: Sequence[Row], name: str, holds: Callable[[float], bool]) -> float | None:
    values = [holds(row[name]) for row in rows if row[name] is not None]
    return float(np.mean(values)) if values else None


def _round_figures(value: Any) -> Any:
    """Round all numbers of a JSON value to six digits."""
    if isinstance(value, dict):
        return {name: _round_figures(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_round_figures(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
