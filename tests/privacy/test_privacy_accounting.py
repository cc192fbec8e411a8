"""The accountant against closed forms and against direct simulation, and what it says in words."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from unskew.privacy import (
    LocalPrivacy,
    Mechanism,
    calibrated_noise,
    compositions,
    local_epsilon,
    privacy_report,
    sum_epsilon,
)
from unskew.privacy._mechanism import Shape
from unskew.types import UnskewError

pytest.importorskip("dp_accounting")
DELTA = 1e-5


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle & Wang, 2018, for one Gaussian mechanism of sensitivity / deviation mu."""
    cdf = scipy.stats.norm.cdf
    far = math.exp(epsilon) * cdf(-mu / 2 - epsilon / mu)
    return float(cdf(mu / 2 - epsilon / mu) - far)


@pytest.mark.parametrize(("ratio", "rounds"), [(1.0, 1), (5.0, 1), (10.0, 60), (3.0, 100)])
def test_gaussian_rounds_compose_as_the_closed_form_says(ratio: float, rounds: int) -> None:
    """k Gaussian releases are one with sqrt(k) times the mu."""
    epsilon = local_epsilon("gaussian", ratio, rounds, DELTA)
    mu = math.sqrt(rounds) / ratio
    assert gaussian_delta(epsilon, mu) <= DELTA
    assert gaussian_delta(epsilon * 0.99 - 1e-3, mu) > DELTA, "tight, not merely safe"


