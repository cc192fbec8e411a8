"""Sums, owners and means that a few hostile nodes cannot steer far, to the exact figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from unskew.deploy.messages import NodeSum, add_node
from unskew.deploy.robust import mean_metrics, robust_sum
from unskew.deploy.secure import quantisation_steps
from unskew.deploy.server import best_round
from unskew.kernels import empty_sum
from unskew.privacy import Shape

SHAPE = Shape(n_items=6, width=3, dense=2)


def node(value: Any, weight: float, *items: int) -> NodeSum:
    """A node whose mean update is ``value`` for its items and in the dense part."""
    total = np.array(value, np.float32) * np.float32(weight)
    rows = np.tile(total, (len(items), 1))
    return NodeSum(np.array(items, np.int32), rows, total[:2], weight)


def test_sums_of_nodes_add_up() -> None:
    first = add_node(empty_sum(*SHAPE), node((1.0, 2.0, 3.0), 2.0, 1, 4))
    total = add_node(first, node((1.0, 1.0, 1.0), 5.0, 4, 5)).result()
    assert total.rows[[0, 1, 4, 5]].tolist() == [[0] * 3, [2, 4, 6], [7, 9, 11], [5, 5, 5]]
    assert (total.dense.tolist(), total.weight, total.clients) == ([7.0, 9.0], 7.0, 2)


NODES = [
    node((3.0, 4.0, 0.0), 2.0, 1),
    node((0.0, 0.0, 30.0), 8.0, 1),
    node((6.0, 8.0, 0.0), 4.0, 1, 5),
    node((0.0, 1.0, 0.0), 16.0, 5),
]
"""Mean updates with a length of about 7, 30, 17 and 1.4; sums of 14, 240, 70 and 23."""


def test_clipping_shortens_mean_updates_to_the_lower_median_length() -> None:
    """Weights 2, 8, 4, 16 count as at most 4. Lengths: the lower of the middle two is 50**0.5."""
    total = robust_sum(NODES, SHAPE, "clip", trim=0.0)
    bound = np.sqrt(50.0)
    second, third = 4 * bound / 30, 4 * bound / np.sqrt(300.0)
    assert total.weight == 2 + 4 + 4 + 4
    expected = np.zeros((6, 3))
    expected[1] = [6 + 6 * third, 8 + 8 * third, 30 * second]
    expected[5] = [6 * third, 8 * third + 4, 0]
    np.testing.assert_allclose(total.rows, expected, rtol=1e-6)
    np.testing.assert_allclose(total.dense, [6 + 6 * third, 8 + 8 * third + 4], rtol=1e-6)


def test_clipping_depends_on_means_and_not_on_sums() -> None:
    """A large node whose mean update is as short as the others' is left as it is."""
    nodes = [node((1.0, 0.0, 0.0), weight, 2) for weight in (1.0, 3.0, 50.0)]
    total = robust_sum(nodes, SHAPE, "clip", 0.0, max_weight=100.0)
    np.testing.assert_allclose(total.rows[2], [54.0, 0, 0], rtol=1e-6)
    assert total.weight == 54.0


def test_the_median_of_nodes_is_taken_in_every_coordinate() -> None:
    """Of an even number of nodes, the mean of the two in the middle; a missing row is zero."""
    even = robust_sum(NODES, SHAPE, "median", 0.0)
    np.testing.assert_allclose(even.rows[1] / even.weight, [1.5, 2.0, 0.0])
    np.testing.assert_allclose(even.rows[5] / even.weight, [0.0, 0.5, 0.0])
    np.testing.assert_allclose(even.dense / even.weight, [1.5, 2.5])
    odd = robust_sum(NODES[:3], SHAPE, "median", 0.0)
    np.testing.assert_allclose(odd.rows[1] / odd.weight, [3.0, 4.0, 0.0])
    assert (even.weight, even.clients) == (14.0, 4)
    assert (odd.weight, odd.clients) == (2 + 4 + 4, 3)


