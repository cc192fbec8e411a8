"""What a node does not do for a server, what a server does not take from a node, and whose state,
noise and users are whose."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import (
    EVERYONE,
    Twin,
    distance,
    run_config,
    simulated,
    task_of,
    write_nodes,
)

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from deploy_grid import federation
from flwr.app import Context, RecordDict

from unskew.deploy.client import _open_device as open_device
from unskew.deploy.device import Device
from unskew.deploy.messages import read_download
from unskew.deploy.node_data import take_users, write_node_data
from unskew.deploy.server import Coordinator, claim_folder, read_model, read_rows
from unskew.deploy.task import write_app
from unskew.methods import create, registry
from unskew.methods.fedmf import FedMF
from unskew.types import Split, UnskewError, Upload

USERS, ITEMS = 8, 25


def _download(method: str, **leaves: Any) -> dict[str, Any]:
    built = create(method)
    server, _ = built.init(USERS, ITEMS, 0)
    named: dict[str, Any] = built.download(server)._asdict()
    return named | leaves


def _f32(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("method", "leaves"),
    [
        ("fedmf", {"Q": _f32(5, 16)}),
        ("fedmf", {"Q": _f32(ITEMS, 8)}),
        ("fedmf", {"Q": np.zeros((ITEMS, 16))}),
        ("fedmf", {"Q": np.full((ITEMS, 16), np.nan, np.float32)}),
        ("fedmf", {"Q": "Q"}),
        ("fedmf", {"more": _f32(1)}),
        ("fedncf", {"mlp": _f32(3)}),
        ("fedrefit", {"V": _f32(ITEMS, 7)}),
        ("fedrefit", {"V": _f32(5, 0)}),
        ("fedrefit", {"step": np.zeros(1, np.int64)}),
        ("gpfedrec", {"entries": np.zeros((1, ITEMS * 8), np.int32)}),
        ("pfedgraph", {"users": np.zeros(3, np.int64)}),
        ("pfedgraph", {"users": np.array(3)}),
    ],
)
def test_a_download_of_another_shape_is_refused(method: str, leaves: dict[str, Any]) -> None:
    read_download(create(method), _download(method), USERS, ITEMS)
    with pytest.raises(UnskewError, match="download"):
        read_download(create(method), _download(method, **leaves), USERS, ITEMS)


def test_downloads_that_a_method_itself_makes_differ_over_the_rounds() -> None:
    refit = create("fedrefit")
    whole = refit.init(1, ITEMS, 0)[0]._asdict()
    assert read_download(refit, whole, USERS, ITEMS).V.shape == (ITEMS, 2 * ITEMS + 1)
    for n, fits in ((3, True), (USERS, True), (USERS + 1, False)):
        aggregates = _f32(n, ITEMS * 16)
        named = _download("pfedgraph", users=np.zeros(n, np.int64), aggregates=aggregates)
        if fits:
            assert len(read_download(create("pfedgraph"), named, USERS, ITEMS).users) == n
        else:
            with pytest.raises(UnskewError, match="users of the download has shape"):
                read_download(create("pfedgraph"), named, USERS, ITEMS)


def test_a_node_trains_on_no_download_that_is_too_small(tmp_path: Path, tiny_split: Split) -> None:
    grid, context = federation(tmp_path, tiny_split, task_of(tiny_split, "fedmf", EVERYONE))
    coordinator = Coordinator(grid, context)
    coordinator._server = coordinator._server._replace(Q=coordinator._server.Q[:5])
    assert not list(coordinator._exchange.ask("train", 1, {1: coordinator._content(1)}))
    assert "Q of the download has shape (5, 8)" in grid.errors[0]
    assert Device.open(tmp_path / "state-1").progress.round == 0


def test_a_state_belongs_to_the_users_it_was_made_for(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedclr", EVERYONE)
    twin = Twin(tmp_path, tiny_split, task, 3)
    twin.play(1, [0, 1, 2])
    state = tmp_path / "state-1"
    with pytest.raises(UnskewError, match="other users"):
        Device.join(state, twin.data[1], task, shared_seed=True)
    with pytest.raises(UnskewError, match="other users"):
        Device.open(state, twin.data[1])
    # The same users with an interaction more, in another folder: that is what is trained on.
    node = twin.device(0).data
    train = node.split.train
    longer = train._replace(indptr=np.append(train.indptr[:-1], train.indptr[-1] + 1))
    longer = longer._replace(items=np.append(train.items, train.items[-1]))
    object.__setattr__(node.split, "train", longer)
    write_node_data(tmp_path / "moved", node)
    shutil.rmtree(twin.data[0])
    moved = Device.join(state, tmp_path / "moved", task, shared_seed=True)
    assert moved.progress.round == 1
    assert len(moved.data.split.train.items) == len(train.items) + 1
    assert len(Device.open(state).data.split.train.items) == len(train.items) + 1


def test_a_round_is_answered_once(tmp_path: Path, tiny_split: Split) -> None:
    """Two answers under the same noise would be the difference of two uploads without any."""
    task = task_of(tiny_split, "fedmf", EVERYONE)
    twin = Twin(tmp_path, tiny_split, task, 1)
    random = np.random.default_rng(0)

    def fresh_noise(upload: Upload, _: Any) -> Upload:
        values = upload.rows.values + random.normal(size=upload.rows.values.shape)
        return upload._replace(rows=upload.rows._replace(values=values.astype(np.float32)))

    start = twin.method.download(twin.server)
    first = twin.device(0).step1(1, start, fresh_noise)
    again = twin.device(0).step1(1, start, fresh_noise)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    other = start._replace(Q=start.Q + np.float32(1e-6))
    with pytest.raises(UnskewError, match="no second time"):
        twin.device(0).step1(1, other, fresh_noise)
    twin.device(0).step1(3, other, fresh_noise)
    for round in (1, 2, 3):
        with pytest.raises(UnskewError, match="no second time"):
            twin.device(0).step1(round, start, fresh_noise)
    assert twin.device(0).progress.round == 3


def test_only_the_owner_sees_a_devices_files(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedclr", f"{EVERYONE} rounds=1")
    Coordinator(*federation(tmp_path, tiny_split, task)).run()
    for name in ("data-1", "state-1"):
        files = [path for path in (tmp_path / name).iterdir() if ".tmp" not in path.name]
        assert len(files) >= 2
        for path in (tmp_path / name, *files):
            assert path.stat().st_mode & 0o077 == 0, path


def test_what_step_2_says_is_kept(tmp_path: Path, tiny_split: Split) -> None:
    from unskew.deploy.client import _start_step2

    data = write_nodes(tmp_path, tiny_split, 3)
    Device.join(tmp_path / "s", data[0], task_of(tiny_split, "fedmf"), shared_seed=True)
    shutil.rmtree(data[0])
    _start_step2(tmp_path / "s").wait(300)
    log = tmp_path / "s" / "step2.log"
    assert "holds no node data" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_a_node_cannot_take_over_absent_users(tmp_path: Path, tiny_split: Split) -> None:
    """Node 3 has node 1's data and answers while node 1 is away; then node 1 comes back."""
    task = task_of(tiny_split, "pfedgraph", f"{EVERYONE} aggregated=1")
    thief = {3: {"data": str(tmp_path / "data-1")}}
    grid, context = federation(tmp_path, tiny_split, task, thief, round_timeout=1.0)
    grid.silent = {1}
    assert Coordinator(grid, context)._run_round([1, 2, 3])
    grid.silent = set()
    assert Coordinator(grid, context)._run_round([3, 1, 2])
    rows = read_rows(tmp_path / "server")
    said = "it has users 0 to 16, but its own are 34 to 50"
    assert [row["rejected"] for row in rows] == [{"3": said}] * 2
    assert [row["accepted"] for row in rows] == [1, 2]
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    twin.play(1, [1])
    twin.play(2, [0, 1])
    assert distance(read_model(tmp_path / "server", twin.server)[1], twin.server) < 1e-6


