"""Significance: paired tests over users, confidence intervals, and correction for many tests.

Tests compare users, because a few seeds cannot show significance: with five seeds, the p-value of
the exact two-sided Wilcoxon test cannot fall below 0.05.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special

from unskew.rng import Purpose, generator
from unskew.types import Float64

CONFIDENCE = 0.95
"""Coverage probability of all confidence intervals."""
BOOTSTRAP_SAMPLES = 2000
"""Number of bootstrap samples per confidence interval."""
_MAX_DRAWS = 1 << 20
"""Maximum number of random indices that the bootstrap draws at once; it bounds memory."""


class PairedTest(NamedTuple):
    """Paired test of methods a and b over users: mean of a - b, interval, p-value, wins of a."""

    difference: float
    ci_low: float
    ci_high: float
    p_value: float
    n_users: int
    wins: int
    losses: int
    ties: int


class Interval(NamedTuple):
    """A mean and the ends of its 95 % confidence interval."""

    mean: float
    low: float
    high: float


def paired_test(a: Float64, b: Float64, seed: int = 0) -> PairedTest:
    """Compare two runs by the values of a metric per user, in the same order of users.

    Users for whom either value is NaN (nothing held out) are left out. The p-value is that of the
    two-sided Wilcoxon signed-rank test over the users whose values differ (1 if there are none).
    The interval is a percentile bootstrap of the mean difference, drawn with ``seed``.
    """
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"paired values need one shape, not {a.shape} and {b.shape}")
    difference = a - b
    difference = difference[~np.isnan(difference)]
    n_users = len(difference)
    if n_users == 0:
        nan = float("nan")
        return PairedTest(nan, nan, nan, 1.0, 0, 0, 0, 0)
    from scipy.stats import wilcoxon  # costs most of a second to import: only when needed

    low, high = _bootstrap(difference, seed)
    unequal = difference[difference != 0]
    wins = int(np.count_nonzero(difference > 0))
    losses = int(np.count_nonzero(difference < 0))
    return PairedTest(
        difference=float(difference.mean()),
        ci_low=low,
        ci_high=high,
        p_value=float(wilcoxon(unequal).pvalue) if len(unequal) else 1.0,
        n_users=n_users,
        wins=wins,
        losses=losses,
        ties=n_users - wins - losses,
    )


def holm(p_values: Sequence[float] | Float64) -> Float64:
    """P-values adjusted for multiple tests by Holm's step-down method.

    The smallest of m p-values is multiplied by m, the next by m - 1 and so on. None may become
    smaller than the one before it, nor larger than 1. Results are in the order of the input.
    """
    raw = np.asarray(p_values, np.float64)
    order = np.argsort(raw, kind="stable")
    factors = np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(raw[order] * factors), 1.0)
    return adjusted


def mean_interval(values: Float64) -> Interval:
    """A mean and its 95 % confidence interval; NaN values are left out.

    Values that are all 0 or 1 (hits) get Wilson's interval, which stays within [0, 1] and has a
    positive width even if all values are equal; other values get Student's t interval.
    """
    present = np.asarray(values, np.float64)
    present = present[~np.isnan(present)]
    n = len(present)
    if n == 0:
        return Interval(float("nan"), float("nan"), float("nan"))
    if np.isin(present, (0.0, 1.0)).all():
        return wilson_interval(int(present.sum()), n)
    mean = float(present.mean())
    if n == 1:
        return Interval(mean, float("-inf"), float("inf"))
    quantile = float(special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2))
    half = quantile * float(present.std(ddof=1)) / n**0.5
    return Interval(mean, mean - half, mean + half)


def wilson_interval(hits: int, n: int) -> Interval:
    """The rate ``hits / n`` and its 95 % confidence interval by Wilson's formula."""
    z = float(special.ndtri(0.5 + CONFIDENCE / 2))
    rate = hits / n
    shrink = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / shrink
    half = z * (rate * (1 - rate) / n + z * z / (4 * n * n)) ** 0.5 / shrink
    low = 0.0 if hits == 0 else centre - half
    high = 1.0 if hits == n else centre + half
    return Interval(rate, low, high)


def _bootstrap(difference: Float64, seed: int) -> tuple[float, float]:
    """Ends of the 95 % percentile bootstrap interval of the mean of ``difference``."""
    n_users = len(difference)
    draws = generator(seed, Purpose.BOOTSTRAP)
    at_once = max(_MAX_DRAWS // n_users, 1)
    means: list[float] = []
    while len(means) < BOOTSTRAP_SAMPLES:
        size = (min(at_once, BOOTSTRAP_SAMPLES - len(means)), n_users)
        means.extend(difference[draws.integers(n_users, size=size)].mean(1))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, (tail, 1 - tail))
    return float(low), float(high)