def test_trimming_leaves_out_its_share_of_nodes_at_either_end() -> None:
    """One node at least: below 1 / trim nodes it would be a plain mean."""
    nodes = [node((value, 0.0, 0.0), 1.0, 3) for value in (0.0, 1.0, 4.0, 9.0, 100.0)]
    for trim, mean in ((0.0, 14 / 3), (0.19, 14 / 3), (0.2, 14 / 3), (0.4, 4.0)):
        total = robust_sum(nodes, SHAPE, "trimmed", trim)
        np.testing.assert_allclose(total.rows[3], [5 * mean, 0, 0], rtol=1e-6)


@pytest.mark.parametrize("how", ["clip", "median", "trimmed"])
def test_large_catalogues_are_summed_whole(how: Any) -> None:
    shape = Shape(n_items=9000, width=3, dense=2)
    items = [0, 4095, 4096, 8191, 8192, 8999]
    total = robust_sum([node((1.0, 2.0, 3.0), 2.0, *items)] * 3, shape, how, 0.0)
    expected = np.zeros((9000, 3))
    expected[items] = [6.0, 12.0, 18.0]
    np.testing.assert_allclose(total.rows, expected)


def test_nodes_without_weight_do_not_count_in_a_robust_sum() -> None:
    nobody = node((0.0, 0.0, 0.0), 0.0)
    for how in ("clip", "median", "trimmed"):
        total = robust_sum([*NODES, nobody, nobody], SHAPE, how, 0.25)  # type: ignore[arg-type]
        np.testing.assert_array_equal(total.rows, robust_sum(NODES, SHAPE, how, 0.25).rows)  # type: ignore[arg-type]
        assert robust_sum([nobody], SHAPE, how, 0.25).weight == 0  # type: ignore[arg-type]
    assert robust_sum([*NODES, nobody], SHAPE, "none", 0.0).clients == 5


def test_robust_sums_against_one_hostile_node_of_four() -> None:
    nodes = [
        node((1.0,) * 3, 10.0, 0, 2),
        node((1.2,) * 3, 20.0, 0, 2),
        node((0.8,) * 3, 10.0, 0, 2),
        node((-500.0,) * 3, 60.0, 0, 2),
    ]
    totals = {
        how: robust_sum(nodes, SHAPE, how, trim=0.25)
        for how in ("none", "clip", "median", "trimmed")
    }
    mean = {how: total.rows[0, 0] / total.weight for how, total in totals.items()}
    assert mean["none"] < -200
    assert mean["median"] == pytest.approx(0.9)
    assert mean["trimmed"] == pytest.approx(0.9)
    assert abs(mean["clip"]) < 1.2
    total = totals["median"]
    assert total.weight == 40.0  # nobody counts for more than the median node's 10
    assert total.dense[0] == pytest.approx(36.0)
    assert not total.rows[1].any()


def test_one_hostile_node_of_three_is_trimmed_away() -> None:
    nodes = [node((value, 0.0, 0.0), 1.0, 3) for value in (1.0, 1.2, 1e4)]
    assert robust_sum(nodes, SHAPE, "trimmed", 0.2).rows[3, 0] == pytest.approx(3 * 1.2)


def test_a_rule_that_cannot_work_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    two = [node((value, 0.0, 0.0), 1.0, 3) for value in (1.0, 2.0)]
    robust_sum(two, SHAPE, "trimmed", 0.2)
    assert "a plain mean of only 2 nodes" in caplog.text
    caplog.clear()
    apart = [node((1.0, 0.0, 0.0), 1.0, item) for item in range(6)]
    assert not robust_sum(apart, SHAPE, "median", 0.2).rows.any()
    assert "removes 100 % of the item rows" in caplog.text
    caplog.clear()
    assert robust_sum(apart, SHAPE, "rows", 0.2).rows[:, 0].tolist() == [1.0] * 6
    robust_sum([node((1.0, 0.0, 0.0), 1.0, 3)] * 3, SHAPE, "median", 0.2)
    assert not caplog.text


