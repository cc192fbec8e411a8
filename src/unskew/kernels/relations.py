"""GPFedRec's server: who is far from whom.

Clients' tables are never all unpacked: everything happens on the differences from the common table,
y_u = (1 - f_u) (r_u - g) + what u trained, which keeps the small distances between large tables
exact. With s_u the length of g + y_u, the cosine distance of two clients is above t if and only if

    y_u.y_v  <  (1 - t) s_u s_v - g.g - g.y_u - g.y_v.

Most of the y_u.y_v need not be worked out. An item is pushed along nearly the same direction e_i by
everybody, and y_u = a_u + z_u, its parts along the e_i and the rest, gives

    y_u.y_v  =  a_u.a_v + z_u.z_v,    |z_u.z_v|  <=  sum over i of |z_u,i| |z_v,i|.

The first is a product of matrices with one column per item, and the bound settles nearly every
pair, first by sixteen items together, then by single ones. What is left is compared in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import in_parallel
from unskew.kernels._vectors import inner
from unskew.kernels.packing import GROUP, Packed, unpack_columns
from unskew.types import Bool, Float32, Float64, Int64, Rows

_COARSE = 16
"""Items whose length the first bound looks at together."""
_SLACK = 1.0 + 1e-4
"""More than float32 can lose in the bound's sums."""
_ROUNDING = 1e-4
"""More than float32 can lose in a product of two clients, as a share of their lengths: what it says
depends on how the matrix library shares the work, what the graph says must not."""
_LOST = 4e-6
"""More than float32 can lose in the square of a length."""
_NEAR = 128
"""Clients with whom all others are compared at a time."""
_NARROW = 704
"""Columns compared at a time."""
_HELD = 2**25
"""Bytes of a tile, about."""
_PORTION = 1024
"""Pairs compared at a time."""
_TOGETHER = 64
"""Clients whose directions are added up one after another."""
_STEPS = 8
"""Of the power method."""
_SAMPLE = 32
"""Rows per item, about, from which the directions of the items are estimated."""


