"""GPFedRec's server: who is far from whom.

Clients' tables are never all unpacked: everything happens tile by tile, on the differences
y_u = (1 - f_u) (r_u - g) + what u trained, from the common table g, which keeps the small distances
between large tables exact.

Nor are all pairs compared. With s_u the length of g + y_u, the cosine distance of two clients is
above t if and only if

    y_u.y_v  <  (1 - t) s_u s_v - g.g - g.y_u - g.y_v,

and |y_u.y_v| is at most the sum of |y_u,b| |y_v,b| over any cut of the columns into cells b. That
bound, one product of matrices with a column per cell, decides most pairs, because clients have
trained different items; only for the others is y_u.y_v worked out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import in_parallel
from unskew.kernels._vectors import inner
from unskew.kernels.packing import Packed, unpack_columns
from unskew.types import Bool, Float32, Float64, Int64, Rows

_CELL = 16
"""Columns whose length the bound looks at together."""
_SLACK = 1.0 + 1e-4
"""More than float32 can lose in the bound's sums."""
_ROUNDING = 1e-4
"""More than a tile's float32 product can lose, as a share of the two lengths: what it says depends
on how the matrix library shares the work, what the graph says must not."""
_NEAR = 128
"""Clients whose columns stay in the cache while others are compared with them."""
_NARROW = 1024
"""Columns compared at a time: whole cells, and whole groups of packed ones."""
_HELD = 2**25
"""Bytes of a tile, about."""
_MANY = 0.1
"""Share of all ordered pairs from which on one product of matrices is faster than single ones."""
_PORTION = 4096
"""Pairs compared at a time."""


class Moved(NamedTuple):
    """How far the clients of a round are from g, in parts: r_u - g, what u trained, and f_u."""

    packed: Packed
    users: Int64
    trained: Rows
    factor: Float32

    def tiles(self, columns: int) -> Iterator[tuple[int, Float32]]:
        """Their y_u, a tile of columns at a time, with the first one's number; the memory of one
        tile serves for all."""
        n, position = len(self.users), self.trained.indptr[:-1].copy()
        width = min(max(_HELD // (4 * n) // _NARROW, 1) * _NARROW, columns)
        held = np.empty(n * width, np.float32)
        for low in range(0, columns, width):
            high = min(low + width, columns)
            y = held[: n * (high - low)].reshape(n, high - low)
            in_parallel(n, _fill, *self, position, low, y)
            yield low, y


@jit
def _fill(
    block: Int64,
    packed: Packed,
    users: Int64,
    trained: Rows,
    factor: Float32,
    position: Int64,
    low: int,
    y: Float32,
) -> None:
    """(1 - f_u) (r_u - g) + what u trained; ``position`` moves to each client's next row."""
    width, high = trained.values.shape[1], low + y.shape[1]
    for c in block:
        unpack_columns(users[c], low, packed, y[c])
        rest = np.float32(1.0) - factor[c]
        for k in range(y.shape[1]):
            y[c, k] *= rest
        j = position[c]
        while j < trained.indptr[c + 1] and trained.items[j] * width < high:
            at = trained.items[j] * width
            for k in range(max(low - at, 0), min(high - at, width)):
                y[c, at + k - low] += trained.values[j, k]
            if at + width > high:
                break
            j += 1
        position[c] = j


@jit
def _measure(
    block: Int64, low: int, y: Float32, g: Float32, cells: Float32, along: Float64, square: Float64
) -> None:
    for c in block:
        for first in range(0, y.shape[1], _CELL):
            n = min(_CELL, y.shape[1] - first)
            mine = y[c, first : first + n]
            length = inner(mine, mine, n)
            cells[c, (low + first) // _CELL] = np.sqrt(length)
            square[c] += length
            along[c] += inner(mine, g[low + first : low + first + n], n)


@jit
def _add_directions(block: Int64, low: int, y: Float32, share: Float64, total: Float64) -> None:
    """Add up the y_u / s_u."""
    for strip in block:
        first, end = strip * _NARROW, min((strip + 1) * _NARROW, y.shape[1])
        sums = total[low + first : low + end]
        for c in range(len(y)):
            mine, by = y[c, first:end], share[c]
            for k in range(len(sums)):
                sums[k] += mine[k] * by


@jit
def _compare(block: Int64, pairs: Int64, y: Float32, products: Float64) -> None:
    for portion in block:
        some = range(portion * _PORTION, min((portion + 1) * _PORTION, len(pairs)))
        for low in range(0, y.shape[1], _NARROW):
            n = min(_NARROW, y.shape[1] - low)
            for i in some:
                u, v = pairs[i, 0], pairs[i, 1]
                products[i] += inner(y[u, low : low + n], y[v, low : low + n], n)


def _all_products(moved: Moved, columns: int) -> Float64:
    products = np.zeros((len(moved.users), len(moved.users)))
    for _, y in moved.tiles(columns):
        products += y @ y.T
    return products


def neighbours(Q: Float32, moved: Moved, threshold: float) -> Bool:
    """Whom each client listens to: those further away than ``threshold`` x the mean distance, or
    itself if there are none."""
    g, n = Q.reshape(-1), len(moved.users)
    cells = np.zeros((n, -(-len(g) // _CELL)), np.float32)
    along, square = np.zeros(n), np.zeros(n)
    for low, y in moved.tiles(len(g)):
        in_parallel(n, _measure, low, y, g, cells, along, square)
    common = float(np.sum(g.astype(np.float64) ** 2))
    size = np.sqrt(common + 2 * along + square)
    directions = g.astype(np.float64) * np.sum(1 / size)
    for low, y in moved.tiles(len(g)):
        in_parallel(-(-y.shape[1] // _NARROW), _add_directions, low, y, 1 / size, directions)
    # The cosines of all pairs, each client with itself too, add up to |sum of directions|^2.
    farthest = threshold * (1 - float(directions @ directions) / n**2)

    def limit(u: Int64, v: Int64) -> Float64:
        products: Float64 = (1 - farthest) * size[u] * size[v]
        return products - (common + along[u] + along[v])

    graph = np.zeros((n, n), np.bool_)
    unsettled = [np.zeros((0, 2), np.int64)]
    for first in range(0, n, _NEAR):
        u, v = np.arange(first, n)[:, None], np.arange(first, min(first + _NEAR, n))[None, :]
        needed = limit(u, v)
        bound = cells[first:] @ cells[first : first + _NEAR].T
        graph[u, v] = (needed > 0) & (v < u)
        unsettled.append(np.argwhere((np.abs(needed) <= bound * _SLACK) & (v < u)) + first)
    pairs = np.concatenate(unsettled)
    if len(pairs) > _MANY * n * n:  # one product for all, and single ones where its roundings count
        everyone, length = np.arange(n), np.sqrt(square)
        below = limit(everyone[:, None], everyone) - _all_products(moved, len(g))
        graph = np.tril(below > 0, -1)
        near = np.abs(below) <= _ROUNDING * length[:, None] * length
        pairs = np.argwhere(np.tril(near, -1))
    products = np.zeros(len(pairs))
    for _, y in moved.tiles(len(g)):
        in_parallel(-(-len(pairs) // _PORTION), _compare, pairs, y, products)
    u, v = pairs.T
    graph[u, v] = products < limit(u, v)
    graph |= graph.T
    alone = np.flatnonzero(~graph.any(1))
    graph[alone, alone] = True
    return graph
