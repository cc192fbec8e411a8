"""A cluster of two Ray nodes on this machine gives the bits of one process, also if workers die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import run_unskew, unskew_command
from unskew.engine import (
    Checkpoints,
    Cluster,
    Federation,
    Loaded,
    RayFederation,
    State,
    Worker,
    model_checksum,
)
from unskew.evaluation import prepare
from unskew.runs import RunSpec, noise_mechanism, private_uploads
from unskew.runs.runner import load_run
from unskew.types import UnskewError

# Ray is imported when its token is set: it reads the environment only once.
missing = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
pytestmark = [pytest.mark.slow, missing]

SPECS = {
    "fedrefit": RunSpec("fedrefit"),
    "fedmf": RunSpec("fedmf", {"rounds": 4, "participation": 0.3}),
    "pfedclr": RunSpec("pfedclr", {"rounds": 3, "participation": 0.5}),
    "fednext": RunSpec("fednext", {"rounds": 4}),
}
SPARING = RunSpec(
    "fedmf", {"rounds": 5, "participation": 0.3}, evaluate_every=2, evaluate_users=100
)
PRIVATE = RunSpec.from_mapping(
    {"method": "fedmf", "settings": {"rounds": 3}, "ldp": {"noise": 0.01, "clip": 1.0}}
)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two Ray nodes with a core each, and a token of their own."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text("5" * 64)
    token.chmod(0o600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
        from ray.cluster_utils import Cluster as Nodes

        node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 10**8}
        made = Nodes(initialize_head=True, head_node_args={"include_dashboard": False, **node})
        try:
            made.add_node(**node)
            yield made
        finally:
            made.shutdown()


@pytest.fixture(scope="module")
def cluster(nodes: Any) -> Iterator[Cluster]:
    with Cluster(nodes.address) as cluster:
        assert [place.cores for place in cluster.places] == [1, 1]
        yield cluster


def trained(
    spec: RunSpec,
    cluster: Cluster | None = None,
    *,
    folder: Path | None = None,
    rounds: int | None = None,
    victim: int | None = None,
    before_round: Any = None,
) -> State:
    """Train a run. The worker ``victim`` is killed while it trains the second round."""
    split = prepare(spec.load(), spec.evaluation)
    transform = private_uploads(spec, split, noise_mechanism(spec, split))
    options: dict[str, Any] = {
        "transform": transform,
        "evaluate_every": spec.evaluate_every,
        "evaluate_users": spec.evaluate_users,
    }
    checkpoints = None if folder is None else Checkpoints(folder)

    def on_round(state: State, row: dict[str, Any]) -> None:
        if transform is not None:
            row["ldp"] = transform.round_figures()

    if cluster is None:
        federation = Federation(spec.build(), split, 0, **options)
        return federation.run(rounds, checkpoints=checkpoints, on_round=on_round)
    load = partial(load_run, spec.to_json(), None)
    with cluster.workers(load, Loaded(spec.build, split, {})) as workers:
        killer = None if victim is None else Killer(workers[victim])

        def before(state: State) -> None:
            if killer is not None and state.round == 1:
                killer.start()
            if before_round is not None:
                before_round(state)

        federation = RayFederation(workers, spec.build(), split, 0, **options)
        hooks: dict[str, Any] = {"on_round": on_round, "before_round": before}
        state = federation.run(rounds, checkpoints=checkpoints, **hooks)
        if killer is not None:
            killer.join()
            assert victim is not None
            assert workers[victim].finish(workers[victim].start("ready")) != killer.process
        return state


class Killer(threading.Thread):
    """Kills a worker's process as soon as it trains."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(daemon=True)
        self.process = worker.finish(worker.start("ready"))

    def run(self) -> None:
        title = Path(f"/proc/{self.process}/cmdline")
        while not title.read_bytes().startswith(b"ray::Shard.train"):
            time.sleep(0.0002)
        os.kill(self.process, signal.SIGKILL)


def assert_same(state: State, wanted: State) -> None:
    assert model_checksum(state) == model_checksum(wanted)
    assert state.best_round == wanted.best_round
    for devices, theirs in (
        (state.devices, wanted.devices),
        (state.best_devices, wanted.best_devices),
    ):
        arrays, others = devices.arrays(), theirs.arrays()
        assert arrays.keys() == others.keys()
        assert all(np.array_equal(arrays[name], others[name]) for name in arrays)
    for board, ranks in (
        (state.scoreboard, wanted.scoreboard),
        (state.best_scoreboard, wanted.best_scoreboard),
    ):
        arrays, others = board.arrays(), ranks.arrays()
        assert all(np.array_equal(arrays[name], others[name]) for name in others)
    for row, other in zip(state.rows, wanted.rows, strict=True):
        timeless = [{k: v for k, v in one.items() if "seconds" not in k} for one in (row, other)]
        assert timeless[0] == timeless[1]


@pytest.mark.parametrize("name", SPECS)
def test_two_nodes_give_the_bits_of_one_process(name: str, cluster: Cluster) -> None:
    assert_same(trained(SPECS[name], cluster), trained(SPECS[name]))


@pytest.mark.parametrize("name", ["fedmf", "pfedclr"])
def test_a_killed_worker_changes_nothing(name: str, cluster: Cluster, tmp_path: Path) -> None:
    wanted = trained(SPECS[name])
    assert_same(trained(SPECS[name], cluster, folder=tmp_path / "state", victim=1), wanted)


@pytest.mark.parametrize("name", ["fedmf", "fednext"])
def test_a_run_goes_on_with_ray_and_without(name: str, cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    trained(SPECS[name], folder=folder, rounds=2)
    trained(SPECS[name], cluster, folder=folder, rounds=3)
    assert_same(trained(SPECS[name], folder=folder), trained(SPECS[name]))


@pytest.mark.parametrize("spec", [SPARING, PRIVATE], ids=["seldom-evaluated", "private"])
def test_options_of_a_run_give_the_same_bits(spec: RunSpec, cluster: Cluster) -> None:
    assert_same(trained(spec, cluster), trained(spec))


def test_the_command_writes_an_ordinary_run(nodes: Any, tmp_path: Path) -> None:
    options = ("run", "--method", "fedmf", "--rounds", 3)
    on_ray = unskew_command(*options, "--ray", nodes.address, "--out", "ray")
    done = subprocess.run(on_ray, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "round 3/3" in done.stderr
    run_unskew(*options, "--out", "one", cwd=tmp_path)
    results = [json.loads((tmp_path / run / "result.json").read_text()) for run in ("ray", "one")]
    assert results[0]["model_sha256"] == results[1]["model_sha256"]
    assert results[0]["metrics"] == results[1]["metrics"]
    one = ("--user", "user-0633")
    lists = [run_unskew("recommend", run, *one, cwd=tmp_path) for run in ("ray", "one")]
    assert lists[0] == lists[1]


def test_a_worker_lost_for_good_ends_the_run_which_can_go_on(
    nodes: Any, cluster: Cluster, tmp_path: Path
) -> None:
    """Last in this file: it takes a node away."""
    spec, folder = SPECS["fedmf"], tmp_path / "state"

    def take_away(state: State) -> None:
        if state.round == 2:
            nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)

    with pytest.raises(UnskewError, match=r"The Ray worker on .* is lost .* `unskew resume` goes"):
        trained(spec, cluster, folder=folder, before_round=take_away)
    assert_same(trained(spec, folder=folder), trained(spec))
