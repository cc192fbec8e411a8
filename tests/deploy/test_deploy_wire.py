"""What the server takes in and what it does not; sums that hostile nodes cannot steer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import Twin, run_config, task_of

from unskew.data import load
from unskew.deploy.messages import Limits, NodeSum, Rejected, read_sum
from unskew.deploy.node_data import (
    divide_users,
    read_node_data,
    renumber,
    write_catalogue,
    write_node_data,
)
from unskew.deploy.robust import robust_sum
from unskew.deploy.task import Task, read_run_config
from unskew.evaluation import prepare
from unskew.methods import METHODS
from unskew.privacy import Shape
from unskew.types import Split, UnskewError

LIMITS = Limits(norm=1e4, weight=1e6)


def _sum_upload() -> dict[str, np.ndarray[Any, Any]]:
    return {
        "items": np.array([1, 4], np.int32),
        "values": np.ones((2, 3), np.float32),
        "dense": np.ones(2, np.float32),
        "weight": np.array([8.0]),
    }


def _with(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda named: {**named, name: value}


SHAPE = Shape(n_items=6, width=3, dense=2)
SPOILED = {
    "instead of dense, items, values, weight": lambda n: {k: n[k] for k in ("items", "values")},
    "it holds dense, items, p, values, weight": _with("p", np.ones(3, np.float32)),
    "values is float64 instead of float32": _with("values", np.ones((2, 3))),
    "values has shape": _with("values", np.ones((2, 4), np.float32)),
    "dense has shape": _with("dense", np.ones((2, 2), np.float32)),
    "weight has shape": _with("weight", np.array(8.0)),
    "outside 0 to 5": _with("items", np.array([1, 6], np.int32)),
    "outside 0 to 5 ": _with("items", np.array([-1, 4], np.int32)),
    "ascending": _with("items", np.array([4, 4], np.int32)),
    "values holds NaN": _with("values", np.full((2, 3), np.nan, np.float32)),
    "dense holds NaN or infinity": _with("dense", np.full(2, np.inf, np.float32)),
    "weight holds NaN": _with("weight", np.array([np.nan])),
    "negative": _with("weight", np.array([-1.0])),
    "values but no weight": _with("weight", np.array([0.0])),
    "its weight 2e+06 is above 1e+06": _with("weight", np.array([2e6])),
    "its norm": _with("values", np.full((2, 3), 1e6, np.float32)),
}


@pytest.mark.parametrize("reason", SPOILED)
def test_a_wrong_sum_is_rejected_with_its_reason(reason: str) -> None:
    assert read_sum(_sum_upload(), SHAPE, LIMITS).weight == 8.0
    with pytest.raises(Rejected, match=reason.strip().replace("+", r"\+")):
        read_sum(SPOILED[reason](_sum_upload()), SHAPE, LIMITS)


FEDERATED = [name for name, kind in METHODS.items() if kind.aggregation != "central"]


@pytest.mark.parametrize("name", FEDERATED)
def test_the_shape_is_what_the_method_itself_sends(
    tmp_path: Path, tiny_split: Split, name: str
) -> None:
    """In every one of its first rounds: a method may send something else as it goes on."""
    rounds = min(METHODS[name]().config.rounds, 8)
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, name, f"rounds={rounds}"), 2)
    for round in range(1, rounds + 1):
        twin.play(round, [0, 1])  # reads every upload against the shape


def _node(value: float, weight: float) -> NodeSum:
    items = np.array([0, 2], np.int32)
    values = np.full((2, 3), value * weight, np.float32)
    return NodeSum(items, values, np.full(2, value * weight, np.float32), weight)


def test_robust_sums_against_one_hostile_node_of_four() -> None:
    nodes = [_node(1.0, 10.0), _node(1.2, 20.0), _node(0.8, 10.0), _node(-500.0, 60.0)]
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


@pytest.mark.parametrize("how", ["clip", "median", "trimmed"])
def test_a_huge_claim_of_weight_buys_no_influence(how: Any) -> None:
    """An update no longer than the others', but of a trillion users: one node in four, not all."""
    honest = [_node(1.0, 10.0), _node(1.0, 20.0), _node(1.0, 10.0)]
    total = robust_sum([*honest, _node(-1.0, 1e12)], SHAPE, how, trim=0.25)
    assert total.weight == 40.0
    assert total.rows[0, 0] / total.weight >= 0.5
    bounded = robust_sum([*honest, _node(-1.0, 60.0)], SHAPE, how, 0.25, max_weight=60.0)
    assert bounded.weight == 100.0


