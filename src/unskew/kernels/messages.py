"""GPFedRec's server: the mean of the tables of those a client listens to.

The sums need no product. How far two clients are is nearly the sum of how far each is from g, so
that with the clients in order, those who are far from most first, everyone's neighbours are nearly
the first few: a sum is a running one plus those who are missing, less those who are too many. (Sets
that are nothing like that cost time, nothing else.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._line_sums import sum_lines
from unskew.kernels.moved import Moved, columns_of_client
from unskew.kernels.packing import GROUP, Packed, empty_packed, pack, pack_group, unpack
from unskew.kernels.parallel import in_parallel
from unskew.types import Bool, Float32, Float64, Int16, Int32, Int64, Rows

_TILE = 16
"""Groups of columns that a thread works on at a time."""
_FEW = 64
"""Clients outside a round whose tables are unpacked at a time."""


class _Beginnings(NamedTuple):
    """Sets of clients, each as the beginning of one order and its exceptions. ``readers`` are the
    clients by the ``length`` of theirs; those to add stand from ``indptr[i]`` on, and those to take
    away from ``surplus[i]`` on, as places in the order. ``share`` is 1 / the size of each set, and
    ``weight`` what each client of the order counts in the mean of all means."""

    order: Int64
    readers: Int64
    length: Int64
    indptr: Int64
    surplus: Int64
    exceptions: Int32
    share: Float64
    weight: Float64


@jit
def _cut(
    block: Int64,
    graph: Bool,
    share: Float64,
    length: Int64,
    lacking: Int64,
    surplus: Int64,
    weight: Float64,
) -> None:
    """Which beginning is most like each line of the graph, and in how many places it is not. Those
    a client listens to are those who listen to it, so a line also tells what the client counts."""
    for c in block:
        more, most, members, shares = 0, 0, 0, 0.0
        for k in range(graph.shape[1]):
            more += 1 if graph[c, k] else -1
            members += graph[c, k]
            shares += share[k] if graph[c, k] else 0.0
            if more > most:
                most, length[c] = more, k + 1
        # Of the first ``length`` places, (length + most) / 2 are members.
        lacking[c] = members - (length[c] + most) // 2
        surplus[c] = (length[c] - most) // 2
        weight[c] = shares / len(graph)


@jit
def _list(
    block: Int64,
    graph: Bool,
    readers: Int64,
    length: Int64,
    indptr: Int64,
    surplus: Int64,
    exceptions: Int32,
) -> None:
    for i in block:
        line, add, take = graph[readers[i]], indptr[i], surplus[i]
        for k in range(len(line)):
            if k < length[i] and not line[k]:
                exceptions[take] = k
                take += 1
            elif k >= length[i] and line[k]:
                exceptions[add] = k
                add += 1


def _beginnings(graph: Bool) -> _Beginnings:
    n, size = len(graph), graph.sum(1)
    order = np.argsort(-size, kind="stable")
    lines = np.take(graph, order, axis=1)
    length, lacking, surplus = np.zeros((3, n), np.int64)
    weight = np.zeros(n)
    in_parallel(n, _cut, lines, 1 / size[order], length, lacking, surplus, weight)
    readers = np.argsort(length, kind="stable")
    length, lacking, surplus = length[readers], lacking[readers], surplus[readers]
    indptr = np.concatenate(([0], np.cumsum(lacking + surplus)))
    exceptions = np.empty(indptr[-1], np.int32)
    from_here = indptr[:-1] + lacking
    in_parallel(n, _list, lines, readers, length, indptr, from_here, exceptions)
    places = (order, readers, length, indptr, from_here, exceptions)
    return _Beginnings(*places, 1 / size[readers], weight[order])


@jit
def _positions(first: int, trained: Rows) -> Int64:
    """Where the rows of each client begin that do not end before column ``first``."""
    item = first // trained.values.shape[1]
    out = np.empty(len(trained.indptr) - 1, np.int64)
    for c in range(len(out)):
        low, high = trained.indptr[c], trained.indptr[c + 1]
        out[c] = low + np.searchsorted(trained.items[low:high], item)
    return out


@jit
def _mix(block: Int64, sets: _Beginnings, moved: Moved, step: Float32, packed: Packed) -> None:
    """Some columns of everything, a tile at a time: the mean of all means goes into ``step``, and
    what each client's mean is beyond it is packed. A client's part of a tile is read and written in
    one go: every other order waits for the memory."""
    n, columns = len(sets.order), _TILE * GROUP
    position = _positions(block[0] * columns, moved.trained)
    line, tile = np.empty(columns, np.float32), np.empty((_TILE, n, GROUP), np.float32)
    entries, scale = np.empty((n, columns), np.int16), np.empty((n, _TILE), np.float32)
    centre = np.empty(columns)
    for number in block:
        low = number * columns
        high = min(low + columns, len(step))
        line[high - low :] = 0.0
        for place in range(n):
            c = sets.order[place]
            position[c] = columns_of_client(c, moved, position[c], low, line[: high - low])
            for group in range(_TILE):
                target, source = tile[group, place], line[group * GROUP :]
                for k in range(GROUP):
                    target[k] = source[k]
        groups = -(-(high - low) // GROUP)
        for group in range(groups):
            _mix_group(sets, tile[group], group, centre, entries, scale)
        step[low:high] = centre[: high - low]
        for i in range(n):
            user = moved.users[sets.readers[i]]
            whole = packed.entries[user].view(np.int16)
            whole[low : low + groups * GROUP] = entries[i, : groups * GROUP]
            packed.scale[user, low // GROUP : low // GROUP + groups] = scale[i, :groups]


@jit
def _mix_group(
    sets: _Beginnings,
    y: Float32,
    group: int,
    centres: Float64,
    entries: Int16,
    scale: Float32,
) -> None:
    """One group of a tile's columns, clients in the order of ``sets``, readers in theirs."""
    first, end = group * GROUP, (group + 1) * GROUP
    centre = centres[first:end]
    total, mean = np.zeros(GROUP), np.empty(GROUP, np.float32)
    more, less = np.empty(GROUP, np.float32), np.empty(GROUP, np.float32)
    centre[:] = 0.0
    for place in range(len(y)):
        mine, by = y[place], sets.weight[place]
        for k in range(GROUP):
            centre[k] += by * mine[k]
    place = 0
    for i in range(len(y)):
        while place < sets.length[i]:
            mine = y[place]
            for k in range(GROUP):
                total[k] += mine[k]
            place += 1
        sum_lines(y, sets.exceptions, sets.indptr[i], sets.surplus[i], more)
        sum_lines(y, sets.exceptions, sets.surplus[i], sets.indptr[i + 1], less)
        by = sets.share[i]
        for k in range(GROUP):
            mean[k] = (total[k] + (more[k] - less[k])) * by - centre[k]
        scale[i, group] = pack_group(mean, entries[i, first:end])


def pass_messages(graph: Bool, Q: Float32, moved: Moved) -> tuple[Float32, Packed]:
    """The next g and r_u: means over neighbours' tables, and the mean of those means.

    Clients outside the round keep their r_u.
    """
    packed, step = moved.packed, np.zeros(Q.size, np.float32)
    next_packed = empty_packed(len(packed.entries), Q.size)
    tiles = -(-Q.size // (_TILE * GROUP))
    in_parallel(tiles, _mix, _beginnings(graph), moved, step, next_packed)
    away = np.setdiff1d(np.arange(len(packed.entries)), moved.users)
    for some in np.split(away, range(_FEW, len(away), _FEW)):
        pack(some, unpack(packed, some, 0, Q.size) - step, next_packed)
    return Q + step.reshape(Q.shape), next_packed
