"""A node between two messages: the simulator's numbers, state that survives, Step 2 never lost."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deploy_samples import SETTINGS, Twin, distance, simulated, task_of, write_nodes

from unskew.deploy.device import Device
from unskew.deploy.node_data import read_node_data, take_users
from unskew.engine import Federation
from unskew.types import Split, UnskewError


@pytest.mark.parametrize("method", ["pfedclr", "fedmf", "fedncf", "gpfedrec", "pfedgraph"])
def test_three_nodes_are_the_simulator(tmp_path: Path, tiny_split: Split, method: str) -> None:
    task = task_of(tiny_split, method)
    twin = Twin(tmp_path, tiny_split, task, 3)
    for round in (1, 2, 3):
        twin.play(round, [0, 1, 2])
    state = simulated(task, tiny_split)
    assert distance(twin.server, state.server) < 1e-6
    for part in ("validation", "test"):
        sums = [twin.device(node).metric_sums(part) for node in range(3)]
        for name, mean in state.scoreboard.means(part).items():  # type: ignore[arg-type]
            total = sum(of_node[name][0] for of_node in sums)
            count = sum(of_node[name][1] for of_node in sums)
            assert total / count == pytest.approx(mean, abs=1e-9)


def test_nodes_know_ages_and_play_both_stages_of_fednext(tmp_path: Path, tiny_split: Split) -> None:
    settings = "rounds=11 dim=8 base_dim=4 window=9 negatives=12 participation=0.5"
    task = task_of(tiny_split, "fednext", settings)
    twin = Twin(tmp_path, tiny_split, task, 3)
    for round in range(1, 12):
        twin.play(round, [0, 1, 2])
    assert distance(twin.server, simulated(task, tiny_split, 11).server) < 1e-5
    timeless = simulated(task, replace(tiny_split, period=None), 11)
    assert distance([twin.server.recent], [timeless.server.recent]) > 0.1


@pytest.mark.parametrize("method", ["pfedclr", "pfedrec"])
def test_one_user_per_node_is_the_simulator(tmp_path: Path, tiny_split: Split, method: str) -> None:
    three = take_users(tiny_split, np.arange(3)).split
    task = task_of(three, method)
    twin = Twin(tmp_path, three, task, 3)
    for round in (1, 2, 3):
        twin.play(round, [0, 1, 2])
    assert distance(twin.server, simulated(task, three).server) < 1e-6


def test_nodes_draw_the_simulators_cohorts(tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{SETTINGS} participation=0.3")
    federation = Federation(task.build(), tiny_split, task.seed)
    for round in (1, 2, 9):
        np.testing.assert_array_equal(task.cohort_of(round), federation.cohort_of(round))


def test_a_round_played_again_comes_out_the_same(tmp_path: Path, tiny_split: Split) -> None:
    """The server lost round 2 after the nodes had trained for it, and Step 2 had been done."""
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "pfedclr"), 3)
    twin.play(1, [0, 1, 2])
    download = twin.method.download(twin.server)
    first = twin.device(0).step1(2, download)
    device = twin.device(0)
    device.step2()
    after = device.devices.arrays()
    for _ in range(2):  # lost twice
        again = twin.device(0).step1(2, download)
        assert all(np.array_equal(first[name], again[name]) for name in first)
    device = twin.device(0)
    device.step2()
    for name, array in device.devices.arrays().items():
        np.testing.assert_array_equal(array, after[name], err_msg=name)
    assert device.progress.rounds_trained == 2


def test_a_node_that_missed_rounds_goes_on_from_what_it_has(
    tmp_path: Path, tiny_split: Split
) -> None:
    settings = f"{SETTINGS} participation=1"
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "pfedclr", settings), 3)
    twin.play(1, [0, 1, 2])
    device = twin.device(2)
    device.step2()
    everyone = np.arange(len(device.data.users))
    left = device.devices.take(everyone)
    for round in (2, 3, 4):
        twin.play(round, [0, 1])
    device = twin.device(2)
    assert device.progress.round == 1
    np.testing.assert_array_equal(device.devices.take(everyone).p, left.p)
    twin.play(5, [0, 1, 2])
    device = twin.device(2)
    assert (device.progress.round, device.progress.rounds_trained) == (5, 2)
    # Step 1 leaves the vector and the buffer alone: they are the ones of before the gap.
    np.testing.assert_array_equal(device.devices.take(everyone).p, left.p)
    np.testing.assert_array_equal(device.devices.take(everyone).B, left.B)


def test_step_2_is_marked_before_the_reply_and_done_before_the_state_is_used(
    tmp_path: Path, tiny_split: Split
) -> None:
    settings = f"{SETTINGS} participation=1"
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "pfedclr", settings), 1)
    twin.play(1, [0])
    device = Device.open(tmp_path / "state-1")
    np.testing.assert_array_equal(device.progress.due, np.arange(tiny_split.n_users))
    everyone = np.arange(tiny_split.n_users)
    before = device.devices.take(everyone)
    shutil.copytree(tmp_path / "state-1", tmp_path / "state-9")
    expected = twin.method.personalize(
        device.devices.downloads[0], before, device._cohort(everyone, 1)
    )
    for use in (lambda d: d.metric_sums("test"), lambda d: d.recommender()):
        shutil.rmtree(tmp_path / "state-1")
        shutil.copytree(tmp_path / "state-9", tmp_path / "state-1")
        use(Device.open(tmp_path / "state-1"))
        kept = Device.open(tmp_path / "state-1")
        assert not len(kept.progress.due)
        np.testing.assert_array_equal(kept.devices.take(everyone).p, expected.p)
        np.testing.assert_array_equal(kept.devices.take(everyone).A.values, expected.A.values)
    assert not np.array_equal(expected.p, before.p)


def test_without_the_shared_seed_a_device_draws_its_own_negatives(
    tmp_path: Path, tiny_split: Split
) -> None:
    settings = f"{SETTINGS} participation=1"
    task = task_of(tiny_split, "pfedclr", settings)
    data = write_nodes(tmp_path, tiny_split, 1)[0]
    server, _ = task.build().init(1, task.n_items, task.seed)
    uploads = []
    for name, shared in (("a", True), ("b", False), ("c", False)):
        device = Device.join(tmp_path / name, data, task, shared_seed=shared)
        uploads.append(device.step1(1, server)["values"])
    assert not np.array_equal(uploads[0], uploads[1])
    assert not np.array_equal(uploads[1], uploads[2])
    again = Device.join(tmp_path / "b", data, task, shared_seed=False)
    assert np.array_equal(again.step1(1, server)["values"], uploads[1])


def test_a_write_cut_short_leaves_the_state_as_it_was(tmp_path: Path, tiny_split: Split) -> None:
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "fedmf"), 3)
    twin.play(1, [0, 1, 2])
    before = twin.device(0).devices.arrays()
    (tmp_path / "state-1" / "next-state.safetensors").write_bytes(b"half a fi")
    (tmp_path / "state-1" / ".next-state.safetensors.1.tmp").write_bytes(b"ha")
    for name, array in twin.device(0).devices.arrays().items():
        np.testing.assert_array_equal(array, before[name])
    twin.play(2, [0, 1, 2])
    assert twin.device(0).progress.round == 2


def test_what_does_not_fit_is_one_sentence(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf")
    twin = Twin(tmp_path, tiny_split, task, 3)
    twin.play(1, [0, 1, 2])
    other = task_of(tiny_split, "pfedclr")
    with pytest.raises(UnskewError, match="another federation"):
        Device.join(tmp_path / "state-1", twin.data[0], other, shared_seed=True)
    with pytest.raises(UnskewError, match="no device"):
        Device.open(tmp_path / "nowhere")
    with pytest.raises(UnskewError, match="unskew deploy data"):
        read_node_data(tmp_path / "nowhere")
    small = task_of(take_users(tiny_split, np.arange(3)).split, "fedmf")
    with pytest.raises(UnskewError, match="the federation has"):
        Device.join(tmp_path / "new", twin.data[2], small, shared_seed=True)
    (tmp_path / "state-1" / "state.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(UnskewError, match="cannot be read"):
        Device.open(tmp_path / "state-1")
