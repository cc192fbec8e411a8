"""Attacks on the server and its answers to them, through Flower's messages in this process."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import EVERYONE, Twin, distance, task_of

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from deploy_grid import DirectGrid, federation, reply
from flwr.app import ConfigRecord, Context, Error, Message
from flwr.common.constant import ErrorCode

from unskew.deploy.messages import Rejected, decode_array, read_about, read_arrays
from unskew.deploy.node_data import lock_folder
from unskew.deploy.server import Coordinator, main, read_model, read_rows
from unskew.types import Split, UnskewError

Contents = dict[str, bytes]


def _outcome(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "server" / "outcome.json").read_text())
    return found


def _arrays(contents: Contents) -> list[str]:
    return [name for name, content in contents.items() if content.startswith(b"Array ")]


def _junk(contents: Contents) -> None:
    """A valid head, and a body that is not what the head says."""
    name = _arrays(contents)[0]
    head = contents[name].partition(b"\x00")[0]
    contents[name] = head + b"\x00{junk"


def _bomb(contents: Contents) -> None:
    """An array of 2,000 copies of its chunk, in a few thousand bytes."""
    name = max(_arrays(contents), key=lambda name: b'"arraychunk_ids": [0]' in contents[name])
    head, _, body = contents[name].partition(b"\x00")
    about = json.loads(body) | {"arraychunk_ids": [0] * 2000}
    contents[name] = head + b"\x00" + json.dumps(about).encode()


def _forged(contents: Contents) -> None:
    """A name in the reply that would be a line of its own in the log."""
    for name, content in contents.items():
        contents[name] = content.replace(b'"values"', b'"\\nINFO: all is well"')


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (_junk, "cannot be opened"),
        (_bomb, "its arrays would take more than"),
        (_forged, "\ufffdINFO: all is well"),
    ],
)
def test_a_malformed_reply_costs_its_node_the_round_only(
    tmp_path: Path,
    tiny_split: Split,
    caplog: pytest.LogCaptureFixture,
    tamper: Callable[[Contents], None],
    reason: str,
) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task, evaluate_every=-1)
    grid.tamper = {2: tamper}
    with caplog.at_level(logging.WARNING):
        Coordinator(grid, context).run()
    assert _outcome(tmp_path) | {"reason": "all rounds played", "round": 1} == _outcome(tmp_path)
    named = [record.getMessage() for record in caplog.records if "node 2" in record.getMessage()]
    assert [reason in message and "\n" not in message for message in named] == [True]
    twin = Twin(tmp_path / "twin", tiny_split, task, 3)
    twin.play(1, [0, 2])
    assert distance(read_model(tmp_path / "server", twin.server)[1], twin.server) < 1e-6


def test_an_array_is_no_larger_than_its_data() -> None:
    head = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    about = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"
    with pytest.raises(ValueError, match="do not fit"):
        decode_array(head + about.ljust(117) + b"\n" + bytes(64))
    data = head + about.replace(b"1000000000000", b"16").ljust(117) + b"\n" + bytes(64)
    assert decode_array(data).shape == (16,)


def test_an_array_is_named_once(tmp_path: Path, tiny_split: Split) -> None:
    grid, context = federation(tmp_path, tiny_split, task_of(tiny_split, "fedmf"))
    coordinator = Coordinator(grid, context)
    asked = coordinator._exchange.ask("train", 1, {1: coordinator._content(1)}, 10**6)
    _, answer = next(iter(asked))
    record = answer.content.array_records["upload"]
    for number in range(3):
        record[f"copy {number}"] = record["values"]
    with pytest.raises(Rejected, match="it holds copy 0, copy 1"):
        read_arrays(answer)


def test_an_upload_of_an_earlier_round_is_not_taken(tmp_path: Path, tiny_split: Split) -> None:
    """Node 2 sends its first upload again. In round 3 it says that it is a new one."""
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=3")
    grid, context = federation(tmp_path, tiny_split, task, evaluate_every=-1)
    first: list[Any] = []

    def replay(answer: Message) -> Message:
        first[:] = first or [answer.content]
        again = reply(dict(first[0]))
        round = answer.content.config_records["about"]["round"]
        if round == 3:
            again.content.config_records["about"]["round"] = 3
        again.metadata.__dict__.update(answer.metadata.__dict__)
        return again

    grid.edit = {2: replay}
    Coordinator(grid, context).run()
    reasons = [row["rejected"].get("2") for row in read_rows(tmp_path / "server")]
    assert reasons == [None, "it answers round 1", "it answers another download"]


def test_what_a_reply_says_about_itself_is_checked() -> None:
    about = {"round": 1, "digest": bytes(32), "first": 0, "last": 3}
    digest = np.zeros(4, np.int64)
    assert read_about(reply({"about": ConfigRecord(about)}), 1, digest).last == 3
    for wrong in ({"round": True}, {"digest": "0"}, {"first": 0.0}, {"more": 1}):
        with pytest.raises(Rejected, match="does not say"):
            read_about(reply({"about": ConfigRecord({**about, **wrong})}), 1, digest)
    with pytest.raises(Rejected, match="does not say"):
        read_about(reply({}), 1, digest)


def test_a_round_counts_with_enough_accepted_uploads_only(
    tmp_path: Path, tiny_split: Split
) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    hostile = {number: {"transform": "deploy_spoilers:nan"} for number in (1, 2)}
    grid, context = federation(tmp_path, tiny_split, task, hostile, min_uploads=0)
    Coordinator(grid, context).run()
    assert _outcome(tmp_path)["round"] == 0
    assert "3 times fewer than 3 nodes" in _outcome(tmp_path)["reason"]
    enough = dict(context.run_config) | {"min-uploads": 1}
    Coordinator(grid, Context(1, 0, {}, context.state, enough)).run()
    assert read_rows(tmp_path / "server")[0]["accepted"] == 1


def test_a_node_whose_reply_was_lost_is_asked_again(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task, evaluate_every=-1)
    lost: list[Message] = []

    def lose_once(answer: Message) -> Message:
        if lost:
            return answer
        error = Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=answer)
        lost.append(error)
        return error

    grid.edit = {2: lose_once}
    Coordinator(grid, context).run()
    assert len(lost) == 1
    assert read_rows(tmp_path / "server")[0]["accepted"] == 3


def test_a_claimed_weight_is_what_users_can_weigh(tmp_path: Path, tiny_split: Split) -> None:
    """FedRefit does not divide by weights: large values were hidden by a large weight."""
    task = task_of(tiny_split, "fedrefit", "rounds=1 dim=8")
    hostile = {2: {"transform": "deploy_spoilers:heavy"}}
    Coordinator(*federation(tmp_path, tiny_split, task, hostile, evaluate_every=-1)).run()
    row = read_rows(tmp_path / "server")[0]
    assert row["accepted"] == 2
    assert "its weight 17000 is above 17" in row["rejected"]["2"]


def test_metrics_are_of_a_nodes_own_users(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task)

    def boast(answer: Message) -> Message:
        for pair in answer.content.metric_records.get("sums", {}).values():
            pair[:] = [51.0, 51.0]
        return answer

    grid.edit = {2: boast}
    Coordinator(grid, context).run()
    assert read_rows(tmp_path / "server")[0]["metrics"]["test.ndcg@10"] < 0.9


def test_two_runs_do_not_share_a_state(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task)
    with (
        lock_folder(tmp_path / "server"),
        pytest.raises(UnskewError, match="Another run is using"),
    ):
        main(grid, context)
    assert not (tmp_path / "server" / "outcome.json").exists()
    main(grid, context)
    assert _outcome(tmp_path)["reason"] == "all rounds played"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SystemExit(0), "the run was told to stop"),
        (ConnectionError("no\nSuperLink"), "an error: ConnectionError('no\\nSuperLink')"),
    ],
)
def test_every_way_out_has_an_outcome(
    tmp_path: Path, tiny_split: Split, error: BaseException, reason: str
) -> None:
    class Broken(DirectGrid):
        def push_messages(self, messages: Any) -> Any:
            raise error

    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task)
    grid.__class__ = Broken
    with pytest.raises(type(error)):
        Coordinator(grid, context).run()
    assert _outcome(tmp_path)["reason"] == reason


def test_a_damaged_model_is_named(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    grid, context = federation(tmp_path, tiny_split, task, evaluate_every=-1)
    Coordinator(grid, context).run()
    path = tmp_path / "server" / "server.safetensors"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    with pytest.raises(UnskewError, match=r"server\.safetensors has changed"):
        Coordinator(grid, context)
    assert "server.safetensors has changed" in _outcome(tmp_path)["reason"]


def _write_nodes(folder: Path, nodes: object) -> None:
    about = {"format": "unskew-nodes", "version": 1, "nodes": nodes}
    (folder / "server" / "nodes.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ({"1": [0, 20], "2": [20, 50]}, "gives user 20 to the nodes 1 and 2"),
        ({"1": [0, 51]}, "users from 0 to 50"),
        ({"1": [5, 2]}, "must map node ids"),
        ({"one": [0, 2]}, "must map node ids"),
        ({"1": 3}, "must map node ids"),
        ([], "must map node ids"),
    ],
)
def test_the_list_of_nodes_is_checked(
    tmp_path: Path, tiny_split: Split, nodes: object, reason: str
) -> None:
    grid, context = federation(tmp_path, tiny_split, task_of(tiny_split, "fedmf"))
    _write_nodes(tmp_path, nodes)
    with pytest.raises(UnskewError, match=reason):
        Coordinator(grid, context)


def test_users_belong_to_whom_the_operator_says(
    tmp_path: Path, tiny_split: Split, caplog: pytest.LogCaptureFixture
) -> None:
    """The same data under a second key; without a list, a method of sums is told so."""
    task = task_of(tiny_split, "fedmf", f"{EVERYONE} rounds=1")
    copied = {3: {"data": str(tmp_path / "data-1")}}
    grid, context = federation(tmp_path, tiny_split, task, copied, evaluate_every=-1)
    _write_nodes(tmp_path, {"1": [0, 16]})
    Coordinator(grid, context).run()
    rejected = read_rows(tmp_path / "server")[0]["rejected"]
    assert rejected == dict.fromkeys(["2", "3"], "nodes.json gives it no users")
    grid, context = federation(tmp_path / "b", tiny_split, task, copied, evaluate_every=-1)
    (tmp_path / "b" / "server" / "nodes.json").unlink()
    with caplog.at_level(logging.WARNING):
        Coordinator(grid, context).run()
    assert "nodes 1 and 3 say that they have the same users" in caplog.text
    grid, context = federation(tmp_path / "c", tiny_split, task_of(tiny_split, "pfedgraph"))
    (tmp_path / "c" / "server" / "nodes.json").unlink()
    with pytest.raises(UnskewError, match="pfedgraph keeps a state per user"):
        Coordinator(grid, context)
