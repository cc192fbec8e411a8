"""The skew's formulas against finite differences and PyTorch; the measurement on a small run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import cut_down
from unskew.audit import skew_formulas as formulas
from unskew.audit.skew import VARIANTS, SkewSpec, audit_skew, findings, skew_table
from unskew.audit.skew_formulas import Bounds, BoundTerms, Feedback
from unskew.display import to_markdown
from unskew.types import Float64, Interactions, UnskewError

LINKS = ("logistic", "identity")


@pytest.fixture(scope="module")
def client() -> tuple[Float64, Float64, Float64]:
    """A vector, its own items, and a direction in which they move."""
    random = np.random.default_rng(7)
    return random.normal(size=5), random.normal(size=(12, 5)), random.normal(size=(12, 5))


def feedback(link: Any) -> Feedback:
    """Twelve items: some drawn several times as negatives, one both positive and repeated."""
    label = np.array([1.0] * 4 + [0.0] * 8)
    count = np.array([1.0, 1, 2, 1, 1, 3, 1, 1, 2, 1, 1, 1])
    return Feedback(count, label, link)


def loss(p: Float64, Q: Float64, data: Feedback) -> float:
    """Eq. 2 summed over samples; half the squared error for the identity."""
    x = Q @ p
    if data.link == "identity":
        return float(data.samples @ x**2 / 2 - data.label @ x)
    return float(data.samples @ np.log1p(np.exp(x)) - data.label @ x)


@pytest.mark.parametrize("link", LINKS)
def test_the_gradient_is_that_of_the_loss(client: Any, link: str) -> None:
    p, Q, _ = client
    data, step = feedback(link), 1e-6
    differences = [
        (loss(p + step * e, Q, data) - loss(p - step * e, Q, data)) / (2 * step) for e in np.eye(5)
    ]
    np.testing.assert_allclose(formulas.gradient(p, Q, data), differences, atol=1e-7)


@pytest.mark.parametrize("link", LINKS)
def test_the_first_order_skew_is_the_derivative_of_the_gradient(client: Any, link: str) -> None:
    p, Q, direction = client
    data, step = feedback(link), 1e-6
    up, down = (formulas.gradient(p, Q + s * direction, data) for s in (step, -step))
    total = np.add(*formulas.first_order_skew(p, Q, Q + direction, data))
    np.testing.assert_allclose(total, (up - down) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("link", LINKS)
def test_what_the_first_order_formula_misses_shrinks_with_the_square(
    client: Any, link: str
) -> None:
    p, Q, direction = client
    data, missed = feedback(link), []
    for step in (1e-2, 1e-3):
        there = Q + step * direction
        true = formulas.gradient(p, there, data) - formulas.gradient(p, Q, data)
        scaling, shift = formulas.first_order_skew(p, Q, there, data)
        missed.append(formulas.norm(true - scaling - shift))
    assert missed[0] / missed[1] == pytest.approx(100, rel=0.1)


def test_the_calibration_is_what_the_buffers_first_step_does(client: Any) -> None:
    p, Q, _ = client
    data, rate = feedback("logistic"), 1e-6
    W = -rate * np.outer(formulas.slopes(p, Q, data)[0], p)  # Eq. 31 to first order
    change = formulas.gradient(p, Q + W, data) - formulas.gradient(p, Q, data)
    scaling, shift = formulas.calibration(p, Q, data, rate)
    np.testing.assert_allclose(scaling + shift, change, rtol=1e-4)
    assert formulas.cosine(shift, p) == pytest.approx(-1), "whatever the skew may be"


def test_autograd_agrees_with_every_formula(client: Any) -> None:
    torch = pytest.importorskip("torch")
    p, Q, direction = client
    data, rate = feedback("logistic"), 0.01

    def torch_loss(vector: Any, items: Any) -> Any:
        x = items @ vector
        count, label = torch.tensor(data.samples), torch.tensor(data.label)
        return (count * torch.nn.functional.softplus(x) - label * x).sum()

    vector = torch.tensor(p, requires_grad=True)
    items = torch.tensor(Q, requires_grad=True)
    by_vector, by_items = torch.autograd.grad(torch_loss(vector, items), (vector, items))
    np.testing.assert_allclose(formulas.gradient(p, Q, data), by_vector, rtol=1e-10)
    np.testing.assert_allclose(
        np.outer(formulas.slopes(p, Q, data)[0], p), by_items.numpy(), rtol=1e-10
    )

    def gradient_at(rows: Any) -> Any:
        return torch.autograd.functional.jacobian(
            lambda v: torch_loss(v, rows), vector, create_graph=True
        )

    for towards, formula in (
        (torch.tensor(direction), formulas.first_order_skew(p, Q, Q + direction, data)),
        (-rate * by_items, formulas.calibration(p, Q, data, rate)),
    ):
        _, derivative = torch.autograd.functional.jvp(gradient_at, items, towards)
        np.testing.assert_allclose(np.add(*formula), derivative.detach(), rtol=1e-9)


def terms(items: list[int], delta: list[float], turn: list[float]) -> BoundTerms:
    bounds = Bounds(0.5, 0.25, 0.5)
    samples = np.ones(len(items))
    return BoundTerms(np.array(items, np.int32), samples, np.array(delta), np.array(turn), bounds)


def test_the_bound_is_the_sum_of_a_geometric_series() -> None:
    first = terms([3, 5], [2.0, 0.0], [1.0, 3.0])
    start = 0.1 * (0.5 * 2 + 0.25 * 4)
    for gamma in (0.5, 1.0, 2.0):
        wanted = start * (1 + gamma + gamma**2)
        got = formulas.accumulated_bound(0.1, first.bounds, first, gamma, 3)
        assert got == pytest.approx(wanted)
    endless = formulas.accumulated_bound(0.1, first.bounds, first, 0.5)
    assert endless == pytest.approx(2 * start)
    assert math.isinf(formulas.accumulated_bound(0.1, first.bounds, first, 1.0))


def test_the_printed_constant_does_not_bound_positives() -> None:
    data = Feedback(np.ones(2), np.ones(2))
    items, Q = np.arange(2, dtype=np.int32), np.array([[0.0], [1.0]])
    found = formulas.bound_terms(items, np.ones(1), Q, Q - 2.0, data)
    assert found.bounds.c1 == pytest.approx(0.5)
    assert found.bounds.printed < 0
    assert found.bounds.c2 == pytest.approx(0.25)
    np.testing.assert_allclose(found.delta, [2, 2])
    np.testing.assert_allclose(found.turn, [0, 2])


def test_items_that_did_not_move_have_no_growth() -> None:
    before = terms([1, 4, 5, 6], [1.0, 9.0, 0.0, 2.0], [0.0] * 4)
    after = terms([1, 5, 6, 7], [3.0, 1.0, 1.0, 9.0], [0.0] * 4)
    np.testing.assert_allclose(formulas.growth(before, after), [3, 0.5])


@pytest.fixture(scope="module")
def tiny(demo_data: Interactions) -> Interactions:
    return cut_down(demo_data, 60, 60)


@pytest.fixture(scope="module")
def audits(tiny: Interactions) -> dict[str, dict[str, Any]]:
    trained = {"local_epochs": 2, "participation": 1.0}
    settings = {name: {"dim": 8} if name == "fedrefit" else trained for name in VARIANTS}
    return {
        name: audit_skew(SkewSpec(name, rounds=3, settings=settings[name]), tiny)
        for name in VARIANTS
    }


def test_every_figure_is_finite(audits: dict[str, dict[str, Any]]) -> None:
    for name, row in audits.items():
        assert row["clients"] > 20
        assert [line["round"] for line in row["by_round"]] == [1, 2, 3]
        assert "NaN" not in json.dumps(row), name
        assert "Infinity" not in json.dumps(row), name
        assert all(line["skew"] > 0 for line in row["by_round"])


def test_without_a_buffer_the_whole_skew_is_left(audits: dict[str, dict[str, Any]]) -> None:
    for name in ("fedmf", "af"):
        assert audits[name]["median"]["left"] == pytest.approx(1)
        assert audits[name]["median"]["calibration"] is None
    assert audits["fedmf"]["median"]["skew"] == audits["af"]["median"]["skew"]
    for name in ("cf", "clr"):
        assert audits[name]["median"]["left"] != pytest.approx(1, abs=1e-3)
        assert audits[name]["opposed"] is not None


def test_a_vector_that_is_solved_for_has_no_skew(audits: dict[str, dict[str, Any]]) -> None:
    row = audits["fedrefit"]
    for line in row["by_round"]:
        assert line["off_optimum"] < 1e-6
        assert line["left"] < 1e-5
        assert line["skew_of_pull"] > 0.01, "the items did move"
    assert row["median"]["accumulated_left"] < 1e-6
    assert audits["fedmf"]["median"]["off_optimum"] > 1e-3


def test_the_step_by_step_bound_holds(audits: dict[str, dict[str, Any]]) -> None:
    for name in ("fedmf", "af", "cf", "clr"):
        lemma = audits[name]["lemma"]
        assert 0 < lemma["of_stepwise_bound"] <= 1
        assert lemma["c2"] <= 0.25


def test_the_words_say_where_an_assumption_fails(audits: dict[str, dict[str, Any]]) -> None:
    table = to_markdown(skew_table(list(audits.values()))).splitlines()
    assert len(table) == 2 + len(VARIANTS)
    assert len({line.count("|") for line in table}) == 1
    words = " ".join(findings(audits["clr"]))
    lemma = audits["clr"]["lemma"]
    assert ("DOES NOT HOLD" in words) == (
        lemma["clients_with_gamma_below_1"] < lemma["clients"] or lemma["beyond_first"] > 0
    )
    assert "calibration's sign" in words
    assert "solved for again" in " ".join(findings(audits["fedrefit"]))


@pytest.mark.slow
def test_the_command_keeps_rows_and_a_line_per_round_and_client(tmp_path: Path) -> None:
    files = ("--rows", "rows.jsonl", "--each", "each.jsonl", "--json")
    few = ("--methods", "cf", "--rounds", "2", "--clients", "6", "--set", "local_epochs=1")
    done = subprocess.run(
        [sys.executable, "-m", "unskew", "audit", "skew", *few, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "cf: round 2" in done.stderr
    (row,) = json.loads(done.stdout)["audits"]
    assert json.loads((tmp_path / "rows.jsonl").read_text()) == row
    each = [json.loads(line) for line in (tmp_path / "each.jsonl").read_text().splitlines()]
    assert len(each) == row["client_rounds"] > 0
    assert {line["round"] for line in each} <= {1, 2}
    middle = sorted(line["skew"] for line in each)
    assert middle[0] <= row["median"]["skew"] <= middle[-1]


def test_an_unknown_variant_is_named(tiny: Interactions) -> None:
    with pytest.raises(UnskewError, match="ease"):
        audit_skew(SkewSpec("ease"), tiny)
