"""GPFedRec's server: join clients whose tables are far apart, and average over neighbours.

With g the common table, r_u what the server gave client u last, f_u the client's factor and t_u the
rows it trained, its table is g + y_u with

    y_u = (1 - f_u) (r_u - g) + t_u.

The r_u - g of all users are kept packed at 16 bits an entry, and the y_u are computed for some
columns of all clients at a time, so no float32 array of users x items x dim is ever made. All
comparisons and all means are products of matrices, cut in the same way for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.types import Bool, Float32, Float64, Int32, Int64, Ragged, Rows

_GROUP = 64
"""Columns that share one scale when packed."""
_MAX_ENTRY = np.float32(32767.0)
_TILE_COLUMNS = 8 * _GROUP
"""Columns of all clients that are worked on at a time."""
_ROWS_PER_PRODUCT = 256
"""Clients in one product of matrices."""


class Packed(NamedTuple):
    """Flat tables of many users: int16 multiples of a scale per user and group of columns.

    The error is at most 1.6e-5 of the largest entry of the group. Two entries share an int32, which
    is the type that saved models have.
    """

    entries: Int32
    scale: Float32


class RoundTables(NamedTuple):
    """What gives the y_u of a round's clients: all users' r_u - g, and the uploads."""

    packed: Packed
    users: Int64
    trained: Rows
    factor: Float32


def empty_packed(n_users: int, columns: int) -> Packed:
    """Tables of zeros, padded to a whole group."""
    groups = -(-columns // _GROUP)
    entries = np.zeros((n_users, groups * _GROUP // 2), np.int32)
    return Packed(entries, np.zeros((n_users, groups), np.float32))


@jit
def _pack(block: Int64, users: Int64, low: int, values: Float32, packed: Packed) -> None:
    for c in block:
        entries = packed.entries[users[c]].view(np.int16)
        for first in range(0, values.shape[1], _GROUP):
            group = values[c, first : first + _GROUP]
            step = np.max(np.abs(group)) / _MAX_ENTRY  # NaN stays NaN
            back = np.float32(1.0) / step if step > 0 else np.float32(0.0)
            packed.scale[users[c], (low + first) // _GROUP] = step
            for k in range(len(group)):
                entries[low + first + k] = np.int16(np.rint(group[k] * back))


@jit
def _unpack_row(packed: Packed, user: int, low: int, factor: float, out: Float32) -> None:
    """``factor`` times the user's columns from ``low`` on."""
    entries, scale = packed.entries[user].view(np.int16), packed.scale[user]
    by = np.float32(factor)
    for k in range(len(out)):
        out[k] = by * scale[(low + k) // _GROUP] * np.float32(entries[low + k])


@jit
def _unpack(block: Int64, users: Int64, low: int, packed: Packed, out: Float32) -> None:
    for c in block:
        _unpack_row(packed, users[c], low, 1.0, out[c])


@jit
def _unpack_rows(block: Int64, users: Int64, rows: Ragged, packed: Packed, out: Float32) -> None:
    for c in block:
        for j in range(rows.indptr[c], rows.indptr[c + 1]):
            _unpack_row(packed, users[c], rows.items[j] * out.shape[1], 1.0, out[j])


def pack(packed: Packed, users: Int64, low: int, values: Float32) -> None:
    """Store these users' columns from ``low`` on, where a group begins."""
    in_parallel(len(users), _pack, users, low, values, packed)


def pack_tables(values: Float32) -> Packed:
    """Whole flat tables, packed."""
    packed = empty_packed(*values.shape)
    pack(packed, np.arange(len(values)), 0, values)
    return packed


def unpack(packed: Packed, users: Int64, low: int, high: int) -> Float32:
    """Columns ``low`` to ``high`` of these users' tables."""
    out = np.empty((len(users), high - low), np.float32)
    in_parallel(len(users), _unpack, users, low, packed, out)
    return out


def unpack_rows(packed: Packed, users: Int64, rows: Ragged, width: int) -> Float32:
    """Some rows of each user's table of ``width`` columns; for users beyond the last table, rows of
    the last one."""
    known = np.minimum(users, len(packed.entries) - 1)
    out = np.empty((len(rows.items), width), np.float32)
    for_each_block(rows.counts(), _unpack_rows, known, rows, packed, out)
    return out


@jit
def _fill_tile(block: Int64, tables: RoundTables, low: int, y: Float32) -> None:
    """y_u from column ``low`` on."""
    trained, width = tables.trained, tables.trained.values.shape[1]
    columns = y.shape[1]
    for c in block:
        _unpack_row(tables.packed, tables.users[c], low, 1.0 - tables.factor[c], y[c])
        start, end = trained.indptr[c], trained.indptr[c + 1]
        start += np.searchsorted(trained.items[start:end], low // width)
        for j in range(start, end):
            at = trained.items[j] * width - low
            if at >= columns:
                break
            for k in range(max(-at, 0), min(columns - at, width)):
                y[c, at + k] += trained.values[j, k]


def _tiles(tables: RoundTables, columns: int) -> Iterator[tuple[int, Float32]]:
    """The first column and the y_u of all clients, tile by tile; each tile reuses the memory of the
    one before."""
    memory = np.empty(len(tables.users) * _TILE_COLUMNS, np.float32)
    for low in range(0, columns, _TILE_COLUMNS):
        size = min(_TILE_COLUMNS, columns - low)
        y = memory[: len(tables.users) * size].reshape(-1, size)
        in_parallel(len(y), _fill_tile, tables, low, y)
        yield low, y


def _for_row_blocks(n: int, function: Callable[[slice], None]) -> None:
    """Call ``function`` in parallel with slices that cover ``range(n)``.

    The slices do not depend on the number of threads and the matrix library is held to one thread
    per call, so that every product is computed in the same way for any number of threads.
    """

    def run(block: Int64) -> None:
        for number in block.tolist():
            function(slice(number * _ROWS_PER_PRODUCT, min((number + 1) * _ROWS_PER_PRODUCT, n)))

    with threadpool_limits(1, user_api="blas"):
        in_parallel(-(-n // _ROWS_PER_PRODUCT), run)


def distances(Q: Float32, tables: RoundTables) -> Float64:
    """Cosine distances of all pairs of the clients' tables, from y_u.y_v, g.y_u and g.g."""
    g, n = Q.reshape(-1), len(tables.users)
    products, along = np.zeros((n, n)), np.zeros(n)
    for low, y in _tiles(tables, len(g)):
        here = g[low : low + y.shape[1]].astype(np.float64)

        def add(rows: slice, y: Float32 = y, here: Float64 = here) -> None:
            products[rows, : rows.stop] += y[rows] @ y[: rows.stop].T
            along[rows] += y[rows] @ here

        _for_row_blocks(n, add)
    for u in range(n):
        products[:u, u] = products[u, :u]
    products += along[:, None]
    products += along[None, :] + np.sum(np.square(g, dtype=np.float64))
    sizes = np.sqrt(np.diag(products))
    products /= sizes[:, None]
    products /= -sizes[None, :]
    products += 1.0
    np.fill_diagonal(products, 0.0)
    return products


def neighbour_graph(Q: Float32, tables: RoundTables, threshold: float) -> Bool:
    """Each client's neighbours: the clients further away than ``threshold`` x the mean distance, or
    itself if there are none."""
    apart = distances(Q, tables)
    graph: Bool = apart > threshold * apart.mean()
    alone = np.flatnonzero(~graph.any(1))
    graph[alone, alone] = True
    return graph


def pass_messages(graph: Bool, Q: Float32, tables: RoundTables) -> tuple[Float32, Packed]:
    """The next g and packed r_u - g: r_u is the mean of u's neighbours' tables, g the mean of the
    round's r_u. Users outside the round keep their r_u."""
    packed, users = tables.packed, tables.users
    weights = graph.astype(np.float32)
    weights /= graph.sum(1, keepdims=True).astype(np.float32)
    away = np.setdiff1d(np.arange(len(packed.entries)), users)
    step, after = np.zeros(Q.size, np.float32), empty_packed(len(packed.entries), Q.size)
    for low, y in _tiles(tables, Q.size):
        high, means = low + y.shape[1], np.empty_like(y)

        def average(rows: slice, y: Float32 = y, means: Float32 = means) -> None:
            np.matmul(weights[rows], y, out=means[rows])

        _for_row_blocks(len(users), average)
        step[low:high] = means.mean(0, dtype=np.float64)
        pack(after, users, low, means - step[low:high])
        pack(after, away, low, unpack(packed, away, low, high) - step[low:high])
    return Q + step.reshape(Q.shape), after
