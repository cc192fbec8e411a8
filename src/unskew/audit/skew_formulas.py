"""Formulas for the user-embedding skew of the PFedCLR paper.

Chen et al., "Beyond Personalization: Federated Recommendation with Calibration via Low-rank
Decomposition", 2025, Lemmas 3.1 to 3.3 and 4.1 (proofs in its Appendix B); equation numbers count
the equations of its text. With q_i^(u) a client's own items, q_i^(g) the aggregated ones that
replace them, delta_i = q_i^(g) - q_i^(u), and

    L1 = s(p.q_i^(u)) - r_ui,    L2 = s'(p.q_i^(u)),

the paper's s is the logistic function. For a vector that is solved for by least squares s is the
identity, and every formula below holds with it as well. Where D_u has several samples of an item,
L1 and L2 are their sums.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from unskew.types import Float64


class Feedback(NamedTuple):
    """D_u by item: the number of samples, the sum of their labels r_ui, and the function s."""

    samples: Float64
    label: Float64
    link: Literal["logistic", "identity"] = "logistic"


class Pair(NamedTuple):
    """The two terms of the skew, or of its calibration."""

    scaling: Float64
    shift: Float64

    @property
    def total(self) -> Float64:
        return self.scaling + self.shift


class Bounds(NamedTuple):
    """C1 and C2 of Lemma 3.3: the largest |s - r| and s' seen.

    ``printed`` is C1 as in the paper, without the absolute value. For positives it is negative, so
    it bounds nothing.
    """

    c1: float
    c2: float
    printed: float

    def widen(self, other: Bounds) -> Bounds:
        """The larger of each bound."""
        return Bounds(*(max(pair) for pair in zip(self, other, strict=True)))


def slopes(p: Float64, Q: Float64, feedback: Feedback) -> tuple[Float64, Float64]:
    """L1 and L2 per item."""
    value, slope = _link(Q @ p, feedback.link)
    return feedback.samples * value - feedback.label, feedback.samples * slope


def gradient(p: Float64, Q: Float64, feedback: Feedback) -> Float64:
    """sum_i L1 q_i, the gradient of the client's loss in its vector (Lemma 3.1, Eq. 3)."""
    L1, _ = slopes(p, Q, feedback)
    return L1 @ Q


def pull(p: Float64, Q: Float64, feedback: Feedback) -> float:
    """sum_i |L1 q_i|, the gradient's norm if all items pulled one way; a scale for gradients."""
    L1, _ = slopes(p, Q, feedback)
    return float(np.abs(L1) @ np.linalg.norm(Q, axis=1))


def true_skew(p: Float64, Q_u: Float64, Q_g: Float64, feedback: Feedback) -> Float64:
    """The gradient on global items minus that on local items, which Lemma 3.2 approximates."""
    return gradient(p, Q_g, feedback) - gradient(p, Q_u, feedback)


def first_order_skew(p: Float64, Q_u: Float64, Q_g: Float64, feedback: Feedback) -> Pair:
    """sum_i L2 (p.delta_i) q_i^(u)  +  sum_i L1 delta_i (Lemma 3.2, Eq. 4)."""
    L1, L2 = slopes(p, Q_u, feedback)
    delta = Q_g - Q_u
    return Pair((L2 * (delta @ p)) @ Q_u, L1 @ delta)


def calibration(p: Float64, Q_u: Float64, feedback: Feedback, rate: float) -> Pair:
    """-sum_i eta L1 L2 (p.p) q_i^(u)  -  sum_i eta L1^2 p (Lemma 4.1, Eq. 7).

    The change of the gradient by one step of a buffer W = 0. It contains no delta, so it does not
    know the direction of the skew.
    """
    L1, L2 = slopes(p, Q_u, feedback)
    return Pair(-rate * float(p @ p) * ((L1 * L2) @ Q_u), -rate * float(L1 @ L1) * p)


def buffer_step(p: Float64, Q_u: Float64, feedback: Feedback, rate: float) -> Float64:
    """The buffer of Lemma 4.1 after one step, w_i = -eta L1 p (Eq. 31 to first order)."""
    L1, _ = slopes(p, Q_u, feedback)
    return -rate * np.outer(L1, p)


def largest_slopes(p: Float64, Q: Float64, feedback: Feedback) -> Bounds:
    """C1 and C2 of one round, over samples with labels 0 or 1."""
    value, slope = _link(Q @ p, feedback.link)
    negative, positive = feedback.samples > feedback.label, feedback.label > 0
    signed = np.concatenate((value[negative], value[positive] - 1))
    return Bounds(float(np.abs(signed).max()), float(slope.max()), float(signed.max()))


def sizes(p: Float64, Q_u: Float64, Q_g: Float64) -> tuple[Float64, Float64]:
    """|delta_i| and |p.delta_i| |q_i^(u)|, the terms of Lemma 3.3's bound."""
    delta = Q_g - Q_u
    return np.linalg.norm(delta, axis=1), np.abs(delta @ p) * np.linalg.norm(Q_u, axis=1)


def growth(before: Float64, after: Float64) -> Float64:
    """|delta^(t+1)| / |delta^(t)| of each item that had moved; Lemma 3.3's gamma is the largest."""
    moved = before > 0
    return after[moved] / before[moved]


def accumulated_bound(
    rate: float,
    bounds: Bounds,
    first: tuple[Float64, Float64],
    count: Float64,
    gamma: float,
    rounds: int | None = None,
) -> float:
    """Upper bound on the accumulated skew, from the terms of the first round (Lemma 3.3):

        sum_i eta (C1 |delta_i| + C2 |p.delta_i| |q_i|) / (1 - gamma)                     (Eq. 5)

    It is infinite unless gamma < 1. With ``rounds`` T, the last but one step of the proof with
    (1 - gamma^T) in place of 1 (Eq. 22), which is finite for every gamma.
    """
    start = rate * float(count @ (bounds.c1 * first[0] + bounds.c2 * first[1]))
    if rounds is None:
        return start / (1 - gamma) if gamma < 1 else float("inf")
    with np.errstate(over="ignore"):
        return float(start * np.sum(np.float64(gamma) ** np.arange(rounds)))


def cosine(a: Float64, b: Float64) -> float:
    """Cosine of the angle between two vectors; 0 if one of them is zero."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def norm_ratio(part: Float64, whole: Float64) -> float:
    """|part| / |whole|, and 0 if both are zero."""
    size, against = float(np.linalg.norm(part)), float(np.linalg.norm(whole))
    if against == 0:
        return 0.0 if size == 0 else float("inf")
    return size / against


def _link(x: Float64, link: str) -> tuple[Float64, Float64]:
    """Values and slopes of s."""
    if link == "identity":
        return x, np.ones_like(x)
    value: Float64 = 0.5 * (1 + np.tanh(x / 2))  # the logistic function, without overflow
    return value, value * (1 - value)
