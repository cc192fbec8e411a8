"""What a device does not do for its own server: masked sums that show a node, downloads that show a
rare item or ruin its state, and files that are not as they were written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import EVERYONE, Twin, distance, simulated, task_of

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from deploy_grid import federation, reply
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)

from unskew.deploy.device import Device
from unskew.deploy.guard import Least, check_masked, check_plain
from unskew.deploy.messages import read_download
from unskew.deploy.node_data import (
    catalogue_digest,
    read_node_data,
    write_catalogue,
    write_node_data,
)
from unskew.deploy.secure import quantisation_steps
from unskew.deploy.server import Coordinator, read_model, read_rows
from unskew.deploy.task import RunConfig, read_run_config, write_app
from unskew.methods import create
from unskew.types import Split, UnskewError, UploadSum

RULES = RunConfig(users=9, items=9, secure=True, max_weight=10.0)
LEAST = Least(3, 0.5)


def _ask(folder: Path, stage: str, me: int = 1, round: int = 1, **asked: Any) -> None:
    """A message of SecAgg+ to node ``me``, which announced five nodes at its start."""
    content: dict[str, Any] = {RECORD_KEY_CONFIGS: ConfigRecord({Key.STAGE: stage, **asked})}
    content["round"] = ConfigRecord({"round": round, "best": 0})
    message: Message = reply(content)
    message.metadata.__dict__["_dst_node_id"] = me
    state = RecordDict({RECORD_KEY_STATE: ConfigRecord({"sample_num": 5})})
    check_masked(message, Context(1, me, {}, state, {}), folder, RULES, LEAST)


def _setup(n_nodes: int, threshold: int, **other: Any) -> dict[str, Any]:
    asked = {Key.SAMPLE_NUMBER: n_nodes, Key.SHARE_NUMBER: n_nodes, Key.THRESHOLD: threshold}
    asked |= {Key.CLIPPING_RANGE: 8.0, Key.TARGET_RANGE: quantisation_steps(n_nodes)}
    return asked | {Key.MOD_RANGE: 2**32, Key.MAX_WEIGHT: 1.0} | other


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (_setup(1, 1), "over 1 nodes; this node demands 3"),
        (_setup(2, 2), "over 2 nodes"),
        (_setup(4, 2), "2 of 4 nodes could remove the masks"),
        (_setup(5, 1), "1 of 5 nodes"),
        (_setup(5, 6), "6 of 5 nodes"),
        (_setup(5, 3, **{Key.MOD_RANGE: 2}), "not those of the run-config"),
        (_setup(5, 3, **{Key.SHARE_NUMBER: 3}), "not those of the run-config"),
        (_setup(5, 3, **{Key.CLIPPING_RANGE: 80.0}), "not those of the run-config"),
    ],
)
def test_a_masked_sum_is_over_enough_nodes(
    tmp_path: Path, asked: dict[str, Any], reason: str
) -> None:
    _ask(tmp_path, Stage.SETUP, **_setup(5, 3))
    with pytest.raises(UnskewError, match=reason):
        _ask(tmp_path, Stage.SETUP, **asked)


def test_few_public_keys_are_refused(tmp_path: Path) -> None:
    keys = {str(node): [b"a", b"b"] for node in (1, 2, 3)}
    _ask(tmp_path, Stage.SHARE_KEYS, **keys)
    del keys["3"]
    with pytest.raises(UnskewError, match="over 2 nodes"):
        _ask(tmp_path, Stage.SHARE_KEYS, **keys)


def _collect(folder: Path, sources: list[int], round: int = 1) -> None:
    asked: dict[str, Any] = {Key.SOURCE_LIST: sources}
    _ask(folder, Stage.COLLECT_MASKED_VECTORS, round=round, **asked)


def _unmask(folder: Path, active: list[int], dead: list[int]) -> None:
    asked: dict[str, Any] = {Key.ACTIVE_NODE_ID_LIST: active, Key.DEAD_NODE_ID_LIST: dead}
    _ask(folder, Stage.UNMASK, **asked)


def test_a_round_is_masked_for_one_set_of_nodes(tmp_path: Path) -> None:
    """Two sums of one round that differ by a node would show that node."""
    for sources in ([2], [2, 2, 3], [1, 2, 3], [2, 3, 4, 5, 6]):
        with pytest.raises(UnskewError, match="masked sum"):
            _collect(tmp_path, sources)
    _collect(tmp_path, [2, 3, 4], round=2)
    _collect(tmp_path, [4, 3, 2], round=2)
    for sources, round in (([2, 3], 2), ([2, 3, 4, 5], 2), ([2, 3, 4], 1)):
        with pytest.raises(UnskewError, match="with the same nodes only"):
            _collect(tmp_path, sources, round)
    for plain in (1, 2):
        with pytest.raises(UnskewError, match="sends nothing unmasked"):
            check_plain(tmp_path, plain)
    check_plain(tmp_path, 3)
    _collect(tmp_path, [2, 3], round=3)


def test_masks_are_removed_for_one_set_of_nodes(tmp_path: Path) -> None:
    _collect(tmp_path, [2, 3, 4])
    with pytest.raises(UnskewError, match="over 2 nodes"):
        _unmask(tmp_path, [1, 2], [3, 4])
    for active, dead in (
        ([1, 2, 3, 4], [4]),  # both shares of node 4: its upload
        ([1, 2, 3, 3], [4]),
        ([1, 2, 3], []),
        ([1, 2, 3], [4, 5]),
        ([2, 3, 4], [1]),
    ):
        with pytest.raises(UnskewError, match="not those of the masked sum"):
            _unmask(tmp_path, active, dead)
    _unmask(tmp_path, [1, 2, 3], [4])
    _unmask(tmp_path, [3, 2, 1], [4])
    with pytest.raises(UnskewError, match="and does so once"):
        _unmask(tmp_path, [1, 2, 3, 4], [])


def _lie(key: str, value: Any) -> Any:
    """What a hostile node answers to the stage whose reply has this key."""

    def edit(answer: Message) -> Message:
        configs = answer.content.config_records.get(RECORD_KEY_CONFIGS, {})
        if key in configs:
            configs[key] = value(configs[key])
        return answer

    return edit


def _short(arrays: list[bytes]) -> list[bytes]:
    import io

    vector = np.load(io.BytesIO(arrays[1]))[:-10]
    file = io.BytesIO()
    np.save(file, vector)
    return [arrays[0], file.getvalue()]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (Key.MASKED_PARAMETERS, _short, "its vector has shape"),
        (Key.PUBLIC_KEY_1, lambda _: b"junk", "it cannot be read"),
        (Key.CIPHERTEXT_LIST, lambda _: [b"x"], "not one share for each other node"),
    ],
)
def test_a_lie_costs_its_node_the_masked_round(
    tmp_path: Path,
    tiny_split: Split,
    caplog: pytest.LogCaptureFixture,
    key: str,
    value: Any,
    reason: str,
) -> None:
    """Here sums of two nodes will do. If the liar was bound to the others, it is left out."""
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    pairs = {number: {"secure-nodes": 2} for number in (1, 2, 3)}
    secure = {"secure": True, "max_weight": 4000.0, "evaluate_every": -1, "round_timeout": 5.0}
    grid, context = federation(tmp_path, tiny_split, task, pairs, **secure)
    grid.edit = {2: _lie(key, value)}
    Coordinator(grid, context).run()
    assert f"of node 2 rejected: {reason}" in caplog.text.replace("it has not", "not")
    assert [row["accepted"] for row in read_rows(tmp_path / "server")] == [2]
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    twin.play(1, [0, 2])
    assert distance(read_model(tmp_path / "server", twin.server)[1], twin.server) < 1e-4


def test_a_masked_round_is_repeated_with_the_same_nodes(tmp_path: Path, tiny_split: Split) -> None:
    """The shares that remove masks are lost; then node 3 is away, then it is back."""
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    secure = {"secure": True, "max_weight": 4000.0, "evaluate_every": -1, "wait_for_nodes": 0.1}
    grid, context = federation(tmp_path, tiny_split, task, **secure)
    outcome = tmp_path / "server" / "outcome.json"

    def lose(answer: Message) -> Message:
        if Key.SHARE_LIST in answer.content.config_records.get(RECORD_KEY_CONFIGS, {}):
            return Message(Error(0, "lost"), reply_to=answer)
        return answer

    grid.edit = dict.fromkeys((1, 2, 3), lose)
    Coordinator(grid, context).run()
    assert "3 times fewer than 1 nodes" in outcome.read_text()
    grid.edit = {}
    grid._contexts[4] = grid._contexts.pop(3)
    Coordinator(grid, context).run()
    assert "round 1 was masked with the nodes [3] too" in outcome.read_text()
    grid._contexts[3] = grid._contexts.pop(4)
    Coordinator(grid, context).run()
    assert read_rows(tmp_path / "server")[0]["accepted"] == 3
    state = simulated(task, tiny_split, 1)
    assert distance(read_model(tmp_path / "server", state.server)[1], state.server) < 1e-4


def test_a_secure_run_gets_nothing_unmasked(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task, secure=True, max_weight=4000.0)
    coordinator = Coordinator(grid, context)
    assert not list(coordinator._exchange.ask("train", 1, {1: coordinator._content(1)}))
    assert "sends masked uploads only" in grid.errors[0]


def test_an_item_space_does_not_show_single_items() -> None:
    method = create("fedrefit", dim=16)
    server, _ = method.init(1, 200, 0)
    honest = method.download(server)._asdict()
    read_download(method, honest, 8, 200)
    for U in (np.eye(200, 16), -np.eye(200, 16)[::-1]):
        with pytest.raises(UnskewError, match="16 columns of its item space show single items"):
            read_download(method, honest | {"U": U.astype(np.float32)}, 8, 200)
    with pytest.raises(UnskewError, match="an item has less than one user"):
        read_download(method, honest | {"users": np.zeros(200, np.float32)}, 8, 200)


def test_a_weight_after_the_last_fit_is_ignored() -> None:
    method = create("fedrefit", dim=4)
    server, _ = method.init(1, 9, 0)
    server = server._replace(step=np.array([7], np.int32))
    total = UploadSum(np.ones((9, 9)), np.zeros(0), 1.0, 1)
    assert method.aggregate(server, total) is server


def test_an_honest_item_space_of_few_users_is_accepted(tiny_split: Split) -> None:
    state = simulated(task_of(tiny_split, "fedrefit", "rounds=4 dim=16"), tiny_split, 4)
    named = create("fedrefit", dim=16).download(state.server)._asdict()
    read_download(create("fedrefit", dim=16), named, tiny_split.n_users, tiny_split.n_items)


@pytest.mark.parametrize("method", ["fedrefit", "fedmf", "fedrap"])
def test_rare_items_take_no_part(tmp_path: Path, tiny_split: Split, method: str) -> None:
    """What is sent is what would be sent without them, whatever the server's download is."""
    task = task_of(tiny_split, method, "rounds=1" if method == "fedrefit" else EVERYONE)
    twin = Twin(tmp_path, tiny_split, task, 3)
    device = twin.device(0)
    assert device.data.item_users is not None
    common = device.data.item_users >= 9
    assert 0 < common.sum() < len(common)
    sent = device.step1(1, twin.method.download(twin.server), None, 9)
    assert common[sent["items"]].all()
    assert len(sent["items"])
    split = device.data.split
    kept = [items[common[items]] for items in map(split.train.of, range(len(device.data.users)))]
    indptr = np.append(0, np.cumsum([len(items) for items in kept]))
    train = split.train._replace(indptr=indptr, items=np.concatenate(kept))
    object.__setattr__(split, "train", train)
    object.__setattr__(split, "train_timestamps", None)
    write_node_data(tmp_path / "data-1", device.data)
    for path in (tmp_path / "state-1").iterdir():
        path.unlink()
    without = twin.device(0).step1(1, twin.method.download(twin.server))
    shared = common[without["items"]]  # rare ones may be negatives
    for name in ("items", "values"):
        np.testing.assert_array_equal(sent[name], without[name][shared])
    np.testing.assert_array_equal(sent["dense"], without["dense"])
    write_node_data(
        tmp_path / "data-2", read_node_data(tmp_path / "data-2")._replace(item_users=None)
    )
    with pytest.raises(UnskewError, match="least-users needs the number of users of each item"):
        twin.device(1).step1(1, twin.method.download(twin.server), None, 9)


