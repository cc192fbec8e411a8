"""The user-embedding skew of the PFedCLR paper as formulas that can be measured.

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
    """D_u by item: how many samples there are of it, the sum of their labels r_ui, and s."""

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
    """C1 and C2 of Lemma 3.3: the largest |s - r| and s' there were. ``printed`` is the paper's C1,
    without the absolute value, which for the positives alone is negative and bounds nothing."""

    c1: float
    c2: float
    printed: float

    def widened(self, other: Bounds) -> Bounds:
        return Bounds(*(max(pair) for pair in zip(self, other, strict=True)))


def slopes(p: Float64, Q: Float64, feedback: Feedback) -> tuple[Float64, Float64]:
    """L1 and L2 per item."""
    value, slope = _link(Q @ p, feedback.link)
    return feedback.samples * value - feedback.label, feedback.samples * slope


def gradient(p: Float64, Q: Float64, feedback: Feedback) -> Float64:
    """sum_i L1 q_i, the gradient of the client's loss by its vector (Lemma 3.1, Eq. 3)."""
    L1, _ = slopes(p, Q, feedback)
    return L1 @ Q


def pull(p: Float64, Q: Float64, feedback: Feedback) -> float:
    """sum_i |L1 q_i|: what the gradient would be if all items pulled one way; a scale for it."""
    L1, _ = slopes(p, Q, feedback)
    return float(np.abs(L1) @ np.linalg.norm(Q, axis=1))


def true_skew(p: Float64, Q_u: Float64, Q_g: Float64, feedback: Feedback) -> Float64:
    """What Lemma 3.2 approximates: the gradient on global items minus the one on local items."""
    return gradient(p, Q_g, feedback) - gradient(p, Q_u, feedback)


def first_order_skew(p: Float64, Q_u: Float64, Q_g: Float64, feedback: Feedback) -> Pair:
    """sum_i L2 (p.delta_i) q_i^(u)  +  sum_i L1 delta_i (Lemma 3.2, Eq. 4)."""
    L1, L2 = slopes(p, Q_u, feedback)
    delta = Q_g - Q_u
    return Pair((L2 * (delta @ p)) @ Q_u, L1 @ delta)


def calibration(p: Float64, Q_u: Float64, feedback: Feedback, rate: float) -> Pair:
    """-sum_i eta L1 L2 (p.p) q_i^(u)  -  sum_i eta L1^2 p (Lemma 4.1, Eq. 7): what one step of
    a buffer W = 0 does to the gradient. No delta is in it: it cannot know which way the skew is."""
    L1, L2 = slopes(p, Q_u, feedback)
    return Pair(-rate * float(p @ p) * ((L1 * L2) @ Q_u), -rate * float(L1 @ L1) * p)


def buffer_step(p: Float64, Q_u: Float64, feedback: Feedback, rate: float) -> Float64:
    """The buffer that Lemma 4.1 has in mind, w_i = -eta L1 p (Eq. 31 to first order)."""
    L1, _ = slopes(p, Q_u, feedback)
    return -rate * np.outer(L1, p)


def largest_slopes(p: Float64, Q: Float64, feedback: Feedback) -> Bounds:
    """C1 and C2 of a single round, over samples: labels are 0 or 1."""
    value, slope = _link(Q @ p, feedback.link)
    negative, positive = feedback.samples > feedback.label, feedback.label > 0
    signed = np.concatenate((value[negative], value[positive] - 1))
    return Bounds(float(np.abs(signed).max()), float(slope.max()), float(signed.max()))


def sizes(p: Float64, Q_u: Float64, Q_g: Float64) -> tuple[Float64, Float64]:
    """|delta_i| and |p.delta_i| |q_i^(u)|, what the lemma's bound is made of."""
    delta = Q_g - Q_u
    return np.linalg.norm(delta, axis=1), np.abs(delta @ p) * np.linalg.norm(Q_u, axis=1)


def growth(before: Float64, after: Float64) -> Float64:
    """|delta^(t+1)| / |delta^(t)| of each item that had moved: the lemma's gamma is the largest."""
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
    """The most the accumulated skew can be, from the first round's sizes (Lemma 3.3):

        sum_i eta (C1 |delta_i| + C2 |p.delta_i| |q_i|) / (1 - gamma)                     (Eq. 5)

    which is infinite unless gamma < 1; with ``rounds`` T its last but one step, (1 - gamma^T) in
    place of 1 (Eq. 22), which exists for every gamma.
    """
    start = rate * float(count @ (bounds.c1 * first[0] + bounds.c2 * first[1]))
    if rounds is None:
        return start / (1 - gamma) if gamma < 1 else float("inf")
    with np.errstate(over="ignore"):
        return float(start * np.sum(np.float64(gamma) ** np.arange(rounds)))


def cosine(a: Float64, b: Float64) -> float:
    """Of the angle between two vectors; 0 where one has no direction."""
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size > 0 else 0.0


def share(part: Float64, whole: Float64) -> float:
    """|part| / |whole|, and 0 where there is no whole and no part of it either."""
    size, against = float(np.linalg.norm(part)), float(np.linalg.norm(whole))
    if against == 0:
        return 0.0 if size == 0 else float("inf")
    return size / against


def _link(x: Float64, link: str) -> tuple[Float64, Float64]:
    """s and s'."""
    if link == "identity":
        return x, np.ones_like(x)
    value: Float64 = 0.5 * (1 + np.tanh(x / 2))  # the logistic function, without overflow
    return value, value * (1 - value)
