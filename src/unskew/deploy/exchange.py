"""The server's exchange of messages with the nodes: send, wait, open every reply by itself.

A reply is what a node chose to send. Flower's grid opens all replies of a request together and puts
an array together from as many copies of a chunk as the reply names. So replies are asked for one by
one, an array's size is known before it is put together, and a reply that cannot be opened is
dropped with its node named. Whose reply it is, is known from the question, not from what it says.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
from flwr.app import Array, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry

from unskew.text import log_text

_POLL_SECONDS = 0.5
"""Seconds between two checks for new nodes or replies."""
MAX_SMALL_REPLY_BYTES = 2**20
"""Largest size of the arrays in a reply that should have few or none."""
_LOST = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
)
"""Flower's codes of errors that the node itself did not report: a message was lost on the way."""
log = logging.getLogger("flwr")


class Exchange:
    """Asks nodes and collects what they answer within ``timeout`` seconds."""

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid, self._timeout = grid, timeout

    def nodes(self) -> list[int]:
        """Ids of the nodes that are connected now, in ascending order."""
        return sorted(self._grid.get_node_ids())

    def wait_for_nodes(self, wanted: Callable[[list[int]], str], seconds: float) -> list[int] | str:
        """Wait until ``wanted`` has nothing to say about the connected nodes; returns them, or what
        it says after ``seconds``."""
        ends, logged = time.monotonic() + seconds, ""
        while reason := wanted(nodes := self.nodes()):
            if time.monotonic() >= ends:
                return reason
            if reason != logged:
                log.info("Waiting for nodes: %s", reason)
                logged = reason
            time.sleep(_POLL_SECONDS)
        return nodes

    def ask(
        self,
        kind: str,
        round: int,
        contents: Mapping[int, RecordDict],
        max_bytes: int = MAX_SMALL_REPLY_BYTES,
    ) -> Iterator[tuple[int, Message]]:
        """Send each node its content; yield replies as they come, with arrays of at most
        ``max_bytes``. A node whose reply was lost is asked once more: it has stored its reply."""

        def message(node: int) -> Message:
            return Message(contents[node], dst_node_id=node, message_type=kind, group_id=str(round))

        return self.send([message(node) for node in contents], round, max_bytes, message)

    def send(
        self,
        messages: list[Message],
        round: int,
        max_bytes: int,
        again: Callable[[int], Message] | None = None,
    ) -> Iterator[tuple[int, Message]]:
        """Send messages and yield the nodes' replies. ``again`` makes the message for a node whose
        reply was lost; without it, such a node is not asked again."""
        waiting, ends = self._push(messages, round), time.monotonic() + self._timeout
        asked_again = set[int]()
        while waiting and time.monotonic() < ends:
            for name, node in list(waiting.items()):
                reply = self._pull(name, max_bytes)
                if reply is None:
                    continue
                del waiting[name]
                if isinstance(reply, Message) and not reply.has_error():
                    yield node, reply
                    continue
                lost = isinstance(reply, Message) and reply.error.code in _LOST
                if again and lost and node not in asked_again and node in self.nodes():
                    log.warning("Round %d: reply of node %d was lost; asked again", round, node)
                    asked_again.add(node)
                    waiting |= self._push([again(node)], round)
                    continue
                reason = reply.error.reason if isinstance(reply, Message) else reply
                log.warning("Round %d: node %d is left out: %s", round, node, log_text(reason))
            if waiting:
                time.sleep(_POLL_SECONDS)
        for node in waiting.values():
            log.warning("Round %d: node %d did not answer in time", round, node)

    def _pull(self, name: str, max_bytes: int) -> Message | str | None:
        """The reply to the message ``name``; None if there is none yet, a reason if it cannot be
        opened."""
        try:
            with _limited_arrays(max_bytes):
                return next(iter(self._grid.pull_messages([name])), None)
        except httpx.HTTPError:
            raise  # the SuperLink cannot be reached, which is no node's doing
        except Exception as error:  # a hostile node can make opening fail in any way
            return f"its reply cannot be opened ({type(error).__name__}: {error})"

    def _push(self, messages: list[Message], round: int) -> dict[str, int]:
        """Send messages; returns the nodes by the names under which their replies are found."""
        nodes = [message.metadata.dst_node_id for message in messages]
        names = list(self._grid.push_messages(messages)) or [""] * len(nodes)
        for name, node in zip(names, nodes, strict=True):
            if not name:
                log.warning("Round %d: the message to node %d could not be sent", round, node)
        return {name: node for name, node in zip(names, nodes, strict=True) if name}


@contextmanager
def _limited_arrays(max_bytes: int) -> Iterator[None]:
    """Within the ``with`` block, Flower puts together arrays of at most ``max_bytes`` in all."""
    name, left = Array.__qualname__, max_bytes

    class Limited:
        @staticmethod
        def inflate(content: bytes, children: dict[str, Any] | None = None) -> Array:
            nonlocal left
            ids = get_object_children_ids_from_object_content(content)
            chunks = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            left -= sum(len((children or {})[ids[number]].data) for number in chunks)
            if left < 0:
                raise ValueError(f"its arrays would take more than {max_bytes:,} bytes")
            return Array.inflate(content, children)

    registry: dict[str, Any] = inflatable_class_registry
    registry[name] = Limited
    try:
        yield
    finally:
        registry[name] = Array