def test_one_download_does_not_ruin_a_device(
    tmp_path: Path, tiny_split: Split, caplog: pytest.LogCaptureFixture
) -> None:
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "fedmf", EVERYONE), 3)
    huge = twin.method.download(twin.server)._replace(
        Q=np.full_like(twin.server.Q, 3e38)  # type: ignore[attr-defined]
    )
    with pytest.raises(UnskewError, match="holds NaN, infinity or a value above"):
        read_download(twin.method, huge._asdict(), twin.task.n_users, twin.task.n_items)
    twin.device(0)
    state = (tmp_path / "state-1" / "state.safetensors").read_bytes()
    with pytest.raises(UnskewError, match="gave NaN; the node keeps its state"):
        twin.device(0).step1(1, huge)
    assert (tmp_path / "state-1" / "state.safetensors").read_bytes() == state
    twin.play(1, [0, 1, 2])


def test_a_step_2_that_fails_keeps_the_state_before(
    tmp_path: Path, tiny_split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "pfedclr", EVERYONE), 3)
    device = twin.device(0)
    device.step1(1, twin.method.download(twin.server))
    everyone = np.arange(len(device.data.users))
    before = device.devices.take(everyone).p.copy()
    ruin = lambda _, private, __: private._replace(p=private.p * np.nan)  # noqa: E731
    monkeypatch.setattr(device.method, "personalize", ruin)
    assert device.step2()
    after = twin.device(0)
    assert not len(after.progress.due)
    np.testing.assert_array_equal(after.devices.take(everyone).p, before)


