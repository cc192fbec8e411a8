"""Flower's message layer without processes: every message goes straight to a node's ClientApp.

Messages are flattened to the bytes Flower would send and read back on the other side, so what the
apps see is what would arrive.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from deploy_samples import run_config, write_nodes
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from unskew.deploy.client import app as client_app
from unskew.deploy.node_data import divide_users
from unskew.deploy.owners import write_owners
from unskew.deploy.server import app as server_app
from unskew.deploy.task import Task
from unskew.types import Split


def federation(
    folder: Path,
    split: Split,
    task: Task,
    nodes: dict[int, dict[str, Any]] | None = None,
    **more: Any,
) -> tuple[DirectGrid, Context]:
    """Three nodes, numbered 1 to 3, and the server's context. The operator gave each its users. One
    accepted upload is enough for a round, unless ``more`` says otherwise."""
    config = run_config(task, folder / "server", **{"min_nodes": 3, "min_uploads": 1, **more})
    parts = divide_users(split.n_users, 3)
    write_owners(folder / "server", dict(enumerate(parts, 1)))
    data = write_nodes(folder, split, 3)
    configs = {
        number: {
            "data": str(path),
            "state": str(folder / f"state-{number}"),
            "shared-seed": True,
            "step2-at-once": False,
            **(nodes or {}).get(number, {}),
        }
        for number, path in enumerate(data, 1)
    }
    grid = DirectGrid(client_app, config, configs)
    return grid, Context(1, 0, {}, RecordDict(), config)


def flattened(message: Message) -> dict[str, bytes]:
    """All objects a message is sent as, by their id."""
    get_object_tree(message)
    return {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


def take_identity() -> None:
    """Flower's processes are told who they are; in a test one process is all of them."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1


def reply(content: dict[str, Any]) -> Message:
    """A node's reply with these records."""
    take_identity()
    return Message(RecordDict(content), dst_node_id=1, message_type="train")


class DirectGrid(Grid):
    """Nodes in this process; ``sent`` keeps every reply's bytes, ``errors`` what nodes refused."""

    def __init__(
        self, app: ClientApp, run_config: dict[str, Any], nodes: dict[int, dict[str, Any]]
    ):
        take_identity()
        self._app = app
        self._contexts = {
            node: Context(1, node, node_config, RecordDict(), run_config)
            for node, node_config in nodes.items()
        }
        self._replies: dict[str, Message | tuple[str, dict[str, bytes]]] = {}
        self.tamper: dict[int, Callable[[dict[str, bytes]], None]] = {}
        """What a hostile node does to the bytes of its replies, after it has made them."""
        self.edit: dict[int, Callable[[Message], Message]] = {}
        """What a hostile node sends in place of its reply."""
        self.sent: list[bytes] = []
        self.errors: list[str] = []
        self.silent: set[int] = set()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for number, message in enumerate(messages):
            name = f"{len(self._replies)}-{number}-{message.metadata.dst_node_id}"
            message.metadata.__dict__["_run_id"] = 1
            message.metadata.__dict__["_message_id"] = name
            ids.append(name)
            if message.metadata.dst_node_id not in self.silent:
                self._replies[name] = self._deliver(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        taken = [self._replies.pop(name) for name in list(message_ids) if name in self._replies]
        return [one if isinstance(one, Message) else _opened(*one) for one in taken]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message | tuple[str, dict[str, bytes]]:
        context = self._contexts[message.metadata.dst_node_id]
        arrived = _carried(message)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        try:
            reply = self._app(arrived, context)
        except Exception as error:
            self.errors.append(str(error))
            return Message(Error(0, str(error)), reply_to=arrived)
        node = message.metadata.dst_node_id
        reply = self.edit.get(node, lambda same: same)(reply)
        if reply.has_error():
            return reply
        contents = flattened(reply)
        self.sent.append(b"".join(contents.values()))
        self.tamper.get(node, lambda _: None)(contents)
        return reply.object_id, contents


def _carried(message: Message) -> Message:
    return _opened(message.object_id, flattened(message))


def _opened(name: str, contents: dict[str, bytes]) -> Message:
    """What Flower's grid does with a reply's bytes when the server asks for it."""
    carried: Message = inflate_object_from_contents(name, contents)
    return carried


class DirectNetwork:
    """What the demo asks of its processes, with a :class:`DirectGrid` in their place."""

    def __init__(self, folder: Path, nodes: int, say: Callable[[str], None] = print) -> None:
        self._nodes: dict[int, dict[str, Any]] = {}

    def __enter__(self) -> DirectNetwork:
        return self

    def __exit__(self, *_: object) -> None: ...

    def start_superlink(self) -> None: ...

    def register(self, number: int) -> int:
        return number

    def start_node(self, number: int, config: dict[str, Any]) -> None:
        self._nodes[number] = config | {"step2-at-once": False}

    def start_run(self, app: Path) -> str:
        project = tomllib.loads((app / "pyproject.toml").read_text())
        config = project["tool"]["flwr"]["app"]["config"]
        grid = DirectGrid(client_app, config, self._nodes)
        server_app(grid, Context(1, 0, {}, RecordDict(), config))
        return "1"

    def wait_for_run(self, run_id: str, server: Path, meanwhile: Callable[[], None]) -> None:
        meanwhile()

    def stop(self, name: str) -> None: ...
