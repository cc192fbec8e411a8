"""GPFedRec's server: the mean of the tables of those a client listens to.

The sums need no product. How far two clients are is nearly the sum of how far each is from g, so
that the sets of neighbours, ordered by size, are nearly nested: one differs from the next by few
clients, and a sum is the last one plus those who joined, less those who left. (Sets that are not
nested cost time, nothing else.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import in_parallel
from unskew.kernels.packing import GROUP, Packed, empty_packed, pack_group, unpack_columns
from unskew.kernels.relations import Moved
from unskew.types import Bool, Float32, Float64, Int32, Int64


class _Nested(NamedTuple):
    """Sets of clients, each as its difference from the one before: those who join, from
    ``indptr[i]``, and from ``leaves[i]`` on those who leave."""

    order: Int64
    indptr: Int64
    leaves: Int64
    changed: Int32
    size: Int64


def _nest(graph: Bool) -> _Nested:
    size = graph.sum(1)
    order = np.argsort(size, kind="stable")
    before = np.zeros(graph.shape[1], np.bool_)
    changed, joined = [], []
    for client in order:
        joins, left = graph[client] & ~before, before & ~graph[client]
        changed.append(np.concatenate((np.flatnonzero(joins), np.flatnonzero(left))))
        joined.append(np.count_nonzero(joins))
        before = graph[client]
    indptr = np.concatenate(([0], np.cumsum([len(part) for part in changed])))
    leaves = indptr[:-1] + np.array(joined)
    return _Nested(order, indptr, leaves, np.concatenate(changed).astype(np.int32), size)


@jit
def _sum_nested(nested: _Nested, share: Float64, y: Float32, means: Float32) -> None:
    """The mean of the lines of ``y`` over each client's neighbours. What changes is summed in
    float32, all the rest in double, so that what joins and leaves leaves nothing behind."""
    width = y.shape[1]
    change, total = np.zeros(width, np.float32), np.zeros(width)
    for i in range(len(nested.order)):
        client = nested.order[i]
        change[:] = 0.0
        for j in range(nested.indptr[i], nested.leaves[i]):
            other = y[nested.changed[j]]
            for k in range(width):
                change[k] += other[k]
        for j in range(nested.leaves[i], nested.indptr[i + 1]):
            other = y[nested.changed[j]]
            for k in range(width):
                change[k] -= other[k]
        mine, by = means[client], share[client]
        for k in range(width):
            total[k] += change[k]
            mine[k] = total[k] * by


@jit
def _pass_group(
    block: Int64,
    nested: _Nested,
    low: int,
    y: Float32,
    users: Int64,
    away: Int64,
    g: Float32,
    packed: Packed,
    next_packed: Packed,
) -> None:
    """The next g and r_u in some groups of a tile's columns; ``g`` is changed."""
    share = 1.0 / nested.size
    mine = np.zeros((len(users), GROUP), np.float32)
    means = np.zeros_like(mine)
    centre, own = np.zeros(GROUP), np.zeros(GROUP, np.float32)
    for number in block:
        first = number * GROUP
        n = min(GROUP, y.shape[1] - first)
        group = (low + first) // GROUP
        for c in range(len(users)):
            source, target = y[c, first : first + n], mine[c]
            for k in range(n):
                target[k] = source[k]
        _sum_nested(nested, share, mine, means)
        centre[:] = 0.0
        for c in range(len(users)):
            for k in range(n):
                centre[k] += means[c, k]
        step = (centre / len(users)).astype(np.float32)
        for k in range(n):
            g[low + first + k] += step[k]
        for c in range(len(users)):
            for k in range(n):
                means[c, k] -= step[k]
            pack_group(means[c, :n], users[c], group, next_packed)
        for user in away:
            unpack_columns(user, low + first, packed, own[:n])
            for k in range(n):
                own[k] -= step[k]
            pack_group(own[:n], user, group, next_packed)


def pass_messages(graph: Bool, Q: Float32, moved: Moved) -> tuple[Float32, Packed]:
    """The next g and r_u: means over neighbours' tables, and the mean of those means.

    Clients outside the round keep their r_u.
    """
    g, packed, users = Q.reshape(-1).copy(), moved.packed, moved.users
    away = np.setdiff1d(np.arange(len(packed.entries)), users)
    nested, next_packed = _nest(graph), empty_packed(len(packed.entries), len(g))
    for low, y in moved.tiles(len(g)):
        groups = -(-y.shape[1] // GROUP)
        in_parallel(groups, _pass_group, nested, low, y, users, away, g, packed, next_packed)
    return g.reshape(Q.shape), next_packed