def test_rows_bound_what_a_node_puts_into_one_row() -> None:
    """Nineteen nodes change many rows a little, one puts a huge change into a single row."""
    shape, random = Shape(50, 3, 0), np.random.default_rng(0)

    def one(values: Any, items: Any) -> NodeSum:
        rows = np.asarray(values, np.float32)
        return NodeSum(np.asarray(items, np.int32), rows, np.zeros(0, np.float32), 1.0)

    honest = [
        one(random.normal(0, 0.1, (30, 3)), np.sort(random.permutation(50)[:30])) for _ in range(19)
    ]
    hostile = one([[1e3, 0.0, 0.0]], [7])
    change = {
        how: robust_sum([*honest, hostile], shape, how, 0.2).rows  # type: ignore[arg-type]
        - robust_sum(honest, shape, how, 0.2).rows  # type: ignore[arg-type]
        for how in ("clip", "rows")
    }
    assert np.abs(change["rows"][7]).max() < 0.4
    assert np.abs(change["clip"][7]).max() > 2 * np.abs(change["rows"][7]).max()
    kept = robust_sum(honest, shape, "rows", 0.2).rows - robust_sum(honest, shape, "none", 0.2).rows
    assert np.linalg.norm(kept) < 0.3 * np.linalg.norm(robust_sum(honest, shape, "none", 0.2).rows)


@pytest.mark.parametrize("how", ["rows", "clip", "median", "trimmed"])
def test_a_huge_claim_of_weight_buys_no_influence(how: Any) -> None:
    """An update no longer than the others', but of a trillion users: one node in four, not all."""
    honest = [
        node((1.0,) * 3, 10.0, 0, 2),
        node((1.0,) * 3, 20.0, 0, 2),
        node((1.0,) * 3, 10.0, 0, 2),
    ]
    total = robust_sum([*honest, node((-1.0,) * 3, 1e12, 0, 2)], SHAPE, how, trim=0.25)
    assert total.weight == 40.0
    assert total.rows[0, 0] / total.weight >= 0.5
    bounded = robust_sum(
        [*honest, node((-1.0,) * 3, 60.0, 0, 2)], SHAPE, how, 0.25, max_weight=60.0
    )
    assert bounded.weight == 100.0


def test_the_sum_of_one_node_is_that_node_whatever_protects_it() -> None:
    for how in ("none", "clip", "median", "trimmed"):
        np.testing.assert_allclose(
            robust_sum([node((3.0,) * 3, 2.0, 0, 2)], SHAPE, how, 0.2).rows[2], 6.0
        )


def test_metrics_are_means_over_all_users_heard() -> None:
    """Nodes are heard from the smallest claim to the largest, while there are users left."""
    hit, ndcg = "test.hr@10", "validation.ndcg@10"
    answers = {
        4: {hit: (1.0, 2), ndcg: (0.5, 1)},
        5: {hit: (3.0, 4)},
        6: {hit: (0.0, 0)},
        7: {hit: (4.0, 4)},
    }
    assert mean_metrics(answers, 6) == ({hit: 4 / 6, ndcg: 0.5}, [7])
    assert mean_metrics(answers, 10) == ({hit: 8 / 10, ndcg: 0.5}, [])
    assert mean_metrics(answers, 5) == ({hit: 1 / 2, ndcg: 0.5}, [5, 7])
    assert mean_metrics({}, 5) == ({}, [])
    silent = answers | {8: {}}
    assert mean_metrics(silent, 10) == ({hit: 8 / 10, ndcg: 0.5}, []), "no figures, no harm"


def test_masked_entries_of_all_nodes_fit_into_32_bits() -> None:
    """The largest power of two of which one per node still fits into 2**31."""
    for n_nodes in (2, 3, 4, 5, 8, 9, 1000, 1025):
        steps = quantisation_steps(n_nodes)
        assert n_nodes * steps <= 2**31 < 2 * n_nodes * steps
    assert quantisation_steps(1) == 2**30


def test_the_best_round_of_a_deployment_is_the_first_of_equals() -> None:
    figures = {1: None, 2: 0.3, 3: 0.4, 4: None, 5: 0.4, 6: 0.1}
    rows = [
        {"round": round} | ({} if ndcg is None else {"metrics": {"validation.ndcg@10": ndcg}})
        for round, ndcg in figures.items()
    ]
    assert best_round(rows) == 3
    assert best_round(rows[:2]) == 2
    assert best_round([{"round": 1}, {"round": 2, "metrics": {"test.ndcg@10": 0.5}}]) == 0
