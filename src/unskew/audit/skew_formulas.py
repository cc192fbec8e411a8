"""Formulas for the user-embedding skew of the PFedCLR paper, and their values for one client.

Chen et al., "Beyond Personalization: Federated Recommendation with Calibration via Low-rank
Decomposition", 2025, Lemmas 3.1 to 3.3 and 4.1 (proofs in its Appendix B); equation numbers count
the equations of its text. For client u and item i, p is the user vector, q_i^(u) the item vector
that the client trained, q_i^(g) the aggregated one that replaces it, delta_i = q_i^(g) - q_i^(u),
r_ui the label, s the link function (logistic, or the identity for least squares), s' its slope, and

    L1 = s(p.q_i^(u)) - r_ui,    L2 = s'(p.q_i^(u)),

summed over the client's samples of the item. eta is the learning rate.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from unskew.types import Float64, Int32

Row = dict[str, Any]


class Feedback(NamedTuple):
    """A client's samples: their number and sum of labels per item, and the link function."""

    samples: Float64
    label: Float64
    link: Literal["logistic", "identity"] = "logistic"


class Bounds(NamedTuple):
    """Constants C1 and C2 of Lemma 3.3: the largest |prediction - label| and the largest slope of
    the link function. ``printed`` is C1 as the paper prints it, without the absolute value. It is
    negative for positives, so it bounds nothing."""

    c1: float
    c2: float
    printed: float


class BoundTerms(NamedTuple):
    """Terms per item of Lemma 3.3's bound on the accumulated skew, for one client and round."""

    items: Int32
    samples: Float64
    delta: Float64
    """Distance between local and aggregated item vector, |delta_i|."""
    turn: Float64
    """|p.delta_i| |q_i^(u)|"""
    bounds: Bounds


class History:
    """A client's rounds so far: the terms of Lemma 3.3's bound on its skew, and three sums over
    rounds, times the negative learning rate: the gradient's true skew, the skew by the first-order
    formula, and the skew left after calibration."""

    def __init__(self, dim: int) -> None:
        self.rounds: list[BoundTerms] = []
        self.true, self.formula, self.left = np.zeros((3, dim))


def slopes(p: Float64, Q: Float64, feedback: Feedback) -> tuple[Float64, Float64]:
    """Two sums over the samples of each item: prediction minus label, and the slope of the function
    that turns a logit into a prediction."""
    value, slope = _link(Q @ p, feedback.link)
    return feedback.samples * value - feedback.label, feedback.samples * slope


def gradient(p: Float64, Q: Float64, feedback: Feedback) -> Float64:
    """Gradient of the client's loss with respect to its user vector (Lemma 3.1, Eq. 3)."""
    L1, _ = slopes(p, Q, feedback)
    return L1 @ Q


def pull(p: Float64, Q: Float64, feedback: Feedback) -> float:
    """Sum over items of the norms of their gradients, the unit in which skews are reported."""
    L1, _ = slopes(p, Q, feedback)
    return float(np.abs(L1) @ np.linalg.norm(Q, axis=1))


def first_order_skew(
    p: Float64, Q_u: Float64, Q_g: Float64, feedback: Feedback
) -> tuple[Float64, Float64]:
    """The terms "scaling" and "shift" of Lemma 3.2 (Eq. 4). Their sum is the first-order skew: it
    approximates the gradient on aggregated items minus that on local items."""
    L1, L2 = slopes(p, Q_u, feedback)
    delta = Q_g - Q_u
    return (L2 * (delta @ p)) @ Q_u, L1 @ delta


def calibration(
    p: Float64, Q_u: Float64, feedback: Feedback, rate: float
) -> tuple[Float64, Float64]:
    """The terms "scaling" and "shift" of Lemma 4.1 (Eq. 7). Their sum is the first-order change of
    the gradient by one training step of the private rows that a PFedCLR client adds to its items,
    from zero. Aggregated items do not enter, so it is independent of the skew's direction."""
    L1, L2 = slopes(p, Q_u, feedback)
    return -rate * float(p @ p) * ((L1 * L2) @ Q_u), -rate * float(L1 @ L1) * p


