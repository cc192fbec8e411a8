"""Who speaks for whom: no node answers for a user of another one.

A user belongs to the first node that speaks for it without being contradicted, and stays with it;
the server keeps this with its checkpoint. Where two nodes claim a user nobody had yet, neither is
heard for that user: the server cannot know who is right, its operator can.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unskew.types import Bool, Int64


def settle(owners: Int64, claims: Mapping[int, Int64]) -> tuple[Int64, dict[int, Bool]]:
    """The owners after a round in which nodes claimed users, and which claims of each hold."""
    claimed = np.zeros(len(owners), np.int64)
    for users in claims.values():
        claimed[users] += 1
    owners = owners.copy()
    for node, users in claims.items():
        owners[users[(owners[users] == 0) & (claimed[users] == 1)]] = _signed(node)
    return owners, {node: owners[users] == _signed(node) for node, users in claims.items()}


def _signed(node: int) -> int:
    """Flower numbers nodes with 64 bits, files have signed numbers."""
    return int(np.uint64(node).astype(np.int64))
