"""Private runs end to end: recorded, resumed to the same bits, accounted for in words and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import run_unskew
from unskew.engine import Federation
from unskew.methods import create
from unskew.privacy import LocalPrivacy
from unskew.runs import RunSpec, noise_mechanism, private_uploads, run
from unskew.types import Cohort, Interactions, Split, UnskewError, Upload

pytest.importorskip("dp_accounting")
SMALL = {"rounds": 4, "local_epochs": 1, "dim": 4}
BUDGET = LocalPrivacy(epsilon=8.0, clip=1.0, norm="l2")


class Stopped(Exception):
    pass


def test_a_stopped_private_run_goes_on_to_the_same_model_and_account(
    demo_data: Interactions, tmp_path: Path
) -> None:
    spec = RunSpec("fedmf", SMALL, "demo", ldp=BUDGET)
    whole = run(spec, demo_data).summary()

    def stop(_seed: int, row: dict[str, Any], _rounds: int) -> None:
        if row["round"] == 2:
            raise Stopped

    with pytest.raises(Stopped):
        run(spec, demo_data, out=tmp_path / "run", on_round=stop)
    resumed = run(spec, demo_data, out=tmp_path / "run", resume=True).summary()
    assert resumed["model_sha256"] == whole["model_sha256"]
    assert resumed["privacy"] == whole["privacy"]
    saved = json.loads((tmp_path / "run" / "result.json").read_text())
    assert saved["privacy"] == whole["privacy"]
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert RunSpec.from_mapping(header["spec"]) == spec


def test_a_budget_covers_the_worst_client_of_the_run(demo_data: Interactions) -> None:
    account = run(RunSpec("fedmf", SMALL, "demo", ldp=BUDGET), demo_data).summary()["privacy"]
    epsilon = account["local_guarantee"]["epsilon"]
    assert 7.9 < epsilon["worst"] <= 8.0
    assert epsilon["one_round"] < epsilon["median"] < epsilon["worst"]
    assert account["rounds"]["worst_client"] == 4
    assert account["paper_epsilon"]["epsilon"]["worst"] < 0.1 * epsilon["one_round"]


def test_a_run_without_noise_has_no_account(demo_data: Interactions) -> None:
    assert (
        "privacy" not in run(RunSpec("fedmf", SMALL | {"rounds": 1}, "demo"), demo_data).summary()
    )


def test_central_methods_refuse_noise() -> None:
    with pytest.raises(UnskewError, match="not federated"):
        RunSpec("ease", ldp=LocalPrivacy(noise=0.5))


def test_the_command_prints_both_figures_apart(tmp_path: Path) -> None:
    arguments = ("run", "--method", "fedmf", "--rounds", 2, "--set", "local_epochs=1")
    stdout, _ = run_unskew(*arguments, "--ldp-noise", 0.5, "--out", "a", cwd=tmp_path)
    assert "Paper's epsilon" in stdout
    assert "no guarantee" in stdout
    budget = ("--ldp-epsilon", 8, "--ldp-delta", 1e-6, "--ldp-clip", 2, "--ldp-norm", "l1")
    stdout, _ = run_unskew(*arguments, *budget, "--out", "b", cwd=tmp_path)
    assert "(8, 1e-06)-local differential privacy" in stdout
    assert "laplace" in stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ldp-epsilon", 8), "clip"),
        (("--ldp-noise", 1, "--ldp-epsilon", 8, "--ldp-clip", 1), "either"),
        (("--ldp-clip", 1), "either"),
        (("--method", "ease", "--ldp-noise", 1), "not federated"),
    ],
)
def test_bad_options_get_one_sentence(options: tuple[Any, ...], words: str, tmp_path: Path) -> None:
    _, stderr = run_unskew("run", "--rounds", 1, *options, cwd=tmp_path, expect=2)
    assert words in stderr
    assert len(stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing was started"


def test_rows_of_rare_items_stay_home(tiny_split: Split) -> None:
    users = np.bincount(tiny_split.seen.items, minlength=tiny_split.n_items)
    least = int(np.median(users)) + 1
    spec = RunSpec("fedmf", ldp=LocalPrivacy(noise=0.0, least_users=least))
    device = private_uploads(spec, tiny_split, noise_mechanism(spec, tiny_split))
    seen: list[Upload] = []

    def look(upload: Upload, cohort: Cohort) -> Upload:
        assert device is not None
        seen.extend([upload, device(upload, cohort)])
        return seen[-1]

    federation = Federation(create("fedmf", rounds=1), tiny_split, 0, transform=look)
    federation.step(federation.start())
    for made, sent in zip(seen[::2], seen[1::2], strict=True):
        common = users[made.rows.items] >= least
        assert 0 < common.sum() < len(common)
        np.testing.assert_array_equal(sent.rows.items, made.rows.items[common])
        np.testing.assert_array_equal(sent.rows.values, made.rows.values[common])
        assert len(sent.rows.indptr) == len(made.rows.indptr)
    with pytest.raises(UnskewError, match="least_users = 0 must be"):
        LocalPrivacy(noise=0.0, least_users=0)
