"""What a run-config may say, the shape of uploads, and the data of nodes."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import Twin, run_config, task_of

from unskew.data import load
from unskew.deploy.node_data import (
    divide_users,
    read_node_data,
    renumber,
    write_catalogue,
    write_node_data,
)
from unskew.deploy.task import Task, read_run_config, write_app
from unskew.evaluation import prepare
from unskew.methods import METHODS
from unskew.types import Split, UnskewError

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
        ({"robust": "median", "min-nodes": 2}, "leaves no node out among 2"),
        ({"robust": "trimmed", "min-nodes": 4}, "leaves no node out among 4.* at least 5 nodes"),
        ({"robust": "median", "min-nodes": 900}, "each node has one user"),
        ({"rounds": 3}, 'The run-config has no setting "rounds"; it has .* min-nodes'),
        ({"seed": "zero"}, "seed = zero"),
        ({"users": 0}, "users = 0 .* at least 1"),
        ({"secure": True, "min-nodes": 3}, "max-weight"),
        ({"secure": True, "max-weight": 9.0, "min-nodes": 2}, "min-nodes"),
        (
            {"secure": True, "max-weight": 9.0, "min-nodes": 3, "robust": "clip"},
            "neither with secure",
        ),
        ({"max-weight": float("nan")}, "max-weight = nan .* finite number of at least 0"),
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


def test_any_text_stands_in_the_app_as_it_was_given(tmp_path: Path) -> None:
    state = 'é🎬 "quoted" back\\slash \x7f \u2028'
    write_app(tmp_path, {"users": 9, "items": 7, "state": state})
    text = (tmp_path / "pyproject.toml").read_text(encoding="utf-8")
    config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    assert read_run_config(config).state == state


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
    assert own.period == tiny_split.period, "the catalogue's, not the node's own"
    assert own.train_timestamps is not None
    assert own.train_timestamps.tolist() == [0, 1, 2, 3]
    assert own.test.items.tolist() == [21]
    assert (own.validation.items.tolist(), lost) == ([], 1)  # "new" was the validation item
    write_node_data(tmp_path / "data", node)
    back = read_node_data(tmp_path / "data")
    assert back.users.tolist() == [12]
    assert list(back.split.user_ids) == ["me"]
    np.testing.assert_array_equal(back.split.train.items, own.train.items)
    assert back.split.period == own.period
    np.testing.assert_array_equal(back.split.train_ages, own.train_ages)


def test_more_nodes_than_users_is_one_sentence() -> None:
    with pytest.raises(UnskewError, match="cannot be shared"):
        divide_users(2, 3)
