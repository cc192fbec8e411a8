"""Hostile nodes in the simulator: what they achieve, and that the rules bound it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import run_unskew
from unskew.audit.hostile import Attack
from unskew.audit.robustness import Threat, audit_robustness, robustness_table, threats
from unskew.data import demo
from unskew.engine.robust import Robust
from unskew.runs import RunSpec, run
from unskew.types import UnskewError


def test_rows_keep_out_a_promotion_that_works_without_a_defence() -> None:
    spec = RunSpec(method="fedmf", settings={"rounds": 3, "local_epochs": 2}, evaluate_every=3)
    cases: list[tuple[Attack, float, Robust]] = [
        ("none", 0.0, "none"),
        ("promote-adaptive", 0.05, "none"),
        ("promote-adaptive", 0.05, "rows"),
    ]
    rows = [audit_robustness(spec, Threat(*case), demo()) for case in cases]
    exposure = [row["last"]["exposure"] for row in rows]
    assert exposure[0] == 0
    assert exposure[1] > 0.5
    assert exposure[2] < 0.05
    assert [row["hostile_nodes"] for row in rows] == [0, 50, 50]
    first, *_ = robustness_table(rows).rows
    assert first[5].text == "100%"


def test_without_attackers_the_audit_trains_the_same_model() -> None:
    """The audit adds up the uploads itself; a run without it gives the same metrics."""
    spec = RunSpec(method="fedrefit", settings={"dim": 4, "rounds": 5}, evaluate_every=5)
    row = audit_robustness(spec, Threat(), demo())
    values = run(spec, demo()).outcomes[0].per_user["last", "all"]["ndcg@10"]
    assert row["last"]["test_ndcg@10"] == pytest.approx(float(np.mean(values)), abs=1e-12)


def test_the_command_prints_a_table_and_keeps_rows(tmp_path: Path) -> None:
    options = ("--method", "fedrefit", "--set", "dim=4", "--rounds", 5, "--rows", "rows.jsonl")
    threat = ("--hostile", "0.1", "--attack", "none,promote", "--defence", "median", "--nodes", 10)
    stdout, stderr = run_unskew("audit", "robustness", *options, *threat, cwd=tmp_path)
    assert "ER@10" in stdout
    assert "fedrefit, median, promote 10%, seed 0: round" in stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["attack"], row["hostile_nodes"]) for row in rows] == [("none", 0), ("promote", 1)]
    assert "--defence median --nodes 10" in rows[1]["command"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--method", "ease"), "sum"),
        (("--defence", "magic"), 'There is no defence "magic"'),
        (("--attack", "magic"), 'There is no attack "magic"'),
        (("--hostile", "some"), "--hostile"),
        (("--hostile", "0.9"), "hostile"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: Any, words: str, tmp_path: Path) -> None:
    _, stderr = run_unskew("audit", "robustness", *arguments, cwd=tmp_path, expect=2)
    assert words in stderr
    assert len(stderr.strip().splitlines()) == 1


def test_every_combination_is_measured_once() -> None:
    found = threats(["none", "promote"], [0.0, 0.05, 0.1], ["none", "rows"])
    assert [(t.defence, t.attack, t.hostile) for t in found] == [
        ("none", "none", 0.0),
        ("none", "promote", 0.05),
        ("none", "promote", 0.1),
        ("rows", "none", 0.0),
        ("rows", "promote", 0.05),
        ("rows", "promote", 0.1),
    ]
    with pytest.raises(UnskewError, match="magic"):
        threats(["magic"], [0.1], ["none"])
