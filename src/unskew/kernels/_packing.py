"""One small table per user in half the memory: 16 bits an entry, a scale per user and tile.

Tables that differ little from a common one are kept as their differences from it, cut into tiles of
columns; a tile's entries are multiples of its largest entry over 32,767, so what is lost is at most
1.6e-5 of the largest difference in the tile. Two entries share an int32, the type that files have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import for_each_block
from unskew.types import Float32, Int32, Int64

TILE = 1024
"""Columns packed with one scale; even, so that no two tiles share an int32."""
_MOST = 32767.0


class Packed(NamedTuple):
    entries: Int32
    scale: Float32


def empty_packed(n_users: int, columns: int) -> Packed:
    """All differences zero."""
    tiles = -(-columns // TILE)
    halves = (columns + 1) // 2
    return Packed(np.zeros((n_users, halves), np.int32), np.zeros((n_users, tiles), np.float32))


@jit
def _pack(block: Int64, values: Float32, low: int, scale: Float32, out: Int32) -> None:
    n = values.shape[1]
    for u in block:
        largest = np.float32(0.0)
        for k in range(n):
            largest = max(largest, abs(values[u, k]))
        step = largest / np.float32(_MOST)
        scale[u] = step
        narrow = out[u].view(np.int16)[low : low + n]
        back = np.float32(1.0) / step if step > 0 else np.float32(0.0)
        for k in range(n):
            narrow[k] = np.int16(np.rint(values[u, k] * back))


@jit
def _unpack(
    block: Int64, users: Int64, entries: Int32, scale: Float32, low: int, out: Float32
) -> None:
    n = out.shape[1]
    for c in block:
        narrow = entries[users[c]].view(np.int16)
        for tile in range(low // TILE, (low + n - 1) // TILE + 1):
            step = scale[users[c], tile]
            for k in range(max(tile * TILE, low), min((tile + 1) * TILE, low + n)):
                out[c, k - low] = step * np.float32(narrow[k])


def pack(packed: Packed, tile: int, values: Float32) -> None:
    """Put the users' columns of one tile, in place."""
    column = np.empty(len(values), np.float32)
    work = np.ones(len(values), np.int64)
    for_each_block(work, lambda block: _pack(block, values, tile * TILE, column, packed.entries))
    packed.scale[:, tile] = column


def unpack(packed: Packed, users: Int64, low: int, high: int) -> Float32:
    """Columns ``low`` to ``high`` of these users' tables."""
    out = np.empty((len(users), high - low), np.float32)
    work = np.ones(len(users), np.int64)
    for_each_block(work, lambda block: _unpack(block, users, *packed, low, out))
    return out
