"""GPFedRec's server: who is far from whom.

With y_u how far client u is from the common table g, and s_u the length of g + y_u, the cosine
distance of two clients is above t if and only if

    y_u.y_v  <  (1 - t) s_u s_v - g.g - g.y_u - g.y_v.

Most of the y_u.y_v need not be worked out. y_u = m_u + w_u, the few rows that u has changed much
and everything else, which for all clients lies near to the span of a few directions V (it is a mean
of many tables). With a_u and b_u the parts of m_u and w_u along V, and z_u = w_u - V b_u,

    y_u.y_v  =  m_u.m_v + (a_u + b_u).(a_v + b_v) - a_u.a_v  +  z_u.m_v + m_u.z_v + z_u.z_v.

m_u.m_v costs only the rows that both have changed, and the lengths bound the last three terms; that
settles all but one pair in a hundred or so. Of these w_u.m_v and m_u.w_v are worked out, which
leaves z_u.z_v to be bounded, and what is open then, a few pairs in a million, is compared in full.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._by_item import ByItem, by_item_of
from unskew.kernels._line_sums import BLOCK, multiply_blocks
from unskew.kernels.arithmetic import score_columns
from unskew.kernels.moved import Moved, Parts, everything_else, in_parts
from unskew.kernels.packing import unpack
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.kernels.row_vectors import inner_rows
from unskew.kernels.vectors import inner
from unskew.types import Bool, Float32, Float64, Int8, Int64, Rows

_DIRECTIONS = 8
_SAMPLE = 64
"""Clients from whose tables the directions are found."""
_ROUNDING = 3e-4
"""More than float32 can lose in a sum over a few thousand rows, as a share of the lengths."""
_PORTION = 64
"""Rows added up in float32 where less may be lost."""
_LITTLE = 1e-5
"""More than float32 can lose in so few."""
_NARROW = 1408
"""Columns multiplied at a time."""
_ABREAST = 4
"""Clients measured side by side."""
_TOGETHER = 64
"""Clients whose directions are added up one after another."""
_PAIRS = 1024
"""Pairs compared at a time."""
_CORNER = 64
"""Clients whose lines are copied to columns together."""
_OPEN = 2
"""In a graph: not known yet."""


class _Measured(NamedTuple):
    """Of each client: b_u, a_u, the squares of w_u, m_u and y_u, g.y_u, and sums of y_u / s_u by
    ``_TOGETHER`` clients, the same ones for any number of threads."""

    along: Float64
    changed_along: Float64
    else_square: Float64
    changed_square: Float64
    square: Float64
    common: Float64
    total: Float64


@jit
def _product(rows: Rows, client: int, table: Float32) -> float:
    """Of the rows the client has changed and a flat table."""
    result, end = 0.0, rows.indptr[client + 1]
    for first in range(rows.indptr[client], end, _PORTION):
        last = min(first + _PORTION, end)
        result += inner_rows(rows.values, rows.items, table, first, last)
    return result


@jit
def _add_rows(rows: Rows, client: int, table: Float32) -> None:
    width = rows.values.shape[1]
    for j in range(rows.indptr[client], rows.indptr[client + 1]):
        at, row = rows.items[j] * width, rows.values[j]
        for k in range(width):
            table[at + k] += row[k]


@jit
def _measure(
    block: Int64, parts: Parts, g: Float32, square: float, V: Float32, out: _Measured
) -> None:
    y, rows = np.empty((_ABREAST, len(g)), np.float32), parts.rows
    for some in block:
        total = out.total[some]
        last = min((some + 1) * _TOGETHER, len(out.square))
        for first in range(some * _TOGETHER, last, _ABREAST):
            clients = range(first, min(first + _ABREAST, last))
            for c in clients:
                everything_else(c, parts, y[c - first])
            for low in range(0, len(g), _NARROW):
                n = min(_NARROW, len(g) - low)
                for c in clients:
                    mine = y[c - first, low : low + n]
                    for k in range(len(V)):
                        out.along[c, k] += inner(mine, V[k, low : low + n], n)
                    out.common[c] += inner(mine, g[low : low + n], n)
                    out.else_square[c] += inner(mine, mine, n)
            for c in clients:
                mine = y[c - first]
                for k in range(len(V)):
                    out.changed_along[c, k] = _product(rows, c, V[k])
                out.common[c] += _product(rows, c, g)
                crossed = _product(rows, c, mine)
                for j in range(rows.indptr[c], rows.indptr[c + 1]):
                    row = rows.values[j]
                    out.changed_square[c] += inner(row, row, len(row))
                out.square[c] = out.else_square[c] + 2 * crossed + out.changed_square[c]
                _add_rows(rows, c, mine)
                by = 1 / np.sqrt(square + 2 * out.common[c] + out.square[c])
                for k in range(len(g)):
                    total[k] += mine[k] * by


def _directions(moved: Moved, columns: int) -> Float32:
    """Of length 1 and at right angles: those in which the tables of some clients lie most. (Any
    will do; these settle most pairs.)"""
    users = moved.users[:: -(-len(moved.users) // _SAMPLE)]
    tables = unpack(moved.packed, users, 0, columns)
    # Of tables that have diverged, too: the run goes on, and says at its end that they have.
    _, shares = np.linalg.eigh(np.nan_to_num(tables @ tables.T))
    most = tables.T @ shares[:, -_DIRECTIONS:]
    return np.ascontiguousarray(np.linalg.qr(most)[0].T)


class _Far(NamedTuple):
    """When two clients are far from each other: the product of their y is below
    keep s_u s_v - base_u - base_v. And the lengths of y_u, m_u and z_u."""

    keep: float
    size: Float64
    base: Float64
    length: Float64
    changed: Float64
    beside: Float64


@jit
def _limit(u: Any, v: Any, far: _Far) -> Any:
    """Of one pair or of many."""
    return far.keep * far.size[u] * far.size[v] - far.base[u] - far.base[v]


@jit
def _judge(
    u: int,
    products: Float32,
    size: Float64,
    base: Float64,
    length: Float64,
    changed: Float64,
    beside: Float64,
    keep: float,
    line: Int8,
) -> None:
    """Which clients before u are far from it, as far as that is certain. (The arrays of ``_Far``
    one by one: only then does the loop become vectors.)"""
    size_u, base_u, rounding = keep * size[u], base[u], _ROUNDING * length[u]
    changed_u, beside_u = changed[u], beside[u]
    for v in range(u):
        below = size_u * size[v] - base_u - base[v] - products[v]
        lost = beside_u * (changed[v] + beside[v]) + changed_u * beside[v] + rounding * length[v]
        line[v] = np.int8(_OPEN) if abs(below) <= lost else np.int8(below > 0)


@jit
def _settle(
    block: Int64, rows: Rows, by_item: ByItem, along: Float32, far: _Far, graph: Int8
) -> None:
    """Each client with those before it. ``along`` has a column a_u + b_u, a_u per client."""
    k, n = along.shape
    some, near = np.empty(n + BLOCK, np.float32), np.empty(n, np.float32)
    product, mine = np.empty(n, np.float32), np.empty(k, np.float32)
    for u in block:
        for i in range(k):
            mine[i] = along[i, u] if 2 * i < k else -along[i, u]
        score_columns(product, along, mine, u)
        near[:u] = 0.0
        for j in range(rows.indptr[u], rows.indptr[u + 1]):
            i, before = rows.items[j], by_item.place[j]
            first, start = by_item.indptr[i], by_item.blocks[i]
            end = start + -(-before // BLOCK)
            multiply_blocks(by_item.values, start, end, rows.values[j], some)
            who = by_item.who[first : first + before]
            for c in range(before):
                near[np.uint32(who[c])] += some[c]
        for v in range(u):
            near[v] += product[v]
        _judge(u, near, far.size, far.base, far.length, far.changed, far.beside, far.keep, graph[u])


@jit
def _cross(
    block: Int64, parts: Parts, indptr: Int64, others: Int64, columns: int, out: Float64
) -> None:
    """For each client and some others, those before it first: w_u.m_v for those after it, y_u.m_v
    for those before it, which together have every part of y_u.y_v but w_u.w_v."""
    y = np.empty(columns, np.float32)
    for u in block:
        if indptr[u] == indptr[u + 1]:
            continue
        everything_else(u, parts, y)
        whole = False
        for i in range(indptr[u + 1] - 1, indptr[u] - 1, -1):
            if others[i] < u and not whole:
                _add_rows(parts.rows, u, y)
                whole = True
            out[i] = _product(parts.rows, others[i], y)


def _crossed(pairs: Int64, parts: Parts, columns: int) -> Float64:
    """y_u.y_v - w_u.w_v of pairs."""
    both = np.concatenate((pairs, pairs[:, ::-1]))
    order = np.argsort(both[:, 0], kind="stable")
    counts = np.bincount(both[:, 0], minlength=len(parts.moved.users))
    indptr = np.concatenate(([0], np.cumsum(counts)))
    found, result = np.empty(len(both)), np.empty(len(both))
    arguments = (parts, indptr, both[order, 1], columns, found)
    for_each_block(counts, lambda block: _cross(block, *arguments))
    result[order] = found
    return result[: len(pairs)] + result[len(pairs) :]


@jit
def _compare(block: Int64, pairs: Int64, y: Float32, products: Float64) -> None:
    for portion in block:
        some = range(portion * _PAIRS, min((portion + 1) * _PAIRS, len(pairs)))
        for low in range(0, y.shape[1], _NARROW):
            n = min(_NARROW, y.shape[1] - low)
            for i in some:
                u, v = pairs[i, 0], pairs[i, 1]
                products[i] += inner(y[u, low : low + n], y[v, low : low + n], n)


def _compared(pairs: Int64, moved: Moved, columns: int) -> Float64:
    """y_u.y_v of pairs."""
    if len(pairs) == 0:
        return np.zeros(0)
    clients, places = np.unique(pairs, return_inverse=True)
    products, places = np.zeros(len(pairs)), places.reshape(pairs.shape)
    for y in moved.tiles(clients, columns):
        in_parallel(-(-len(pairs) // _PAIRS), _compare, places, y, products)
    return products


@jit
def _mirror(block: Int64, graph: Int8) -> None:
    """What stands below the diagonal, above it; by squares, which stay in the cache."""
    n = len(graph)
    for some in block:
        for first in range(0, (some + 1) * _CORNER, _CORNER):
            for u in range(some * _CORNER, min((some + 1) * _CORNER, n)):
                for v in range(first, min(first + _CORNER, u)):
                    graph[v, u] = graph[u, v]


def neighbours(Q: Float32, moved: Moved, threshold: float) -> Bool:
    """Whom each client listens to: those further away than ``threshold`` x the mean distance, or
    itself if there are none."""
    g, n, parts = Q.reshape(-1), len(moved.users), in_parts(moved)
    square = float(np.sum(g.astype(np.float64) ** 2))
    m = _measured(g, square, parts)
    size = np.sqrt(square + 2 * m.common + m.square)
    directions = g * np.sum(1 / size) + m.total.sum(0)
    # The cosines of all pairs, each client with itself too, add up to |sum of directions|^2.
    farthest = threshold * (1 - float(np.sum(directions**2)) / n**2)
    beside = np.maximum(m.else_square - np.sum(m.along**2, 1), 0) + _LITTLE * m.else_square
    lengths = (np.sqrt(x) for x in (m.square, m.changed_square, beside))
    far = _Far(1 - farthest, size, m.common + square / 2, *lengths)

    graph = np.zeros((n, n), np.int8)
    along = np.concatenate((m.along + m.changed_along, m.changed_along), 1).T.astype(np.float32)
    by_item = by_item_of(parts.rows, len(Q))
    arguments = (parts.rows, by_item, np.ascontiguousarray(along), far, graph)
    for_each_block(np.arange(1, n + 1), lambda block: _settle(block, *arguments))

    pairs = np.stack(np.divmod(np.flatnonzero(graph.ravel() == _OPEN), n), 1)
    u, v = pairs.T
    products = _crossed(pairs, parts, len(g)) + np.sum(m.along[u] * m.along[v], 1)
    lost = far.beside[u] * far.beside[v] + _LITTLE * far.length[u] * far.length[v]
    open_still = np.abs(_limit(u, v, far) - products) <= lost
    products[open_still] = _compared(pairs[open_still], moved, len(g))
    graph[u, v] = products < _limit(u, v, far)
    in_parallel(-(-n // _CORNER), _mirror, graph)
    known = graph.view(np.bool_)
    alone = np.flatnonzero(~known.any(1))
    known[alone, alone] = True
    return known


def _measured(g: Float32, square: float, parts: Parts) -> _Measured:
    n, V = len(parts.moved.users), _directions(parts.moved, len(g))
    total = np.zeros((-(-n // _TOGETHER), len(g)))
    along, changed_along = np.zeros((2, n, len(V)))
    else_square, changed_square, square_of, common = np.zeros((4, n))
    alongs, squares = (along, changed_along), (else_square, changed_square, square_of)
    out = _Measured(*alongs, *squares, common, total)
    in_parallel(len(total), _measure, parts, g, square, V, out)
    return out
