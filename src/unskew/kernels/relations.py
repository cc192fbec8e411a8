"""GPFedRec's server: who is far from whom, and the mean over those who are.

Clients' tables are never all unpacked: everything happens tile by tile, on the differences
y_u = (1 - f_u) (r_u - g) + what u trained, from the common table g, which keeps the small distances
between large tables exact. A tile's inner products are a matrix product of NumPy.

The sums over neighbours need no product. How far two clients are is nearly the sum of how far each
is from g, so that the sets of neighbours, ordered by size, are nearly nested: one differs from the
next by few clients, and a sum is the last one plus those who joined, less those who left. (Sets
that are not nested cost time, nothing else.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import for_each_block
from unskew.kernels.packing import TILE, Packed, empty_packed, pack, unpack
from unskew.types import Bool, Float32, Float64, Int32, Int64, Rows

_WIDE = 4 * TILE
"""Columns multiplied at a time: few enough to hold, enough that adding up the products is cheap."""
_STRIP = 64
"""Columns summed at a time: few enough that all clients' entries in them stay in the cache."""


@jit
def _add_rows(
    indptr: Int64,
    items: Int32,
    values: Float32,
    position: Int64,
    low: int,
    high: int,
    out: Float32,
) -> None:
    """Add the entries with columns in [low, high); ``position`` moves to each client's next row."""
    width = values.shape[1]
    for c in range(len(position)):
        j = position[c]
        while j < indptr[c + 1] and items[j] * width < high:
            at = items[j] * width
            for k in range(max(low - at, 0), min(high - at, width)):
                out[c, at + k - low] += values[j, k]
            if at + width > high:
                break
            j += 1
        position[c] = j


def _tiles(
    columns: int, width: int, packed: Packed, users: Int64, trained: Rows, factor: Float32
) -> Iterator[tuple[slice, Float32]]:
    """The clients' y_u, ``width`` columns at a time."""
    position = trained.indptr[:-1].copy()
    for low in range(0, columns, width):
        high = min(low + width, columns)
        y = unpack(packed, users, low, high)
        y *= (1 - factor)[:, None]
        _add_rows(*trained, position, low, high, y)
        yield slice(low, high), y


def distances(Q: Float32, packed: Packed, users: Int64, trained: Rows, factor: Float32) -> Float64:
    """All pairwise cosine distances of the clients' tables."""
    g = Q.reshape(-1)
    products = np.zeros((len(users), len(users)))
    along = np.zeros(len(users))
    for columns, y in _tiles(len(g), _WIDE, packed, users, trained, factor):
        products += y @ y.T
        along += y @ g[columns]
    wide = g.astype(np.float64)
    products += along[:, None]
    products += along[None, :] + wide @ wide
    sizes = np.sqrt(np.diag(products))
    products /= sizes[:, None]
    products /= -sizes[None, :]
    products += 1.0
    np.fill_diagonal(products, 0.0)
    return products


def neighbours(
    Q: Float32, packed: Packed, users: Int64, trained: Rows, factor: Float32, threshold: float
) -> Bool:
    """Whom each client listens to: those further away than ``threshold`` x the mean distance, or
    itself if there are none."""
    apart = distances(Q, packed, users, trained, factor)
    graph: Bool = apart > threshold * apart.mean()
    alone = np.flatnonzero(~graph.any(1))
    graph[alone, alone] = True
    return graph


@jit
def _sum_nested(
    block: Int64,
    order: Int64,
    indptr: Int64,
    changed: Int32,
    joins: Bool,
    size: Int64,
    y: Float32,
    out: Float32,
) -> None:
    strip = np.zeros((len(order), _STRIP), np.float32)
    total = np.zeros(_STRIP)
    for number in block:
        low = number * _STRIP
        n = min(_STRIP, y.shape[1] - low)
        strip[:, :n] = y[:, low : low + n]
        total[:] = 0.0
        for i in range(len(order)):
            for j in range(indptr[i], indptr[i + 1]):
                other = strip[changed[j]]
                if joins[j]:
                    for k in range(_STRIP):
                        total[k] += other[k]
                else:
                    for k in range(_STRIP):
                        total[k] -= other[k]
            for k in range(n):
                out[order[i], low + k] = total[k] / size[order[i]]


class _Nested(NamedTuple):
    """Sets of clients, each as its difference from the one before."""

    order: Int64
    indptr: Int64
    changed: Int32
    joins: Bool
    size: Int64


def _nest(graph: Bool) -> _Nested:
    size = graph.sum(1)
    order = np.argsort(size, kind="stable")
    before = np.zeros(graph.shape[1], np.bool_)
    changed, joins = [], []
    for client in order:
        changed.append(np.flatnonzero(graph[client] ^ before).astype(np.int32))
        before = graph[client]
        joins.append(before[changed[-1]])
    indptr = np.concatenate(([0], np.cumsum([len(part) for part in changed])))
    return _Nested(order, indptr, np.concatenate(changed), np.concatenate(joins), size)


def _means(nested: _Nested, y: Float32) -> Float32:
    """The mean of the lines of ``y`` over each client's neighbours; sums are double, so that what
    joins and leaves leaves nothing behind."""
    out = np.empty_like(y)
    strips = np.ones(-(-y.shape[1] // _STRIP), np.int64)
    for_each_block(strips, lambda block: _sum_nested(block, *nested, y, out))
    return out


def pass_messages(
    graph: Bool, Q: Float32, packed: Packed, users: Int64, trained: Rows, factor: Float32
) -> tuple[Float32, Packed]:
    """The next g and r_u: means over neighbours' tables, and the mean of those means.

    Clients outside the round keep their r_u.
    """
    g = Q.reshape(-1)
    away = np.setdiff1d(np.arange(len(packed.entries)), users)
    nested = _nest(graph)
    common, next_own = np.empty_like(g), empty_packed(len(packed.entries), len(g))
    for columns, y in _tiles(len(g), TILE, packed, users, trained, factor):
        mean = _means(nested, y)
        centre = mean.mean(0, dtype=np.float64).astype(np.float32)
        own = np.empty((len(packed.entries), y.shape[1]), np.float32)
        own[users] = mean
        own[away] = unpack(packed, away, columns.start, columns.stop)
        own -= centre
        common[columns] = g[columns] + centre
        pack(next_own, columns.start // TILE, own)
    return common.reshape(Q.shape), next_own
