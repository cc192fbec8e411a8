"""Significance against SciPy and against values from the textbooks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from unskew.evaluation import holm, mean_interval, paired_test, wilson_interval
from unskew.rng import Purpose, generator


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


@pytest.mark.parametrize(("n_users", "seed"), [(9, 0), (600, 0), (1000, 3)])
def test_the_bootstrap_interval_is_the_middle_95_percent_of_2000_means(
    n_users: int, seed: int
) -> None:
    """Of means over users drawn with replacement from their own stream, in blocks or not."""
    a = np.random.default_rng(n_users).random(n_users)
    result = paired_test(a, np.zeros(n_users), seed)
    draws = generator(seed, Purpose.BOOTSTRAP).integers(n_users, size=(2000, n_users))
    means = np.sort(a[draws].mean(axis=1))
    assert result.ci_low == pytest.approx(np.quantile(means, 0.025), abs=1e-12)
    assert result.ci_high == pytest.approx(np.quantile(means, 0.975), abs=1e-12)
    inside = (means >= result.ci_low) & (means <= result.ci_high)
    assert np.count_nonzero(inside) == 1900


def test_the_bootstrap_interval_covers_95_percent() -> None:
    """About 1.96 standard errors at either side; an interval of 90 % would have 1.64."""
    a = np.random.default_rng(2).normal(size=2000)
    result = paired_test(a, np.zeros(2000))
    error = a.std(ddof=1) / math.sqrt(2000)
    assert (result.ci_high - result.ci_low) / (2 * error) == pytest.approx(1.96, abs=0.1)
    assert paired_test(a, np.zeros(2000), seed=1) != result


def test_intervals_leave_out_what_is_missing() -> None:
    values = np.array([0.1, np.nan, 0.4, 0.2, 0.9, np.nan])
    assert mean_interval(values) == mean_interval(values[~np.isnan(values)])
    assert mean_interval(np.array([0.5])) == (0.5, -math.inf, math.inf)
    all_missing = mean_interval(np.array([np.nan]))
    assert all(math.isnan(number) for number in all_missing)


@pytest.mark.parametrize(("hits", "n"), [(0, 5), (1, 5), (5, 5), (1, 1), (17, 400)])
def test_wilsons_interval_against_scipy(hits: int, n: int) -> None:
    reference = stats.binomtest(hits, n).proportion_ci(0.95, method="wilson")
    expected = (hits / n, reference.low, reference.high)
    assert wilson_interval(hits, n) == pytest.approx(expected, abs=1e-12)


def test_holm_keeps_the_order_of_what_it_is_given() -> None:
    """Sorted 0.001, 0.01, 0.02, 0.5: times 4, 3, 2, 1, and never below one before."""
    assert holm([0.02, 0.5, 0.001, 0.01]) == pytest.approx([0.04, 0.5, 0.004, 0.03])
    assert holm([0.01, 0.011, 0.011]) == pytest.approx([0.03, 0.03, 0.03])
