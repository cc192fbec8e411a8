"""Significance against SciPy and against values from the textbooks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from unskew.evaluation import holm, mean_interval, paired_test, wilson_interval


def test_paired_test_by_hand() -> None:
    """Six differences of one sign and different sizes: two of 2**6 sign patterns are as extreme."""
    a = np.array([1, 2, 3, 4, 5, 6, 7, np.nan])
    b = np.array([0, 0, 0, 0, 0, 0, 7, 1.0])
    result = paired_test(a, b)
    assert result.p_value == pytest.approx(2 / 64)
    assert result.difference == pytest.approx(3.0)
    assert (result.n_users, result.wins, result.losses, result.ties) == (7, 6, 0, 1)
    assert 0 < result.ci_low < 3 < result.ci_high < 6


def test_paired_test_against_scipy() -> None:
    rng = np.random.default_rng(1)
    a = rng.random(400).round(1)
    b = (a + rng.normal(0.02, 0.1, 400)).round(1)
    result = paired_test(a, b)
    difference = a - b
    assert result.p_value == stats.wilcoxon(difference[difference != 0]).pvalue
    reference = stats.bootstrap((difference,), np.mean, method="percentile", rng=rng)
    low, high = reference.confidence_interval
    width = high - low
    assert result.ci_low == pytest.approx(low, abs=width / 10)
    assert result.ci_high == pytest.approx(high, abs=width / 10)
    assert paired_test(a, b) == result
    swapped = paired_test(b, a)
    assert (swapped.wins, swapped.losses) == (result.losses, result.wins)
    assert swapped.difference == pytest.approx(-result.difference)


def test_nothing_to_tell_apart() -> None:
    same = np.ones(5)
    assert paired_test(same, same) == (0.0, 0.0, 0.0, 1.0, 5, 0, 0, 5)
    assert paired_test(np.array([np.nan]), np.array([1.0])).n_users == 0
    with pytest.raises(ValueError, match="one shape"):
        paired_test(same, np.ones(4))


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.7, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]).shape == (0,)


def test_hits_get_wilsons_interval() -> None:
    hits = np.repeat([1.0, 0.0, np.nan], (30, 70, 9))
    reference = stats.binomtest(30, 100).proportion_ci(method="wilson")
    assert mean_interval(hits) == pytest.approx((0.3, reference.low, reference.high))
    nobody = wilson_interval(0, 20)
    assert nobody.low == 0
    assert nobody.high == pytest.approx(0.16113, abs=1e-5)
    assert wilson_interval(20, 20).high == 1


def test_other_values_get_students_interval() -> None:
    values = np.array([0.1, 0.4, 0.2, 0.9])
    low, high = stats.t.interval(0.95, 3, loc=values.mean(), scale=stats.sem(values))
    assert mean_interval(values) == pytest.approx((0.4, low, high))
    assert math.isnan(mean_interval(np.array([])).mean)
