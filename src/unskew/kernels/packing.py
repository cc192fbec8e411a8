"""One small table per user in half the memory: 16 bits an entry, a scale per user and few entries.

Tables that differ little from a common one are kept as their differences from it, cut into groups
of 64 columns; a group's entries are multiples of its largest over 32,767, and what is lost at most
1.6e-5 of the largest difference in the group. Two entries share an int32, the type that files have.
Tables end with a whole group, because loops whose length the compiler knows are much faster.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._line_sums import WIDTH
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.types import Float32, Int16, Int32, Int64, Ragged

GROUP = WIDTH
"""Columns packed with one scale: as many as are added up together."""
_MOST = 32767.0
_WHOLE = np.float32(1.5 * 2**23)


class Packed(NamedTuple):
    entries: Int32
    scale: Float32


def empty_packed(n_users: int, columns: int) -> Packed:
    """All differences zero."""
    groups = -(-columns // GROUP)
    entries = np.zeros((n_users, groups * GROUP // 2), np.int32)
    return Packed(entries, np.zeros((n_users, groups), np.float32))


@jit
def _largest(values: Float32) -> np.float32:
    """The largest size of a group's entry; as whole numbers, whose order is the same: LLVM may not
    re-order a chain of float maxima."""
    bits = values.view(np.int32)
    largest = np.int32(0)
    for k in range(GROUP):
        largest = max(largest, bits[k] & np.int32(0x7FFFFFFF))
    return np.int32(largest).view(np.float32)


@jit
def pack_group(values: Float32, target: Int16) -> np.float32:
    """One group's entries into ``target``; returns their scale."""
    step = _largest(values) / np.float32(_MOST)
    back = np.float32(1.0) / step if step > 0 else np.float32(0.0)
    for k in range(GROUP):
        # Adding and taking away 1.5 x 2^23 rounds to the nearest whole number.
        target[k] = np.int16((values[k] * back + _WHOLE) - _WHOLE)
    return step


@jit
def _pack(block: Int64, users: Int64, values: Float32, packed: Packed) -> None:
    own = np.zeros(GROUP, np.float32)
    for c in block:
        entries = packed.entries[users[c]].view(np.int16)
        for first in range(0, values.shape[1], GROUP):
            n = min(GROUP, values.shape[1] - first)
            own[:n], own[n:] = values[c, first : first + n], np.float32(0.0)
            scale = pack_group(own, entries[first : first + GROUP])
            packed.scale[users[c], first // GROUP] = scale


@jit
def unpack_columns(user: int, low: int, packed: Packed, by: float, out: Float32) -> None:
    """``by`` times one user's columns from ``low`` on."""
    narrow, high = packed.entries[user].view(np.int16), low + len(out)
    for group in range(low // GROUP, (high - 1) // GROUP + 1):
        first = max(group * GROUP, low)
        source = narrow[first : min((group + 1) * GROUP, high)]
        target, step = out[first - low :], packed.scale[user, group] * np.float32(by)
        if len(source) == GROUP:  # a length that the compiler knows
            for k in range(GROUP):
                target[k] = step * np.float32(source[k])
        else:
            for k in range(len(source)):
                target[k] = step * np.float32(source[k])


@jit
def _unpack(block: Int64, users: Int64, low: int, packed: Packed, out: Float32) -> None:
    for c in block:
        unpack_columns(users[c], low, packed, 1.0, out[c])


@jit
def _unpack_rows(block: Int64, users: Int64, rows: Ragged, packed: Packed, out: Float32) -> None:
    width = out.shape[1]
    for c in block:
        narrow, scale = packed.entries[users[c]].view(np.int16), packed.scale[users[c]]
        for j in range(rows.indptr[c], rows.indptr[c + 1]):
            at, row = rows.items[j] * width, out[j]
            if at // GROUP != (at + width - 1) // GROUP:
                unpack_columns(users[c], at, packed, 1.0, row)
                continue
            source, step = narrow[at : at + width], scale[at // GROUP]
            for k in range(width):
                row[k] = step * np.float32(source[k])


def unpack(packed: Packed, users: Int64, low: int, high: int) -> Float32:
    """Columns ``low`` to ``high`` of these users' tables."""
    out = np.empty((len(users), high - low), np.float32)
    in_parallel(len(users), _unpack, users, low, packed, out)
    return out


def unpack_rows(packed: Packed, users: Int64, rows: Ragged, width: int) -> Float32:
    """Some rows of each of these users' tables, which have ``width`` columns; newcomers, whose
    numbers are past the last table's, are given rows of that one."""
    known = np.minimum(users, len(packed.entries) - 1)
    out = np.empty((len(rows.items), width), np.float32)
    for_each_block(rows.counts(), lambda block: _unpack_rows(block, known, rows, packed, out))
    return out


def pack(users: Int64, values: Float32, packed: Packed) -> None:
    """Put these users' whole flat tables in place."""
    in_parallel(len(users), _pack, users, values, packed)


def packed_from(values: Float32) -> Packed:
    """Whole flat tables, packed."""
    packed = empty_packed(*values.shape)
    pack(np.arange(len(values)), values, packed)
    return packed