def bound_terms(
    items: Int32, p: Float64, Q_u: Float64, Q_g: Float64, feedback: Feedback
) -> BoundTerms:
    """Compute the terms of Lemma 3.3's bound for one client and round; labels are 0 or 1."""
    delta = Q_g - Q_u
    turn = np.abs(delta @ p) * np.linalg.norm(Q_u, axis=1)
    value, slope = _link(Q_u @ p, feedback.link)
    negative, positive = feedback.samples > feedback.label, feedback.label > 0
    signed = np.concatenate((value[negative], value[positive] - 1))
    bounds = Bounds(float(np.abs(signed).max()), float(slope.max()), float(signed.max()))
    return BoundTerms(items, feedback.samples, np.linalg.norm(delta, axis=1), turn, bounds)


def growth(before: BoundTerms, after: BoundTerms) -> Float64:
    """Growth of each item's distance between local and aggregated vector: after / before, for items
    in both rounds with a distance above 0. Lemma 3.3's gamma is the largest."""
    _, first, second = np.intersect1d(before.items, after.items, True, True)
    old, new = before.delta[first], after.delta[second]
    return new[old > 0] / old[old > 0]


def accumulated_bound(
    rate: float, bounds: Bounds, first: BoundTerms, gamma: float, rounds: int | None = None
) -> float:
    """Upper bound on the accumulated skew, from the terms of the first round (Lemma 3.3):

        sum_i eta (C1 |delta_i| + C2 |p.delta_i| |q_i|) / (1 - gamma)                     (Eq. 5)

    where eta is the learning rate ``rate``, C1 and C2 are ``bounds``, p is the user vector, q_i the
    item vector, delta_i its change by aggregation, and gamma the growth of |delta_i| per round. The
    bound is infinite unless gamma < 1. With ``rounds`` T, the numerator has the factor
    (1 - gamma^T) (Eq. 22), and the bound is finite for every gamma."""
    start = rate * float(first.samples @ (bounds.c1 * first.delta + bounds.c2 * first.turn))
    if rounds is None:
        return start / (1 - gamma) if gamma < 1 else float("inf")
    with np.errstate(over="ignore"):
        return float(start * np.sum(np.float64(gamma) ** np.arange(rounds)))


def measure_bounds(histories: Sequence[History], rate: float) -> dict[str, Any] | None:
    """Compare the bounds of Lemma 3.3 with the measured skew of clients with two rounds or more, as
    JSON; None if there is no such client."""
    several = [history for history in histories if len(history.rounds) > 1]
    if not several:
        return None
    ratios, beyond, constants, rows = [], [], [], []
    for history in several:
        rounds, happened = history.rounds, norm(history.formula)
        first, bounds = rounds[0], Bounds(*np.max([one.bounds for one in rounds], axis=0))
        ratio = np.concatenate([growth(*pair) for pair in itertools.pairwise(rounds)])
        for later in rounds[1:]:
            _, here, there = np.intersect1d(first.items, later.items, True, True)
            beyond.append(later.turn[there] > first.turn[here])
        steps = [one.samples @ (bounds.c1 * one.delta + bounds.c2 * one.turn) for one in rounds]
        stepwise = rate * float(sum(steps))  # Eq. 21, summed
        typical = accumulated_bound(rate, bounds, first, float(np.median(ratio)))
        full = accumulated_bound(rate, bounds, first, float(ratio.max()), len(rounds))
        ratios.append(ratio)
        constants.append(bounds)
        rows.append((ratio.max(), happened, *(happened / b for b in (stepwise, typical, full))))
    gamma, happened, stepwise_used, typical_used, full_used = np.array(rows).T
    pooled, (c1, c2, printed) = np.concatenate(ratios), np.max(constants, axis=0)
    return {
        "clients": len(several),
        "accumulated": float(np.median(happened)),
        "gamma_median": float(np.median(pooled)),
        "gamma_largest": float(gamma.max()),
        "gamma_largest_median": float(np.median(gamma)),
        "grew": float(np.mean(pooled >= 1)),
        "clients_with_gamma_below_1": int(np.sum(gamma < 1)),
        "beyond_first": float(np.mean(np.concatenate(beyond))),
        "c1": float(c1),
        "c1_printed": float(printed),
        "c2": float(c2),
        "of_stepwise_bound": float(np.median(stepwise_used)),
        "of_bound_at_median_gamma": float(np.median(typical_used)),
        "bound_at_median_gamma_broken": float(np.mean(typical_used > 1)),
        "of_bound_at_largest_gamma": float(np.median(full_used)),
    }


