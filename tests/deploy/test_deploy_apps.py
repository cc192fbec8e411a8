"""The two Flower apps, fed real messages: what is on the wire, what the server does with it."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import EVERYONE, Twin, distance, simulated, task_of

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from deploy_grid import federation
from deploy_grid import reply as reply_of
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, RecordDict

from unskew.deploy.device import Device
from unskew.deploy.messages import Rejected, read_arrays, upload_shape
from unskew.deploy.node_data import lock_folder
from unskew.deploy.server import Coordinator, read_model, read_rows
from unskew.deploy.task import read_run_config
from unskew.types import Split, UnskewError, UploadSum


def _outcome(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "server" / "outcome.json").read_text())
    return found


@pytest.mark.parametrize("method", ["pfedclr", "pfedgraph"])
def test_a_run_through_messages_is_the_simulator(
    tmp_path: Path, tiny_split: Split, method: str
) -> None:
    task = task_of(tiny_split, method)
    Coordinator(*federation(tmp_path, tiny_split, task, evaluate_every=1)).run()
    state = simulated(task, tiny_split)
    round, server = read_model(tmp_path / "server", state.server)
    assert round == 3
    assert distance(server, state.server) < 1e-6
    rows = read_rows(tmp_path / "server")
    assert [row["accepted"] for row in rows] == [3, 3, 3]
    for row, simulated_row in zip(rows, state.rows, strict=True):
        expected = simulated_row["test"]["ndcg@10"]
        assert row["metrics"]["test.ndcg@10"] == pytest.approx(expected, abs=1e-9)


def test_what_is_private_is_not_on_the_wire(tmp_path: Path, tiny_split: Split) -> None:
    """Every byte of every reply of a run: the upload is in there, p, A, B and the items are not."""
    task = task_of(tiny_split, "pfedclr", f"{EVERYONE} rounds=2")
    grid, context = federation(tmp_path, tiny_split, task, evaluate_every=1)
    Coordinator(grid, context).run()
    wire = b"".join(grid.sent)
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    uploads, secrets = [], {}
    for round in (1, 2):
        download = twin.method.download(twin.server)
        for node in range(3):
            uploads.append(twin.device(node).step1(round, download))
            device = twin.device(node)
            secrets |= _secrets(device, f"round {round}, node {node}, after Step 1")
            device.step2()
            secrets |= _secrets(device, f"round {round}, node {node}, after Step 2")
        twin.play(round, [0, 1, 2])
    for upload in uploads[:3]:  # the search would find them
        assert all(upload[name].tobytes() in wire for name in ("items", "values", "weight"))
    assert len(secrets) > 100
    for name, secret in secrets.items():
        assert len(secret) >= 8, name
        assert secret not in wire, name


def _secrets(device: Device, when: str) -> dict[str, bytes]:
    """What must not leave, user by user, in the types it could be sent as."""
    split, found = device.data.split, {}
    private = device.devices.take(np.arange(len(device.data.users)))
    for user in range(len(device.data.users)):
        parts = {"p": private.p[user], "B": private.B[user]}
        rows = slice(private.A.indptr[user], private.A.indptr[user + 1])
        held = slice(private.Q.indptr[user], private.Q.indptr[user + 1])
        for row, values in enumerate(private.A.values[rows]):
            if values.any():
                parts[f"A row {row}"] = values
        parts |= {f"Q row {row}": values for row, values in enumerate(private.Q.values[held])}
        for name, part in parts.items():
            for kind in (np.float32, np.float64):
                found[f"{name} of {user}, {when}, {kind.__name__}"] = part.astype(kind).tobytes()
        for name in ("train", "seen", "validation", "test"):
            items = getattr(split, name).of(user)
            for kind in (np.int32, np.int64):
                if len(items) > 1:  # one small number alone is anywhere
                    found[f"{name} of {user}, {kind.__name__}"] = items.astype(kind).tobytes()
        found[f"label of {user}"] = f'"{split.user_ids[user]}"'.encode().rjust(8)
    return found


def test_a_reply_holds_the_upload_and_nothing_else(tmp_path: Path, tiny_split: Split) -> None:
    grid, context = federation(tmp_path, tiny_split, task_of(tiny_split, "pfedclr", EVERYONE))
    coordinator = Coordinator(grid, context)
    contents = dict.fromkeys([1, 2, 3], coordinator._content(1))
    for _, reply in coordinator._exchange.ask("train", 1, contents):
        assert list(reply.content) == ["upload", "about"]
        assert set(reply.content["about"]) == {"round", "digest", "first", "last"}
        assert set(reply.content["upload"]) == {"items", "values", "dense", "weight"}
    for _, reply in coordinator._exchange.ask("evaluate", 1, {2: RecordDict()}):
        assert list(reply.content) == ["sums"]
        sums = reply.content["sums"]
        assert all(len(pair) == 2 and pair[0] <= pair[1] for pair in sums.values())


def test_step_2_follows_the_reply_in_a_process_of_its_own(
    tmp_path: Path, tiny_split: Split
) -> None:
    task, at_once = task_of(tiny_split, "pfedclr", EVERYONE), {3: {"step2-at-once": True}}
    coordinator = Coordinator(*federation(tmp_path, tiny_split, task, at_once))
    replies = list(coordinator._exchange.ask("train", 1, {3: coordinator._content(1)}))
    assert len(replies) == 1
    ends = time.monotonic() + 120
    while True:  # nobody touches the state but that process
        with lock_folder(tmp_path / "state-3"):
            if not len(Device.open(tmp_path / "state-3").progress.due):
                return
        assert time.monotonic() < ends, "Step 2 was not done"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        ("deploy_spoilers:nan", "NaN"),
        ("deploy_spoilers:wide", "shape"),
        ("deploy_spoilers:huge", "norm"),
    ],
)
def test_a_hostile_node_is_named_and_does_no_harm(
    tmp_path: Path, tiny_split: Split, transform: str, reason: str
) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    hostile = {2: {"transform": transform}}
    Coordinator(*federation(tmp_path, tiny_split, task, hostile)).run()
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    twin.play(1, [0, 2])
    assert distance(read_model(tmp_path / "server", twin.server)[1], twin.server) < 1e-6
    row = read_rows(tmp_path / "server")[0]
    assert row["accepted"] == 2
    assert list(row["rejected"]) == ["2"]
    assert reason in row["rejected"]["2"]


def test_bytes_that_are_no_array_are_rejected(tmp_path: Path, tiny_split: Split) -> None:
    federation(tmp_path, tiny_split, task_of(tiny_split, "fedmf"))
    archive = io.BytesIO()
    np.savez(archive, values=np.ones(3))
    for data, reason in ((b"nonsense", "cannot be read"), (archive.getvalue(), "cannot be read")):
        record = ArrayRecord({"values": Array("float32", (3,), "numpy.ndarray", data)})
        with pytest.raises(Rejected, match=reason):
            read_arrays(reply_of({"upload": record, "about": ConfigRecord()}))
    more = {"upload": ArrayRecord(), "p": ArrayRecord()}
    with pytest.raises(Rejected, match="the reply holds p, upload"):
        read_arrays(reply_of(more))


def test_a_transform_changes_what_leaves(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    nothing = {number: {"transform": "deploy_spoilers:nothing"} for number in (1, 2, 3)}
    Coordinator(*federation(tmp_path, tiny_split, task, nothing)).run()
    start, _ = task.build().init(1, task.n_items, task.seed)
    assert distance(read_model(tmp_path / "server", start)[1], start) == 0
    missing = {1: {"transform": "deploy_spoilers:missing"}}
    Coordinator(*federation(tmp_path / "b", tiny_split, task, missing)).run()
    assert read_rows(tmp_path / "b" / "server")[0]["accepted"] == 2


def test_a_node_lost_in_a_round_costs_its_contribution_only(
    tmp_path: Path, tiny_split: Split
) -> None:
    task = task_of(tiny_split, "pfedclr", f"{EVERYONE} rounds=2")
    options = {"round_timeout": 1.0, "evaluate_every": -1}
    grid, context = federation(tmp_path, tiny_split, task, **options)
    grid.silent = {3}
    Coordinator(grid, context).run()
    assert not any("metrics" in row for row in read_rows(tmp_path / "server"))
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    for round in (1, 2):
        twin.play(round, [0, 1])
    assert distance(read_model(tmp_path / "server", twin.server)[1], twin.server) < 1e-6


def test_the_server_goes_on_after_the_last_complete_round(
    tmp_path: Path, tiny_split: Split
) -> None:
    """Stopped after round 1 because all nodes fell silent; then all rounds, as if nothing was."""
    task = task_of(tiny_split, "pfedclr")
    grid, context = federation(tmp_path, tiny_split, task, round_timeout=0.5)
    first = Coordinator(grid, context)
    assert first._run_round([1, 2, 3])
    # Trained, then lost.
    list(first._exchange.ask("train", 2, dict.fromkeys([1, 2], first._content(2))))
    grid.silent = {1, 2, 3}
    Coordinator(grid, context).run()
    assert _outcome(tmp_path)["round"] == 1
    assert "fewer than 1 nodes sent an upload" in _outcome(tmp_path)["reason"]
    grid.silent = set()
    Coordinator(grid, context).run()
    state = simulated(task, tiny_split)
    assert distance(read_model(tmp_path / "server", state.server)[1], state.server) < 1e-6
    assert [row["round"] for row in read_rows(tmp_path / "server")] == [1, 2, 3]
    changed = dict(context.run_config) | {"seed": 9}
    with pytest.raises(UnskewError, match="another federation"):
        Coordinator(grid, Context(1, 0, {}, RecordDict(), changed))


def test_too_few_nodes_stops_the_run_with_a_reason(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedclr")
    few = {"min_nodes": 4, "wait_for_nodes": 0.2}
    Coordinator(*federation(tmp_path, tiny_split, task, **few)).run()
    assert _outcome(tmp_path)["reason"] == "only 3 of 4 nodes were there"
    assert _outcome(tmp_path)["round"] == 0


def test_secure_aggregation_gives_the_plain_sum(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedclr", f"{EVERYONE} rounds=1")
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    shape = upload_shape(twin.method, twin.method.download(twin.server), task.n_items, 1)
    plain = np.zeros(shape.n_items * shape.width + 1)
    for node in range(3):
        upload = twin.device(node).step1(1, twin.method.download(twin.server))
        rows = np.zeros((shape.n_items, shape.width))
        rows[upload["items"]] = upload["values"]
        plain += np.append(rows.ravel(), upload["weight"])
    most = float(plain[-1])  # more than any single node has
    grid, context = federation(tmp_path, tiny_split, task, secure=True, max_weight=most)
    rules = read_run_config(context.run_config)
    total, report = Coordinator(grid, context)._secure_round(1, [1, 2, 3], shape, 0.0)
    assert isinstance(total, UploadSum)
    # Each node rounds an entry to a step of 2 clip / 2^29, up or down; and to float32 before.
    step = 3 * 2 * rules.secure_clip / 2**29 * most + 1e-6 * np.abs(plain[:-1]).max()
    assert report["accepted"] == 3
    assert total.weight == pytest.approx(plain[-1], abs=step)
    np.testing.assert_allclose(total.rows.ravel(), plain[:-1], rtol=0, atol=step)
    assert np.abs(plain[:-1]).max() > 50 * step
    # What the server gets from a single node is masked: its rows and weight are not on the wire.
    for node in range(3):
        upload = twin.device(node).step1(1, twin.method.download(twin.server))
        sent = b"".join(grid.sent)
        assert upload["values"][0].tobytes() not in sent
        assert upload["weight"].tobytes() not in sent


def test_a_secure_run_trains_the_same_model(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedncf", f"{EVERYONE} rounds=2")
    secure = {"secure": True, "max_weight": 4000.0}
    Coordinator(*federation(tmp_path, tiny_split, task, **secure)).run()
    state = simulated(task, tiny_split, 2)
    assert distance(read_model(tmp_path / "server", state.server)[1], state.server) < 1e-4


def test_a_node_can_insist_on_masking(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedclr", f"{EVERYONE} rounds=1")
    Coordinator(*federation(tmp_path, tiny_split, task, {1: {"require-secure": True}})).run()
    assert read_rows(tmp_path / "server")[0]["accepted"] == 2


@pytest.mark.parametrize("how", ["rows", "clip", "median", "trimmed"])
def test_robust_aggregation_runs(tmp_path: Path, tiny_split: Split, how: str) -> None:
    task = task_of(tiny_split, "fedncf", f"{EVERYONE} rounds=1")
    hostile = {2: {"transform": "deploy_spoilers:pull"}}
    options = {"robust": how, "trim": 0.34, "max_norm": 0.0}
    Coordinator(*federation(tmp_path / "r", tiny_split, task, hostile, **options)).run()
    Coordinator(*federation(tmp_path / "n", tiny_split, task, hostile, max_norm=0.0)).run()
    honest = Twin(tmp_path / "twin", tiny_split, task, 3)
    honest.play(1, [0, 2])
    robust = read_model(tmp_path / "r" / "server", honest.server)[1]
    plain = read_model(tmp_path / "n" / "server", honest.server)[1]
    assert distance(robust, honest.server) < 0.05 * distance(plain, honest.server)
