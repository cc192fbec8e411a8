"""What a server that tells clients apart does with their uploads: compare them all, mix them all.

Both are products of matrices with one row per client. They are cut into tiles of columns that stay
in the cache, and every sum runs in one fixed order, whatever the number of threads.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._parallel import for_each_block
from unskew.kernels._tables import gather
from unskew.kernels._vectors import inner
from unskew.kernels.packing import Packed, unpack
from unskew.rng import stream, value
from unskew.types import Bool, Float32, Float64, Int32, Int64, Ragged, Rows

_TILE = 1024


@jit
def _spread(block: Int64, indptr: Int64, items: Int32, values: Float32, out: Float32) -> None:
    width = values.shape[1]
    for c in block:
        for j in range(indptr[c], indptr[c + 1]):
            for k in range(width):
                out[c, items[j] * width + k] = values[j, k]


@jit
def _gram(block: Int64, tile: int, x: Float32, out: Float64) -> None:
    size = x.shape[1]
    for low in range(0, size, tile):
        n = min(tile, size - low)
        for i in block:
            mine = x[i, low : low + n]
            for j in range(i + 1):
                out[i, j] += inner(mine, x[j, low : low + n], n)


@jit
def _mix(block: Int64, tile: int, weights: Float32, x: Float32, out: Float32) -> None:
    size = x.shape[1]
    for low in range(0, size, tile):
        n = min(tile, size - low)
        for i in block:
            mine = out[i, low : low + n]
            mine[:] = 0.0
            for j in range(x.shape[0]):
                w = weights[i, j]
                if w != 0.0:
                    other = x[j, low : low + n]
                    for k in range(n):
                        mine[k] += w * other[k]


def spread(rows: Rows, n_items: int) -> Float32:
    """The clients' rows as flat tables, zero elsewhere: one line per client of a cohort."""
    counts = np.diff(rows.indptr)
    out = np.zeros((len(counts), n_items * rows.values.shape[1]), np.float32)
    for_each_block(counts, lambda block: _spread(block, *rows, out))
    return out


def gram(x: Float32) -> Float64:
    """All inner products of the lines of ``x``."""
    out = np.zeros((len(x), len(x)))
    for_each_block(np.arange(1, len(x) + 1), lambda block: _gram(block, _TILE, x, out))
    lower = np.tril(out, -1)
    return out + lower.T


def mix(weights: Float32, x: Float32) -> Float32:
    """sum_j weights_ij x_j for each line of weights."""
    out = np.empty((len(weights), x.shape[1]), np.float32)
    work = np.count_nonzero(weights, axis=1)
    for_each_block(work, lambda block: _mix(block, _TILE, weights, x, out))
    return out


def drawn(seed: int, round: int, users: Int64, purpose: int, share: float) -> Bool:
    """Which users a coin with this chance falls to, each by a coin of its own."""
    coins = [value(np.uint64(stream(seed, round, user, purpose)), 0) for user in users]
    return np.array([int(coin) < share * 2.0**64 for coin in coins], np.bool_)


def places(users: Int64, known: Int64) -> Int64:
    """Where each user stands in ``known``; -1 for those who do not."""
    where = {user: place for place, user in enumerate(known.tolist())}
    return np.array([where.get(user, -1) for user in users.tolist()], np.int64)


def replaced(held: Rows, place: Int64, given: Packed, start: Float32) -> Rows:
    """What clients hold, with the whole of ``start`` + ``given[place]`` instead for those whose
    place is not -1."""
    every, size = np.arange(len(start), dtype=np.int32), start.size
    items, values = [held.items[:0]], [held.values[:0]]
    for c in range(len(place)):
        run = slice(held.indptr[c], held.indptr[c + 1])
        if place[c] < 0:
            items.append(held.items[run])
            values.append(held.values[run])
        else:
            items.append(every)
            values.append(start + unpack(given, place[c : c + 1], 0, size).reshape(start.shape))
    indptr = np.cumsum([len(part) for part in items])
    return Rows(indptr.astype(np.int64), np.concatenate(items), np.concatenate(values))


def moved(held: Rows, sends: Bool, start: Float32) -> Rows:
    """How far the rows of those who send are from ``start``; nothing of the others."""
    counts = np.diff(held.indptr)
    kept = np.repeat(sends, counts)
    indptr, items = np.concatenate(([0], np.cumsum(counts * sends))), held.items[kept]
    return Rows(indptr, items, held.values[kept] - gather(start, Ragged(indptr, items)))


def senders(rows: Rows, sends: Bool) -> Rows:
    """The rows of those clients alone that send."""
    counts = np.diff(rows.indptr)
    kept = np.repeat(sends, counts)
    indptr = np.concatenate(([0], np.cumsum(counts[sends])))
    if kept.all():  # tables of a whole round are large: no copy without need
        return Rows(indptr, rows.items, rows.values)
    return Rows(indptr, rows.items[kept], rows.values[kept])


def every_row(base: Float32, tables: Float32, extra: Rows) -> Rows:
    """base + each client's own flat table + its extra rows, as rows that cover all items."""
    n, (n_items, width) = len(tables), base.shape
    values = tables + base.reshape(-1)
    client = np.repeat(np.arange(n), np.diff(extra.indptr))
    values = values.reshape(n, n_items, width)
    values[client, extra.items] += extra.values
    items = np.tile(np.arange(n_items, dtype=np.int32), n)
    return Rows(np.arange(n + 1, dtype=np.int64) * n_items, items, values.reshape(-1, width))