def test_the_sum_of_one_node_is_that_node_whatever_protects_it() -> None:
    for how in ("none", "clip", "median", "trimmed"):
        np.testing.assert_allclose(robust_sum([_node(3.0, 2.0)], SHAPE, how, 0.2).rows[2], 6.0)


@pytest.mark.parametrize("method", ["gpfedrec", "pfedgraph"])
def test_methods_that_need_single_uploads_refuse_secure_aggregation_by_name(
    method: str, tmp_path: Path, tiny_split: Split
) -> None:
    secure = {"secure": True, "max_weight": 1e3, "min_nodes": 3}
    config = run_config(task_of(tiny_split, method), tmp_path, **secure)
    with pytest.raises(UnskewError, match=f"{method} needs every upload by itself"):
        read_run_config(config)
    read_run_config(config | {"method": "pfedclr"})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": "ease", "settings": ""}, "ease is not federated"),
        ({"method": "nothing"}, "There is no method"),
        ({"settings": "dim"}, "dim = "),
        ({"robust": "magic"}, "robust = "),
        ({"rounds": 3}, 'The run-config has no setting "rounds"; it has .* min-nodes'),
        ({"seed": "zero"}, "seed = zero"),
        ({"users": 0}, "users = 0 .* at least 1"),
        ({"secure": True, "min-nodes": 3}, "max-weight"),
        ({"secure": True, "max-weight": 9.0, "min-nodes": 2}, "min-nodes"),
        (
            {"secure": True, "max-weight": 9.0, "min-nodes": 3, "robust": "clip"},
            "neither with secure",
        ),
        ({"max-weight": float("nan")}, "max-weight = nan .* finite and at least 0"),
        ({"max-norm": float("inf")}, "max-norm = inf"),
        ({"round-timeout": -5.0}, "round-timeout = -5.0 .* above 0"),
        ({"round-timeout": 0.0}, "round-timeout = 0.0 .* above 0"),
        ({"wait-for-nodes": -1.0}, "wait-for-nodes = -1.0"),
        ({"min-nodes": -1}, "min-nodes = -1 .* at least 1"),
        ({"seed": -1}, "seed = -1 .* at least 0"),
        ({"evaluate-every": -2}, "evaluate-every = -2 .* at least -1"),
        ({"secure": "perhaps"}, "secure = perhaps must be true or false"),
    ],
)
def test_a_wrong_run_config_is_one_sentence(
    change: dict[str, Any], sentence: str, tmp_path: Path, tiny_split: Split
) -> None:
    config = run_config(task_of(tiny_split, "pfedclr"), tmp_path)
    with pytest.raises(UnskewError, match=sentence):
        read_run_config(config | change)


def test_a_run_config_as_typed() -> None:
    size = {"users": "9", "items": "7", "max-weight": "5", "min-nodes": "3"}
    typed = read_run_config({"seed": "3", "secure": "True", "method": "fedmf", **size})
    assert typed.task == Task("fedmf", "", 3, 9, 7)
    assert (typed.secure, typed.max_weight, typed.min_nodes) == (True, 5.0, 3)
    assert read_run_config({**size, "secure": "false"}).secure is False


def test_a_devices_own_file_takes_the_catalogues_numbers(tmp_path: Path, tiny_split: Split) -> None:
    write_catalogue(tmp_path / "catalogue.json", tiny_split)
    labels = tiny_split.item_ids
    wanted = [labels[i] for i in (17, 3, 40, 8, 21)]
    rows = "".join(f"me,{label},{time}\n" for time, label in enumerate([*wanted[:4], "new"]))
    rows += f"me,{wanted[4]},9\n"
    (tmp_path / "mine.csv").write_text("user,item,timestamp\n" + rows)
    split = prepare(load(tmp_path / "mine.csv"))
    node, lost = renumber(split, tmp_path / "catalogue.json", 12)
    own = node.split
    assert own.n_items == tiny_split.n_items
    assert own.seen.items.tolist() == [3, 8, 17, 40]
    assert own.test.items.tolist() == [21]
    assert (own.validation.items.tolist(), lost) == ([], 1)  # "new" was the validation item
    write_node_data(tmp_path / "data", node)
    back = read_node_data(tmp_path / "data")
    assert back.users.tolist() == [12]
    assert list(back.split.user_ids) == ["me"]
    np.testing.assert_array_equal(back.split.train.items, own.train.items)


def test_more_nodes_than_users_is_one_sentence() -> None:
    with pytest.raises(UnskewError, match="cannot be shared"):
        divide_users(2, 3)