class Moved(NamedTuple):
    """How far the clients of a round are from g, in parts: r_u - g, what u trained, and f_u."""

    packed: Packed
    users: Int64
    trained: Rows
    factor: Float32

    def tiles(self, columns: int) -> Iterator[tuple[int, Float32]]:
        """Their y_u, a tile of columns at a time, with the first one's number; the memory of one
        tile serves for all. An odd number of groups, since lines whose lengths are powers of two
        would share a few places of the cache."""
        n, position = len(self.users), self.trained.indptr[:-1].copy()
        width = min((_HELD // (4 * n) // GROUP | 1) * GROUP, columns)
        held = np.empty(n * width, np.float32)
        for low in range(0, columns, width):
            high = min(low + width, columns)
            y = held[: n * (high - low)].reshape(n, high - low)
            in_parallel(n, _fill, self, position, low, y)
            yield low, y


@jit
def _columns(client: int, moved: Moved, position: int, low: int, out: Float32) -> int:
    """y_u from column ``low`` on. ``position`` is that of the first row u trained that does not end
    before it; the answer is the one to go on with."""
    trained, width, high = moved.trained, moved.trained.values.shape[1], low + len(out)
    rest = np.float32(1.0) - moved.factor[client]
    unpack_columns(moved.users[client], low, moved.packed, rest, out)
    while position < trained.indptr[client + 1]:
        at = trained.items[position] * width
        first, end = max(low - at, 0), min(high - at, width)
        target, row = out[at + first - low : at + end - low], trained.values[position, first:end]
        for k in range(len(target)):
            target[k] += row[k]
        if at + width > high:
            break
        position += 1
    return position


@jit
def _fill(block: Int64, moved: Moved, position: Int64, low: int, y: Float32) -> None:
    for c in block:
        position[c] = _columns(c, moved, position[c], low, y[c])


class _Measured(NamedTuple):
    """Of each client: its y_u along the items' directions, the length of what is beside them, by
    item and by ``_COARSE`` items, g.y_u, y_u.y_u, and sums of y_u / s_u by ``_TOGETHER`` clients,
    the same ones for any number of threads."""

    along: Float32
    beside: Float32
    coarse: Float32
    common: Float64
    square: Float64
    directions: Float64


@jit
def _measure(
    block: Int64, moved: Moved, g: Float32, square: float, e: Float32, out: _Measured
) -> None:
    y, (n_items, width) = np.empty(len(g), np.float32), e.shape
    for some in block:
        total = out.directions[some]
        for c in range(some * _TOGETHER, min((some + 1) * _TOGETHER, len(out.square))):
            _columns(c, moved, moved.trained.indptr[c], 0, y)
            coarse = out.coarse[c]
            for i in range(n_items):
                mine = y[i * width : (i + 1) * width]
                length, along = inner(mine, mine, width), inner(mine, e[i], width)
                beside = max(length - along * along, 0.0) + _LOST * length
                out.along[c, i], out.beside[c, i] = along, np.sqrt(beside)
                coarse[i // _COARSE] += beside
                out.square[c] += length
            for b in range(len(coarse)):
                coarse[b] = np.sqrt(coarse[b])
            for low in range(0, len(g), _NARROW):
                n = min(_NARROW, len(g) - low)
                out.common[c] += inner(y[low : low + n], g[low : low + n], n)
            by = 1 / np.sqrt(square + 2 * out.common[c] + out.square[c])
            for k in range(len(g)):
                total[k] += y[k] * by


def _directions(trained: Rows, n_items: int) -> Float32:
    """Of length 1, one per item, near to the one most rows of the item lie along: what a step of
    the power method makes of what some steps find for the rows of all items. (Any will do; these
    settle most pairs.)"""
    rows = slice(None, None, max(len(trained.items) // (_SAMPLE * n_items), 1))
    items, values = trained.items[rows], trained.values[rows]
    square = values.T @ values
    most = square[square.diagonal().argmax()]
    for _ in range(_STEPS):
        most = _unit(square @ most)
    pulls = (values * (values @ most)[:, None]).T
    sums = np.stack([np.bincount(items, pull, n_items) for pull in pulls], 1)
    found: Float64 = _unit(sums)
    return np.where(np.any(found, 1, keepdims=True), found, most).astype(np.float32)


def _unit(x: Any) -> Any:
    """The same direction, of length 1; zeros stay zeros."""
    length = np.sqrt(np.sum(x**2, -1, keepdims=True))
    return x / np.where(length > 0, length, 1)


class _Far(NamedTuple):
    """When two clients are far from each other: the product of their y is below
    keep s_u s_v - base_u - base_v. And how long the y are."""

    keep: float
    size: Float64
    base: Float64
    length: Float64


@jit
def _limit(u: Any, v: Any, far: _Far) -> Any:
    """Of one pair or of many."""
    return far.keep * far.size[u] * far.size[v] - far.base[u] - far.base[v]


@jit
def _settle(
    block: Int64,
    first: int,
    far: _Far,
    products: Float32,
    bound: Float32,
    graph: Bool,
    unsettled: Bool,
) -> None:
    for i in block:
        u = first + i
        for v in range(u):
            below = _limit(u, v, far) - products[i, v]
            lost = _SLACK * bound[i, v] + _ROUNDING * far.length[u] * far.length[v]
            graph[u, v] = below > 0
            unsettled[i, v] = abs(below) <= lost


@jit
def _compare(block: Int64, pairs: Int64, y: Float32, products: Float64) -> None:
    for portion in block:
        some = range(portion * _PORTION, min((portion + 1) * _PORTION, len(pairs)))
        for low in range(0, y.shape[1], _NARROW):
            n = min(_NARROW, y.shape[1] - low)
            for i in some:
                u, v = pairs[i, 0], pairs[i, 1]
                products[i] += inner(y[u, low : low + n], y[v, low : low + n], n)


def _add_products(pairs: Int64, y: Float32, products: Float64) -> None:
    in_parallel(-(-len(pairs) // _PORTION), _compare, pairs, y, products)


def _lost(pairs: Int64, beside: Float32, length: Float64) -> Float64:
    """How much of a pair's product its parts along the directions may leave out."""
    bound, (u, v) = np.zeros(len(pairs)), pairs.T
    _add_products(pairs, beside, bound)
    lost: Float64 = _SLACK * bound + _ROUNDING * length[u] * length[v]
    return lost


def neighbours(Q: Float32, moved: Moved, threshold: float) -> Bool:
    """Whom each client listens to: those further away than ``threshold`` x the mean distance, or
    itself if there are none."""
    g, n = Q.reshape(-1), len(moved.users)
    square = float(np.sum(g.astype(np.float64) ** 2))
    m = _measured(Q, square, moved)
    size, length = np.sqrt(square + 2 * m.common + m.square), np.sqrt(m.square)
    directions = g * np.sum(1 / size) + m.directions.sum(0)
    # The cosines of all pairs, each client with itself too, add up to |sum of directions|^2.
    farthest = threshold * (1 - float(np.sum(directions**2)) / n**2)
    far = _Far(1 - farthest, size, m.common + square / 2, length)

    graph, left = np.zeros((n, n), np.bool_), []
    for first in range(0, n, _NEAR):
        end = min(first + _NEAR, n)
        products, bound = (x[first:end] @ x[:end].T for x in (m.along, m.coarse))
        unsettled = np.zeros(products.shape, np.bool_)
        in_parallel(end - first, _settle, first, far, products, bound, graph, unsettled)
        # Ordered by v: the lines of the few u stay in the cache, those of the v pass by in turn.
        v, u = np.nonzero(unsettled.T)
        below = _limit(first + u, v, far) - products[u, v]
        some = np.stack((first + u, v), 1)
        left.append(some[np.abs(below) <= _lost(some, m.beside, length)])
    pairs = np.concatenate(left)
    exact = np.zeros(len(pairs))
    for _, y in moved.tiles(len(g)):
        _add_products(pairs, y, exact)
    u, v = pairs.T
    graph[u, v] = exact < _limit(u, v, far)
    graph |= graph.T
    alone = np.flatnonzero(~graph.any(1))
    graph[alone, alone] = True
    return graph


def _measured(Q: Float32, square: float, moved: Moved) -> _Measured:
    n, n_items = len(moved.users), len(Q)
    parts = np.zeros((-(-n // _TOGETHER), Q.size))
    along, beside = np.zeros((2, n, n_items), np.float32)
    coarse = np.zeros((n, -(-n_items // _COARSE)), np.float32)
    out = _Measured(along, beside, coarse, np.zeros(n), np.zeros(n), parts)
    e = _directions(moved.trained, n_items)
    in_parallel(len(parts), _measure, moved, Q.reshape(-1), square, e, out)
    return out
