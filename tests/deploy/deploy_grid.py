"""Flower's message layer without processes: every message goes straight to a node's ClientApp.

Messages are flattened to the bytes Flower would send and read back on the other side, so what the
apps see is what would arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity


def flattened(message: Message) -> dict[str, bytes]:
    """All objects a message is sent as, by their id."""
    get_object_tree(message)
    return {name: part.deflate() for name, part in get_all_nested_objects(message).items()}


class DirectGrid(Grid):
    """Nodes in this process; ``sent`` keeps every reply's bytes."""

    def __init__(
        self, app: ClientApp, run_config: dict[str, Any], nodes: dict[int, dict[str, Any]]
    ):
        # Flower's processes are told who they are; here one process is all of them.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self._app = app
        self._contexts = {
            node: Context(1, node, node_config, RecordDict(), run_config)
            for node, node_config in nodes.items()
        }
        self._replies: dict[str, Message] = {}
        self.sent: list[bytes] = []
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
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> Message:
        context = self._contexts[message.metadata.dst_node_id]
        arrived = _carried(message)
        arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
        try:
            reply = self._app(arrived, context)
        except Exception as error:
            reply = Message(Error(0, str(error)), reply_to=arrived)
            return reply
        self.sent.append(b"".join(flattened(reply).values()))
        return _carried(reply)


def _carried(message: Message) -> Message:
    contents = flattened(message)
    carried: Message = inflate_object_from_contents(message.object_id, contents)
    return carried
