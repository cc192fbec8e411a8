"""A federation of real processes on loopback, with TLS and node keys, under attack and crashes.

One story, because starting the processes is what takes the time: a node lies for three rounds, a
node dies in the middle of one and comes back, the server dies and is started again, and a stranger
knocks. What is left must be the model the nodes that were heard have trained, and no other.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import Twin, distance, run_config, task_of, write_nodes

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

import unskew
from unskew.deploy.device import Device
from unskew.deploy.loopback import Loopback
from unskew.deploy.node_data import lock_folder
from unskew.deploy.server import best_round, read_model, read_rows
from unskew.deploy.task import write_app
from unskew.types import Split

HERE = os.pathsep.join([str(Path(__file__).parent), str(Path(unskew.__file__).parents[1])])
"""Where the nodes' processes find the spoilers, and this very package."""
LONG = 600.0
"""Seconds for what takes a few on an idle machine."""


def _wait_for_node(network: Loopback, number: int, config: dict[str, Any]) -> None:
    """Wait until a started node is connected. Flower refuses a node that was killed until it
    notices, up to a minute; the node is then started again, as a service manager would."""
    name = f"node-{number}"

    def connected() -> bool:
        if network.exit_code(name) is not None:
            network.kill(name)
            time.sleep(5)
            network.start_node(number, config)
        return "SuperNode ID" in network.log(name)

    network.wait_until(connected, f"the start of {name}", LONG)


@pytest.mark.slow
def test_lies_crashes_and_strangers(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedclr", "rounds=5 local_epochs=1 dim=8 participation=1")
    server = tmp_path / "server"
    rules = {"min_nodes": 2, "wait_for_nodes": LONG, "round_timeout": LONG, "evaluate_every": 3}
    write_app(tmp_path / "app", run_config(task, server, **rules))
    data = write_nodes(tmp_path, tiny_split, 3)
    configs = {
        number: {
            "data": str(path),
            "state": str(tmp_path / f"state-{number}"),
            "shared-seed": True,
            "step2-at-once": number == 1,
        }
        for number, path in enumerate(data, 1)
    }
    mark = tmp_path / "node 2 is in round 4"
    variables = {"PYTHONPATH": HERE, "HANG_IN_ROUND": "4", "HANG_MARK": str(mark)}

    with Loopback(tmp_path, nodes=4) as network:
        network.start_superlink()
        for number in (1, 2, 3):
            network.register(number)
        network.start_node(4, configs[1])
        network.start_node(1, configs[1])
        network.start_node(2, configs[2] | {"transform": "deploy_spoilers:hang"}, **variables)
        network.start_node(
            3, configs[3] | {"transform": "deploy_spoilers:three_attacks"}, **variables
        )
        for number in (1, 2, 3):
            _wait_for_node(network, number, configs[number])
        run_id = network.start_run(tmp_path / "app")

        def rounds_played() -> int:
            return len(read_rows(server))

        # Rounds 1 to 3: node 3 lies, three times in different ways.
        network.wait_until(lambda: rounds_played() >= 3, "three rounds", LONG)
        for row, reason in zip(read_rows(server), ("NaN", "shape", "norm"), strict=False):
            assert row["accepted"] == 2
            assert [reason in said for said in row["rejected"].values()] == [True]
        log = network.run_log(run_id)
        liar = next(iter(read_rows(server)[0]["rejected"]))
        assert log.count(f"upload of node {liar} rejected") == 3

        # The stranger, whose key nobody registered, was turned away.
        network.wait_until(lambda: network.exit_code("node-4") is not None, "refusal", LONG)
        assert network.exit_code("node-4") != 0
        assert "SuperNode ID" not in network.log("node-4")

        # Round 4: node 2 dies in the middle of it; the round goes on without.
        network.wait_until(mark.exists, "node 2 in round 4", LONG)
        network.kill("node-2")
        with lock_folder(tmp_path / "state-2"):
            left = Device.open(tmp_path / "state-2")
        assert left.progress.round == 3
        network.wait_until(lambda: rounds_played() >= 4, "round 4 without node 2", LONG)
        assert read_rows(server)[3]["accepted"] == 2

        # The server dies; started again, it goes on after the last complete round.
        network.kill("superlink")
        assert rounds_played() == 4
        network.start_superlink()
        network.start_node(2, configs[2])
        _wait_for_node(network, 2, configs[2])
        run_id = network.start_run(tmp_path / "app")
        # The first run has left an outcome, which the second deletes when it begins.
        going_on = "Going on after round 4 of 5"
        network.wait_until(lambda: going_on in network.run_log(run_id), "the second run", LONG)
        network.wait_for_run(run_id, server, seconds=LONG)
        rows = read_rows(server)
        assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
        assert rows[4]["accepted"] == 3
        for row in (rows[2], rows[4]):
            assert 0 <= row["metrics"]["test.ndcg@10"] <= 1

    # All have heard, with the last message, which round validation liked best.
    for number in (1, 2, 3):
        chosen = Device.open(tmp_path / f"state-{number}", best=True)
        assert chosen.progress.round == best_round(rows)

    # Node 2 came back with the state it had: it has trained in every round but the one it missed.
    device = Device.open(tmp_path / "state-2")
    assert device.progress.round == 5
    assert device.progress.rounds_trained == 4
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    for round in (1, 2, 3):
        twin.play(round, [0, 1], trained=[2])
    twin.play(4, [0, 2])
    twin.play(5, [0, 1, 2])
    assert distance(read_model(server, twin.server)[1], twin.server) < 1e-4
    everyone = np.arange(len(device.data.users))
    mine, expected = twin.device(1), device
    mine.step2(), expected.step2()
    np.testing.assert_allclose(
        mine.devices.take(everyone).p, expected.devices.take(everyone).p, rtol=1e-4, atol=1e-5
    )