def norm(vector: Float64) -> float:
    """Euclidean norm of a vector."""
    return float(np.linalg.norm(vector))


def cosine(a: Float64, b: Float64) -> float:
    """Cosine of the angle between two vectors; 0 if one of them is zero."""
    size = norm(a) * norm(b)
    return float(a @ b) / size if size > 0 else 0.0


def norm_ratio(part: Float64, whole: Float64) -> float:
    """Ratio of the norms of two vectors, |part| / |whole|; 0 if both are zero."""
    if norm(whole) == 0:
        return 0.0 if norm(part) == 0 else float("inf")
    return norm(part) / norm(whole)


def _link(x: Float64, link: str) -> tuple[Float64, Float64]:
    """Values and slopes at ``x`` of the link function, logistic or identity."""
    if link == "identity":
        return x, np.ones_like(x)
    value: Float64 = 0.5 * (1 + np.tanh(x / 2))  # the logistic function, without overflow
    return value, value * (1 - value)


class Client(NamedTuple):
    """Data for one client's skew after a round: user vector, item tables, samples (float64)."""

    user: int
    items: Int32
    p: Float64
    local: Float64
    """The client's own items."""
    shared: Float64
    """The aggregated items that replace them."""
    feedback: Feedback
    answer: tuple[Float64, Float64]
    """Vector and items after aggregation: (p, shared + buffer), or (p solved again, shared)."""
    used: tuple[Float64, Feedback]
    """The items that the vector was trained against, and the samples."""
    rate: float = 1.0
    """Learning rate of the vector (eta); 1 if the vector is solved for."""
    buffer_rate: float | None = None
    """Learning rate of the buffer; None without a buffer."""


def measure(client: Client, round: int, history: History) -> tuple[Row, tuple[Float64, Float64]]:
    """Measure a client's skew in one round and add it to ``history``. Returns the measures as JSON,
    and two vectors: the true skew and the first-order skew."""
    p, local, shared, feedback = client.p, client.local, client.shared, client.feedback
    at_shared = gradient(p, shared, feedback)
    true = at_shared - gradient(p, local, feedback)
    scaling, shift = first_order_skew(p, local, shared, feedback)
    answered = gradient(*client.answer, feedback)
    used, fed = client.used
    at_used = gradient(p, used, fed)
    left = answered - gradient(p, local, fed)
    strength = pull(p, local, feedback)
    history.rounds.append(bound_terms(client.items, p, local, shared, feedback))
    history.true -= true * client.rate  # Eq. 20
    history.formula -= (scaling + shift) * client.rate
    history.left -= left * client.rate
    row: Row = {
        "round": round,
        "items": len(client.items),
        "delta": float(history.rounds[-1].delta.mean()),
        "skew": norm(true),
        "skew_of_pull": norm(true) / strength,
        "scaling": norm(scaling),
        "shift": norm(shift),
        "cosine": cosine(scaling + shift, true),
        "error": norm_ratio(scaling + shift - true, true),
        "left_of_pull": norm(left) / strength,
        "left": norm_ratio(left, true),
        "met_of_pull": norm(answered - at_used) / strength,
        "off_optimum": norm(at_used) / pull(p, used, fed),
        "accumulated": norm(history.true),
        "accumulated_left": norm(history.left),
        "growth": None,
        "calibration": None,
        "calibration_cosine": None,
        "negative_slopes": None,
        "buffer": None,
        "buffer_cosine": None,
    }
    if len(history.rounds) > 1:
        row["growth"] = float(growth(*history.rounds[-2:]).max(initial=0))
    if client.buffer_rate is not None:
        expected = np.add(*calibration(p, local, feedback, client.buffer_rate))
        change = answered - at_shared
        row |= {
            "calibration": norm_ratio(expected, true),
            "calibration_cosine": cosine(expected, true),
            "negative_slopes": float(np.mean(slopes(p, local, feedback)[0] < 0)),
            "buffer": norm_ratio(change, true),
            "buffer_cosine": cosine(change, true),
        }
    return row, (true, scaling + shift)
