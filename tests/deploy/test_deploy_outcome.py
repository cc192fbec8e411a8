"""What a device has in the end: the round that validation chose, and an account of its privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import EVERYONE, Twin, simulated, task_of

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from deploy_grid import federation
from flwr.app import Context, RecordDict

from unskew.deploy.account import privacy_guarantee
from unskew.deploy.device import Device
from unskew.deploy.server import Coordinator, best_round, read_rows
from unskew.privacy import Mechanism, Shape, local_epsilon, sensitivity
from unskew.types import Split

REFIT = "dim=8 space_rounds=2 rounds=6"


def _mean(folder: Path, part: str, best: bool) -> float:
    devices = [Device.open(folder / f"state-{node}", best=best) for node in (1, 2, 3)]
    sums = [device.metric_sums(part)["ndcg@10"] for device in devices]
    return sum(total for total, _ in sums) / sum(count for _, count in sums)


@pytest.mark.parametrize(("method", "settings"), [("fedrefit", REFIT), ("pfedclr", EVERYONE)])
def test_devices_end_with_the_round_that_validation_chose(
    tmp_path: Path, small_split: Split, method: str, settings: str
) -> None:
    task = task_of(small_split, method, settings)
    Coordinator(*federation(tmp_path, small_split, task, evaluate_every=1)).run()
    state = simulated(task, small_split, task.build().config.rounds)
    rows = read_rows(tmp_path / "server")
    assert best_round(rows) == state.best_round
    for part in ("validation", "test"):
        expected = state.best_scoreboard.means(part)["ndcg@10"]  # type: ignore[arg-type]
        assert _mean(tmp_path, part, best=True) == pytest.approx(expected, abs=1e-9)
        last = rows[-1]["metrics"][f"{part}.ndcg@10"]
        assert _mean(tmp_path, part, best=False) == pytest.approx(last, abs=1e-9)
    if method == "fedrefit":  # or the test would not see a difference
        assert 0 < state.best_round < len(rows)


def test_without_evaluations_the_last_round_is_used(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedrefit", REFIT)
    Coordinator(*federation(tmp_path, tiny_split, task, evaluate_every=-1)).run()
    assert not (tmp_path / "state-1" / "best.safetensors").exists()
    assert Device.open(tmp_path / "state-1", best=True).progress.round == 6


def test_a_device_keeps_its_state_as_of_the_round_it_is_told(
    tmp_path: Path, tiny_split: Split
) -> None:
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "pfedclr", EVERYONE), 1)
    assert not twin.device(0).keep_as_best(4)  # it has not trained: nothing worth keeping
    states = {}
    for round in (1, 2, 3):
        twin.play(round, [0])
        device = twin.device(0)
        device.keep_as_best({1: 1, 2: 2, 3: 2}[round])
        states[round] = device.devices.arrays()
    kept = Device.open(tmp_path / "state-1", best=True)
    assert (kept.progress.round, len(kept.progress.due)) == (2, 0)
    for name, array in kept.devices.arrays().items():
        np.testing.assert_array_equal(array, states[2][name], err_msg=name)
    twin.device(0).keep_as_best(7)  # it missed the rounds from 4 to 7: its state then was this one
    assert Device.open(tmp_path / "state-1", best=True).progress.round == 3


def test_nodes_of_a_stateless_method_hold_the_round_that_they_are_told(
    tmp_path: Path, tiny_split: Split
) -> None:
    """The last download without evaluations; the best round's state, also after missed messages."""
    settings = "rounds=10 dim=8 base_dim=4 window=9 negatives=12 participation=0.5"
    task = task_of(tiny_split, "fednext", settings)
    Coordinator(*federation(tmp_path / "all", tiny_split, task, evaluate_every=-1)).run()
    device = Device.open(tmp_path / "all" / "state-1", best=True)
    assert set(device.devices.version.tolist()) == {10}
    assert len(device.devices.downloads) == 1

    twin = Twin(tmp_path / "some", tiny_split, task, 1)
    for round in (1, 2, 3):
        twin.play(round, [0])
    download = twin.method.download(twin.server)
    device = twin.device(0)
    device.deliver(5, download)  # it missed rounds 4 and 5
    assert not device.keep_as_best(3)
    assert device.keep_as_best(5)
    device.deliver(4, download)
    assert set(twin.device(0).devices.version.tolist()) == {5}, "an older one is ignored"


