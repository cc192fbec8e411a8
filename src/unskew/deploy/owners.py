"""The operator's list of which node has which users: ``nodes.json`` in the server's folder.

    {"format": "unskew-nodes", "version": 1, "nodes": {"1234567890": [0, 299], "98765": [300, 609]}}

gives the node with Flower's id 1234567890 the users 0 to 299. (``flwr supernode list`` shows ids; a
registered key keeps its id.) With this list no other node is heard, and none for users that are not
its own. Methods that need single uploads need the list, because their servers keep a state per
user. Without the list, a node of another method may have any users.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from unskew.deploy.messages import About, Rejected
from unskew.deploy.node_data import owner_only
from unskew.files import read_json, write_json
from unskew.types import Int64, UnskewError

NODES, VERSION = "unskew-nodes", 1
"""Format name of ``nodes.json`` and its version."""


def write_owners(folder: Path, users: Mapping[int, Int64]) -> None:
    """Write the list to a server's state folder: the users of each node, whose numbers have no
    gaps."""
    ranges = {str(node): [int(own[0]), int(own[-1])] for node, own in users.items()}
    with owner_only():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "nodes.json", {"format": NODES, "version": VERSION, "nodes": ranges})


class Owners(NamedTuple):
    """First and last user number of each node; None: the operator gave no list."""

    ranges: dict[int, tuple[int, int]] | None
    n_users: int

    @staticmethod
    def read(folder: Path, n_users: int, *, needed: str = "") -> Owners:
        """Read the list in a server's state folder. ``needed`` is the name of a method that cannot
        do without it."""
        path = folder / "nodes.json"
        if not path.exists():
            if needed:
                raise UnskewError(
                    f"{needed} keeps a state per user, so the server must know whose users are "
                    f"whose; write {path} as docs/deploy_reference.md shows."
                )
            return Owners(None, n_users)
        ranges = dict[int, tuple[int, int]]()
        try:
            for node, (first, last) in read_json(path, NODES, VERSION)["nodes"].items():
                if (
                    type(first) is not int
                    or type(last) is not int
                    or not 0 <= first <= last < n_users
                ):
                    raise ValueError
                ranges[int(node)] = first, last
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UnskewError(
                f"{path}: nodes must map node ids to [first user, last user], with users from 0 to "
                f"{n_users - 1}."
            ) from None
        ordered = sorted(ranges.items(), key=lambda pair: pair[1])
        for (node, (_, last)), (other, (first, _)) in pairwise(ordered):
            if first <= last:
                raise UnskewError(f"{path} gives user {first} to the nodes {node} and {other}.")
        return Owners(ranges, n_users)

    def of(self, node: int) -> tuple[int, int]:
        """First and last number of a node's users; raises :class:`Rejected` if it has none."""
        if self.ranges is None:
            return 0, self.n_users - 1
        if node not in self.ranges:
            raise Rejected("nodes.json gives it no users")
        return self.ranges[node]

    def size(self, node: int) -> int:
        """The largest number of users a node can have."""
        first, last = self.of(node)
        return last - first + 1

    def largest(self) -> int:
        """The largest number of users that any node can have."""
        return max(map(self.size, self.ranges)) if self.ranges else self.n_users

    def check_users(self, node: int, users: Int64) -> None:
        """Raise :class:`Rejected` unless these users are the node's own."""
        first, last = self.of(node)
        if np.any((users < first) | (users > last)):
            raise Rejected(f"it has uploads of users who are not its own, {first} to {last}")

    def check(self, node: int, about: About) -> None:
        """Raise :class:`Rejected` unless a node's users are its own."""
        first, last = self.of(node)
        if not first <= about.first <= about.last <= last:
            raise Rejected(
                f"it has users {about.first} to {about.last}, but its own are {first} to {last}"
            )


def shared_users(found: dict[int, About]) -> list[tuple[int, int]]:
    """Pairs of nodes whose ranges of users overlap."""
    ordered = sorted(found.items(), key=lambda pair: (pair[1].first, pair[1].last))
    return [(node, other) for (node, a), (other, b) in pairwise(ordered) if b.first <= a.last]