@pytest.mark.parametrize(
    "name",
    ["state.safetensors", "reply.safetensors", "best.safetensors", "device.json", "privacy.json"],
)
def test_flipped_bytes_are_noticed(tmp_path: Path, tiny_split: Split, name: str) -> None:
    from unskew.deploy.account import privacy_guarantee

    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "pfedclr", EVERYONE), 3)
    download, folder = twin.method.download(twin.server), tmp_path / "state-1"
    twin.device(0).step1(1, download)
    twin.device(0).keep_as_best(1)
    path = folder / name
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    for at in range(middle, min(middle + 4000, len(data) - 2)):
        data[at] ^= 1
    path.write_bytes(data)

    def use() -> None:
        if name == "privacy.json":
            privacy_guarantee(folder)
        Device.open(folder, best=name.startswith("best"))
        twin.device(0).step1(1, download)

    with pytest.raises(UnskewError, match=rf"{path}.*; .*(restore|give)"):
        use()


@pytest.mark.parametrize("left", ["reply.safetensors", "privacy.json"])
def test_a_lost_device_file_is_not_replaced(tmp_path: Path, tiny_split: Split, left: str) -> None:
    twin = Twin(tmp_path, tiny_split, task_of(tiny_split, "fedmf", EVERYONE), 3)
    twin.device(0)
    os.unlink(tmp_path / "state-1" / "device.json")
    twin.device(0).step1(1, twin.method.download(twin.server))  # nothing was lost yet
    for path in (tmp_path / "state-1").iterdir():
        if path.name not in (left, "state.safetensors"):
            path.unlink()
    with pytest.raises(UnskewError, match=f"has {left} but no device.json"):
        twin.device(0)


def test_a_permuted_catalogue_is_refused(tmp_path: Path, tiny_split: Split) -> None:
    write_catalogue(tmp_path / "catalogue.json", tiny_split)
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    given = {"method": "fedmf", "users": tiny_split.n_users, "items": tiny_split.n_items}
    write_app(tmp_path / "app", given | {"catalogue": str(tmp_path / "catalogue.json")})
    digest = catalogue_digest(tiny_split.item_ids)
    assert f'catalogue = "{digest}"' in (tmp_path / "app" / "pyproject.toml").read_text()
    grid, context = federation(tmp_path, tiny_split, task, catalogue=digest, evaluate_every=-1)
    assert read_run_config(context.run_config).catalogue == digest
    node = read_node_data(tmp_path / "data-2")
    labels = list(node.split.item_ids)
    labels[0], labels[1] = labels[1], labels[0]
    object.__setattr__(node.split, "item_ids", labels)
    write_node_data(tmp_path / "data-2", node)
    Coordinator(grid, context).run()
    assert read_rows(tmp_path / "server")[0]["accepted"] == 2
    assert "other items than the federation, or in another order" in grid.errors[0]