def test_a_node_that_missed_the_last_word_hears_it_when_the_run_is_started_again(
    tmp_path: Path, small_split: Split
) -> None:
    task = task_of(small_split, "pfedclr", f"{EVERYONE} rounds=2")
    grid, context = federation(
        tmp_path, small_split, task, evaluate_every=1, round_timeout=1.0, min_nodes=2
    )
    first = Coordinator(grid, context)
    assert first._run_round([1, 2, 3])
    assert first._run_round([1, 2, 3])
    first._rows[1]["metrics"]["validation.ndcg@10"] = 1.0  # so that the last round is the best
    first._save()
    assert Device.open(tmp_path / "state-1", best=True).progress.round == 1
    Coordinator(grid, context).run()
    assert Device.open(tmp_path / "state-1", best=True).progress.round == 2


def _private(clip: float | None = 1.0, **more: Any) -> dict[int, dict[str, Any]]:
    asked = {"ldp-noise": 2.0, **({} if clip is None else {"ldp-clip": clip}), **more}
    return dict.fromkeys((1, 2, 3), asked)


def test_noise_by_the_node_config_and_what_it_guarantees(tmp_path: Path, tiny_split: Split) -> None:
    pytest.importorskip("dp_accounting", reason="an extra: pip install 'unskew[privacy]'")
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=2")
    assert privacy_guarantee(tmp_path / "state-1")["epsilon"] == 0
    grid, context = federation(tmp_path, tiny_split, task, _private())
    coordinator = Coordinator(grid, context)
    asked = coordinator._exchange.ask("train", 1, dict.fromkeys([1, 2, 3], coordinator._content(1)))
    uploads = {node: reply.content["upload"]["values"].numpy() for node, reply in asked}
    # A device of 17 users: noise on every item, of the sum's strength, different on every device.
    assert all(len(values) == task.n_items for values in uploads.values())
    assert uploads[1].std() == pytest.approx(2 * 2**0.5 * 17**0.5, rel=0.1)
    assert abs(np.corrcoef(uploads[1].ravel(), uploads[2].ravel())[0, 1]) < 0.2
    Coordinator(grid, context).run()
    found = privacy_guarantee(tmp_path / "state-1")
    mechanism = Mechanism(2.0, "laplace", 1.0, "l1")
    ratio = 2.0 / sensitivity(mechanism, Shape(task.n_items, 8, 0))
    assert found["epsilon"] == pytest.approx(local_epsilon("laplace", ratio, 2))
    assert "after at most 2 uploads" in found["statement"]
    # One round without noise, and there is no guarantee any more.
    longer = dict(context.run_config) | {"settings": f"{EVERYONE} rounds=3"}
    for node in (1, 2, 3):
        config = {k: v for k, v in grid._contexts[node].node_config.items() if "ldp" not in k}
        grid._contexts[node] = Context(1, node, config, RecordDict(), longer)
    Coordinator(grid, Context(1, 0, {}, RecordDict(), longer)).run()
    assert privacy_guarantee(tmp_path / "state-1")["statement"] == (
        "no guarantee: 17 of 51 uploads had no noise or were not clipped"
    )


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"ldp-clip": 1.0}, "needs ldp-noise"),
        ({"ldp-noise": "much"}, "ldp-noise = much must be a number"),
        ({"ldp-noise": 2, "ldp-norm": "l3"}, "l3"),
        ({"ldp-noise": 2, "transform": "deploy_spoilers:nothing"}, "not both"),
    ],
)
def test_a_wrong_noise_is_one_sentence(
    tmp_path: Path, tiny_split: Split, config: dict[str, Any], sentence: str
) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task, {1: config})
    Coordinator(grid, context).run()
    assert sentence in grid.errors[0]
    assert read_rows(tmp_path / "server")[0]["accepted"] == 2


def test_noise_without_a_clip_guarantees_nothing(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    Coordinator(*federation(tmp_path, tiny_split, task, _private(clip=None))).run()
    found = privacy_guarantee(tmp_path / "state-1")
    assert not found["holds"]
    assert "were not clipped" in found["statement"]