def test_a_node_speaks_for_users_whose_turn_it_is(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedgraph", "rounds=1 local_epochs=1 dim=8 participation=0.5")
    grid, context = federation(tmp_path, tiny_split, task)
    eager = dict(grid._contexts[2].run_config)
    eager["settings"] = str(eager["settings"]).replace("0.5", "1")
    grid._contexts[2] = Context(1, 2, grid._contexts[2].node_config, RecordDict(), eager)
    assert Coordinator(grid, context)._run_round([1, 2, 3])
    rejected = read_rows(tmp_path / "server")[0]["rejected"]
    assert rejected == {"2": "it has uploads of users who do not train in this round"}


def test_a_federation_can_go_on_for_longer(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", "rounds=2 local_epochs=1 dim=8")
    Coordinator(*federation(tmp_path, tiny_split, task)).run()
    longer = task_of(tiny_split, "fedmf", "dim=8 local_epochs=1 rounds=3")
    Coordinator(*federation(tmp_path, tiny_split, longer)).run()
    state = simulated(longer, tiny_split, 3)
    round, server = read_model(tmp_path / "server", state.server)
    assert round == 3
    assert distance(server, state.server) < 1e-6
    assert Device.open(tmp_path / "state-1").task == longer
    with pytest.raises(UnskewError, match="another federation"):
        claim_folder(tmp_path / "server", task_of(tiny_split, "fedmf", "rounds=3 dim=4"))


@pytest.mark.parametrize("key", ["shared-seed", "require-secure", "step2-at-once"])
def test_a_flag_is_true_or_false_and_nothing_else(
    tmp_path: Path, tiny_split: Split, key: str
) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task, {2: {key: "perhaps"}})
    Coordinator(grid, context).run()
    assert f"{key} = perhaps must be true or false" in grid.errors[0]
    assert read_rows(tmp_path / "server")[0]["accepted"] == 2


def test_more_users_in_the_data_are_refused(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", EVERYONE)
    twin = Twin(tmp_path, tiny_split, task, 3)
    twin.play(1, [0, 1, 2])
    write_node_data(tmp_path / "more", take_users(tiny_split, np.arange(20)))
    with pytest.raises(UnskewError, match="other users"):
        Device.join(tmp_path / "state-1", tmp_path / "more", task, shared_seed=True)


def test_a_server_does_not_choose_code_that_a_node_runs(
    tmp_path: Path, tiny_split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the node's own configuration makes it import a method that no package announces."""
    monkeypatch.setattr(registry, "_admitted", {})
    monkeypatch.syspath_prepend(tmp_path)
    source = "from unskew.methods.fedmf import FedMF\nclass Mine(FedMF):\n    name = 'mine'\n"
    (tmp_path / "node_method.py").write_text(source)
    task = task_of(tiny_split, "node_method:Mine", EVERYONE)
    data = write_nodes(tmp_path, tiny_split, 1)[0]
    node = {"data": str(data), "state": str(tmp_path / "state")}
    rules = run_config(task, tmp_path / "server")
    with (
        pytest.raises(UnskewError, match=r"node_method:Mine is not announced.*node-config"),
        open_device(Context(1, 1, node, RecordDict(), rules)),
    ):
        pass
    assert "node_method" not in sys.modules
    trusted = node | {"method": "node_method:Mine"}
    with open_device(Context(1, 1, trusted, RecordDict(), rules)) as device:
        assert device.method.name == "mine"
    write_app(tmp_path / "app", rules)
    assert "admit_method('node_method:Mine')" in (tmp_path / "app/unskew_app/server.py").read_text()
    assert "node_method" not in (tmp_path / "app/unskew_app/client.py").read_text()


def test_a_method_bounds_what_its_devices_accept() -> None:
    class Wary(FedMF):
        def check_download(self, download: Any) -> str | None:
            return "an item is too large" if np.abs(download.Q).max() > 100 else None

    read_download(Wary(), _download("fedmf"), USERS, ITEMS)
    with pytest.raises(UnskewError, match="fedmf refuses the download: an item is too large"):
        read_download(Wary(), _download("fedmf", Q=_f32(ITEMS, 16) + 101), USERS, ITEMS)
