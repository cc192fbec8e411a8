"""One small table per user in half the memory: 16 bits an entry, a scale per user and few entries.

Tables that differ little from a common one are kept as their differences from it, cut into groups
of 64 columns; a group's entries are multiples of its largest over 32,767, and what is lost at most
1.6e-5 of the largest difference in the group. Two entries share an int32, the type that files have.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import for_each_block
from unskew.types import Float32, Int32, Int64

GROUP = 64
"""Columns packed with one scale; even, so that no two groups share an int32."""
TILE = 16 * GROUP
"""Columns to work on at a time."""
_MOST = 32767.0
_WHOLE = np.float32(1.5 * 2**23)
_LANES = 8


class Packed(NamedTuple):
    entries: Int32
    scale: Float32


def empty_packed(n_users: int, columns: int) -> Packed:
    """All differences zero."""
    groups = -(-columns // GROUP)
    halves = (columns + 1) // 2
    return Packed(np.zeros((n_users, halves), np.int32), np.zeros((n_users, groups), np.float32))


@jit
def _largest(values: Float32, lanes: Float32) -> np.float32:
    """The largest size of an entry; in lanes, since LLVM may not re-order a chain of maxima."""
    lanes[:] = 0.0
    whole = len(values) // _LANES * _LANES
    for first in range(0, whole, _LANES):
        some = values[first : first + _LANES]
        for lane in range(_LANES):
            size = abs(some[lane])
            lanes[lane] = size if size > lanes[lane] else lanes[lane]
    largest = np.float32(0.0)
    for lane in range(_LANES):
        largest = max(largest, lanes[lane])
    for k in range(whole, len(values)):
        largest = max(largest, abs(values[k]))
    return largest


@jit
def _pack(block: Int64, values: Float32, low: int, entries: Int32, scale: Float32) -> None:
    n = values.shape[1]
    lanes = np.empty(_LANES, np.float32)
    for u in block:
        narrow = entries[u].view(np.int16)
        for first in range(0, n, GROUP):
            mine = values[u, first : min(first + GROUP, n)]
            step = _largest(mine, lanes) / np.float32(_MOST)
            back = np.float32(1.0) / step if step > 0 else np.float32(0.0)
            scale[u, (low + first) // GROUP] = step
            target = narrow[low + first : low + first + len(mine)]
            for k in range(len(mine)):
                # Adding and taking away 1.5 x 2^23 rounds to the nearest whole number.
                target[k] = np.int16((mine[k] * back + _WHOLE) - _WHOLE)


@jit
def _unpack(
    block: Int64, users: Int64, entries: Int32, scale: Float32, low: int, out: Float32
) -> None:
    n = out.shape[1]
    for c in block:
        narrow = entries[users[c]].view(np.int16)
        for group in range(low // GROUP, (low + n - 1) // GROUP + 1):
            step = scale[users[c], group]
            first = max(group * GROUP, low)
            source = narrow[first : min((group + 1) * GROUP, low + n)]
            target = out[c, first - low :]
            for k in range(len(source)):
                target[k] = step * np.float32(source[k])


def pack(packed: Packed, tile: int, values: Float32) -> None:
    """Put all users' columns of one tile, in place."""
    work = np.ones(len(values), np.int64)
    for_each_block(work, lambda block: _pack(block, values, tile * TILE, *packed))


def unpack(packed: Packed, users: Int64, low: int, high: int) -> Float32:
    """Columns ``low`` to ``high`` of these users' tables."""
    out = np.empty((len(users), high - low), np.float32)
    work = np.ones(len(users), np.int64)
    for_each_block(work, lambda block: _unpack(block, users, *packed, low, out))
    return out


def packed_from(values: Float32) -> Packed:
    """Whole flat tables, packed."""
    packed = empty_packed(*values.shape)
    work = np.ones(len(values), np.int64)
    for_each_block(work, lambda block: _pack(block, values, 0, *packed))
    return packed
