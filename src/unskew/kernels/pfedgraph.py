"""pFedGraph's server: similarities of clients' updates, mixing weights, and weighted means.

Similarities and means are products of matrices with one row per client. They are divided into tiles
of columns that stay in the cache, and every sum has one fixed order, whatever the number of
threads. A client's mixing weights are an exact Euclidean projection onto the probability simplex.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block
from unskew.kernels.vectors import inner
from unskew.ragged import concatenate, filter_entries, owners, select
from unskew.rng import stream, value
from unskew.types import Bool, Float32, Float64, Int64, Rows

_TILE_COLUMNS = 1024
"""Columns of the clients' updates processed at a time: few enough to stay in the cache."""


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


def dense_tables(rows: Rows, n_items: int) -> Float32:
    """Each client's rows as a whole item table (zero elsewhere), flattened to one row."""
    n, width = len(rows.indptr) - 1, rows.values.shape[1]
    out = np.zeros((n, n_items, width), np.float32)
    out[owners(rows.indptr), rows.items] = rows.values
    return out.reshape(n, n_items * width)


def gram(x: Float32) -> Float64:
    """Inner products of all pairs of rows of ``x``."""
    out = np.zeros((len(x), len(x)))
    for_each_block(np.arange(1, len(x) + 1), _gram, _TILE_COLUMNS, x, out)
    lower = np.tril(out, -1)
    return out + lower.T


def mix(weights: Float32, x: Float32) -> Float32:
    """Weighted sums of the rows of ``x``: row i of the result is sum_j weights_ij x_j."""
    out = np.empty((len(weights), x.shape[1]), np.float32)
    work = np.count_nonzero(weights, axis=1)
    for_each_block(work, _mix, _TILE_COLUMNS, weights, x, out)
    return out


def bernoulli_draws(seed: int, round: int, users: Int64, purpose: int, share: float) -> Bool:
    """Independent Bernoulli(``share``) draw for each user."""
    bits = [value(np.uint64(stream(seed, round, user, purpose)), 0) for user in users]
    return np.array([int(draw) < share * 2.0**64 for draw in bits], np.bool_)


def positions(users: Int64, known: Int64) -> Int64:
    """Position of each user in ``known``; -1 for users that are not in it."""
    where = {user: place for place, user in enumerate(known.tolist())}
    return np.array([where.get(user, -1) for user in users.tolist()], np.int64)


def replace_tables(held: Rows, place: Int64, given: Float32, start: Float32) -> Rows:
    """Each client's item rows: the whole table ``start`` + ``given[place]``, or, if its ``place``
    is -1 (the server has computed none for it), its rows in ``held``."""
    every = np.arange(len(start), dtype=np.int32)
    ends = np.array([0, len(start)])
    return concatenate(
        [
            select(held, np.array([c]))
            if at < 0
            else Rows(ends, every, start + given[at].reshape(start.shape))
            for c, at in enumerate(place.tolist())
        ]
    )


def sent_differences(held: Rows, sends: Bool, start: Float32) -> Rows:
    """Differences that clients upload: rows of ``held`` minus the same items' rows of ``start``.
    Clients whose ``sends`` is false have none."""
    sent = filter_entries(held, sends[owners(held.indptr)])
    return sent._replace(values=sent.values - start[sent.items])


@jit
def _project(block: Int64, points: Float64, out: Float64) -> None:
    n = points.shape[1]
    for c in block:
        v = points[c]
        kept, threshold = n + 1, -np.inf
        while True:
            total, above = 0.0, 0
            for j in range(n):
                if v[j] > threshold:
                    total += v[j]
                    above += 1
            if above == kept or above == 0:
                break
            kept, threshold = above, (total - 1.0) / above
        for j in range(n):
            out[c, j] = max(v[j] - threshold, 0.0)


def project_on_simplex(points: Float64) -> Float64:
    """Replace each row v by the nearest x with x >= 0 and sum x = 1 (Michelot 1986).

    x = max(v - t, 0) with the threshold t that makes the sum 1. Starting with all entries, t is set
    so that the entries above it sum to 1; it only rises, and stops once no entry drops out.
    """
    out = np.empty_like(points)
    work = np.full(len(points), points.shape[1], np.int64)
    for_each_block(work, _project, points, out)
    return out