@pytest.mark.parametrize("ratio", [0.2, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_one_laplace_release_has_its_closed_form(ratio: float, delta: float) -> None:
    """delta(eps) = 1 - exp((eps - 1/ratio) / 2)."""
    exact = 1 / ratio + 2 * math.log(1 - delta)
    assert local_epsilon("laplace", ratio, 1, delta) == pytest.approx(max(exact, 0), abs=2e-3)


def simulated_delta(epsilon: float, ratio: float, steps: list[float]) -> float:
    """E[max(0, 1 - exp(eps - loss))] over noise, for releases that lie ``steps`` apart."""
    draw = np.random.default_rng(0)
    loss = np.zeros(400_000)
    for apart in steps:
        x = draw.laplace(0.0, ratio, len(loss))
        loss += (np.abs(x + apart) - np.abs(x)) / ratio
    return float(np.maximum(0.0, 1 - np.exp(epsilon - loss)).mean())


@pytest.mark.parametrize(("ratio", "rounds"), [(1.0, 2), (2.0, 3), (4.0, 8)])
def test_laplace_rounds_compose_as_simulation_says(ratio: float, rounds: int) -> None:
    delta = 0.05
    epsilon = local_epsilon("laplace", ratio, rounds, delta)
    assert simulated_delta(epsilon, ratio, [1.0] * rounds) == pytest.approx(delta, rel=0.03)


@pytest.mark.parametrize("parts", [[0.5, 0.5], [0.25] * 4, [0.9, 0.05, 0.05]])
def test_a_vector_gives_away_no_more_than_one_number_as_far_apart(parts: list[float]) -> None:
    """What lets the accountant's mechanisms of one number stand for whole tables."""
    epsilon = local_epsilon("laplace", 1.0, 1, 0.05)
    assert simulated_delta(epsilon, 1.0, parts) <= 0.05


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_epsilon_grows_with_rounds_and_falls_with_noise(kind: str) -> None:
    by_rounds = [local_epsilon(kind, 10.0, k, DELTA) for k in (0, 1, 2, 10, 50, 200)]
    assert by_rounds[0] == 0
    assert all(a < b for a, b in itertools.pairwise(by_rounds))
    by_noise = [local_epsilon(kind, ratio, 20, DELTA) for ratio in (0.1, 1, 10, 100)]
    assert all(a > b for a, b in itertools.pairwise(by_noise))
    assert local_epsilon(kind, 0.0, 1) == math.inf


@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_next_to_no_noise_is_a_very_large_epsilon_and_no_failure(kind: str) -> None:
    ratios = (1e-9, 1e-5, 1e-3, 5e-3, 1e-2, 2e-2, 0.1)
    found = [local_epsilon(kind, ratio, 5, DELTA) for ratio in ratios]
    assert all(a > b for a, b in itertools.pairwise(found))
    assert math.isfinite(found[0])


def test_composition_beats_simple_addition() -> None:
    assert local_epsilon("laplace", 10.0, 100, DELTA) == pytest.approx(4.2, abs=0.05)
    assert local_epsilon("laplace", 0.01, 10, DELTA) <= 10 / 0.01


@pytest.mark.parametrize(("kind", "norm"), [("laplace", "l1"), ("gaussian", "l2")])
@pytest.mark.parametrize("epsilon", [0.5, 8.0, 100.0])
def test_a_budget_is_spent_and_not_overspent(kind: Any, norm: Any, epsilon: float) -> None:
    wanted = LocalPrivacy(epsilon=epsilon, clip=3.0, norm=norm, kind=kind)
    noise = calibrated_noise(wanted, 60)
    assert 0.99 * epsilon <= local_epsilon(kind, noise / 6.0, 60, wanted.delta) <= epsilon


def test_the_sum_of_many_gaussian_uploads_is_better_protected() -> None:
    mechanism, shape = Mechanism(1.0, "gaussian", 1.0, "l2"), Shape(10, 4, 0)
    alone, together = (sum_epsilon(mechanism, shape, n, 10) for n in (1, 100))
    assert alone == pytest.approx(local_epsilon("gaussian", 0.5, 10))
    assert together == pytest.approx(local_epsilon("gaussian", 5.0, 10))
    assert sum_epsilon(Mechanism(1.0, "laplace", 1.0), shape, 10, 10) is None


def rows(**changed: Any) -> list[dict[str, Any]]:
    figures = {
        "sent": 3,
        "largest_l1": 40.0,
        "largest_l2": 2.0,
        "largest_share": 0.5,
        "median_share": 0.2,
        "shape": [10, 4, 0],
    }
    return [{"ldp": figures | changed}, {"ldp": figures | changed}]


def test_noise_without_a_clip_is_called_no_guarantee() -> None:
    report = privacy_report(LocalPrivacy(noise=0.5), Mechanism(0.5), np.array([2, 1, 2]), rows())
    keys = {"definition", "epsilon", "share", "update_bound", "update_bound_is"}
    assert set(report["paper_epsilon"]) == keys, "as saved results name them"
    assert report["local_guarantee"]["statement"].startswith("no guarantee")
    assert not report["local_guarantee"]["holds"]
    assert report["paper_epsilon"]["epsilon"]["worst"] == pytest.approx(2 * 0.5 * 40 / 0.5)
    assert "not a bound" in report["paper_epsilon"]["update_bound_is"]


def test_clipping_without_noise_is_called_no_guarantee() -> None:
    asked, mechanism = LocalPrivacy(noise=0.0, clip=1.0), Mechanism(0.0, "laplace", 1.0)
    report = privacy_report(asked, mechanism, np.array([1]), rows())
    assert report["local_guarantee"]["statement"].startswith("no guarantee")
    assert report["paper_epsilon"]["epsilon"]["worst"] is None


def test_both_figures_of_a_clipped_run() -> None:
    """The paper's epsilon is the aggregate's, one round: far below the uploads' own."""
    asked, mechanism = LocalPrivacy(noise=20.0, clip=1.0), Mechanism(20.0, "laplace", 1.0)
    report = privacy_report(asked, mechanism, np.array([2, 1, 1, 0]), rows())
    assert report["paper_epsilon"]["epsilon"]["worst"] == pytest.approx(2 * 0.5 * 1.0 / 20)
    rowwise = Mechanism(20.0, "laplace", 1.0, "row")
    by_row = privacy_report(asked, rowwise, np.array([2, 1, 1, 0]), rows())["paper_epsilon"]
    assert by_row["epsilon"]["worst"] == pytest.approx(2 * 0.5 * 10 * 2 / 20), "10 rows of L1 2"
    local = report["local_guarantee"]
    assert local["sensitivity"] == 2.0
    assert local["epsilon_at_delta_0"] == pytest.approx(2 * 2 / 20)
    assert local["epsilon"]["median"] < local["epsilon"]["worst"] <= local["epsilon_at_delta_0"]
    assert report["rounds"] == {"worst_client": 2, "median_client": 1}


def test_a_round_in_which_nobody_sends_does_not_count() -> None:
    asked, mechanism = (
        LocalPrivacy(noise=5.0, clip=1.0, norm="l2"),
        Mechanism(5.0, "gaussian", 1.0, "l2"),
    )
    silent = [{"ldp": rows()[0]["ldp"] | {"sent": 0, "shape": [10, 1, 0]}}]
    reports = [
        privacy_report(asked, mechanism, np.array([2, 1]), some)
        for some in (rows(), rows() + silent)
    ]
    assert reports[0]["local_guarantee"] == reports[1]["local_guarantee"]
    assert reports[0]["local_guarantee"]["epsilon_of_sum"] < math.inf


def test_only_rounds_in_which_a_client_sent_are_counted() -> None:
    cohorts = [np.array([0, 1]), np.array([1, 2]), np.array([0, 2])]
    sent = [{"ldp": {"sent": 2}}, {"ldp": {"sent": 1, "senders": [2]}}, {"ldp": {"sent": 0}}]
    assert compositions(cohorts, sent, 4).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({}, "either"),
        ({"noise": 1.0, "epsilon": 1.0, "clip": 1.0}, "either"),
        ({"noise": -1.0}, "noise"),
        ({"noise": math.nan}, "noise"),
        ({"epsilon": 1.0}, "clip"),
        ({"epsilon": 0.0, "clip": 1.0}, "epsilon"),
        ({"epsilon": 1.0, "clip": 1.0, "delta": 1.0}, "delta"),
        ({"epsilon": 1.0, "clip": 1.0, "norm": "l2", "kind": "laplace"}, "norm l1"),
        ({"noise": 1.0, "norm": "l3"}, "l3"),
        ({"noise": 1.0, "kind": "uniform"}, "uniform"),
    ],
)
def test_what_makes_no_sense_is_said(values: dict[str, Any], word: str) -> None:
    with pytest.raises(UnskewError, match=word):
        LocalPrivacy(**values)
