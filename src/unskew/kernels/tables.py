"""Item tables, and the rows in which a client's table differs: overlay, merge and score."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.kernels.vectors import inner
from unskew.ragged import indptr_from_counts
from unskew.types import Float32, Float64, Int64, Ragged, Rows

_TILE_ITEMS = 512
"""Items scored at a time: their table fits the processor's cache while all clients use it."""


@jit
def _overlay(block: Int64, touched: Ragged, held: Rows, out: Float32) -> None:
    for c in block:
        s, s_end = held.indptr[c], held.indptr[c + 1]
        j, j_end = touched.indptr[c], touched.indptr[c + 1]
        # Steps of 0 or 1 instead of branches, which the processor could not predict.
        while s < s_end and j < j_end:
            x, y = held.items[s], touched.items[j]
            if x == y:
                for k in range(out.shape[1]):
                    out[j, k] = held.values[s, k]
            s += x <= y
            j += y <= x


def overlay(base: Float32, touched: Ragged, held: Rows) -> Float32:
    """Replace rows of ``base``, which has a row per touched item of each client, by the client's
    row in ``held`` where there is one. Changes and returns ``base``."""
    for_each_block(touched.counts(), _overlay, touched, held, base)
    return base


@jit
def _count_union(held: Rows, new: Rows, counts: Int64) -> None:
    for c in range(len(counts)):
        a, b, n = held.indptr[c], new.indptr[c], 0
        a_end, b_end = held.indptr[c + 1], new.indptr[c + 1]
        while a < a_end and b < b_end:
            x, y = held.items[a], new.items[b]
            a += x <= y
            b += y <= x
            n += 1
        counts[c] = n + (a_end - a) + (b_end - b)


@jit
def _merge(block: Int64, held: Rows, new: Rows, merged: Rows) -> None:
    items, values = merged.items, merged.values
    for c in block:
        a, b, out = held.indptr[c], new.indptr[c], merged.indptr[c]
        a_end, b_end = held.indptr[c + 1], new.indptr[c + 1]
        while a < a_end and b < b_end:
            x, y = held.items[a], new.items[b]
            items[out] = min(x, y)
            for k in range(values.shape[1]):
                old, fresh = held.values[a, k], new.values[b, k]
                values[out, k] = fresh if y <= x else old
            a += x <= y
            b += y <= x
            out += 1
        for rest in range(a_end - a):
            items[out + rest] = held.items[a + rest]
            values[out + rest] = held.values[a + rest]
        for rest in range(b_end - b):
            items[out + rest] = new.items[b + rest]
            values[out + rest] = new.values[b + rest]


def merge(held: Rows, new: Rows) -> Rows:
    """Each client's rows in ``held`` or ``new``; where both have an item, the row of ``new``."""
    counts = np.empty(len(held.indptr) - 1, np.int64)
    _count_union(held, new, counts)
    indptr = indptr_from_counts(counts)
    values = np.empty((indptr[-1], new.values.shape[1]), np.float32)
    merged = Rows(indptr, np.empty(indptr[-1], np.int32), values)
    for_each_block(counts, _merge, held, new, merged)
    return merged


def binary_matrix(lists: Ragged | Rows, n_columns: int) -> csr_array:
    """Sparse matrix with a row per user: 1 in the columns on the user's list, 0 elsewhere."""
    shape = (len(lists.indptr) - 1, n_columns)
    return csr_array((np.ones(len(lists.items), np.float32), lists.items, lists.indptr), shape)


def sparse_matrix(rows: Rows, n_columns: int) -> csr_array:
    """Sparse matrix with a row per user: the first value of each of the user's items in the item's
    column, 0 elsewhere."""
    shape = (len(rows.indptr) - 1, n_columns)
    return csr_array((rows.values[:, 0], rows.items, rows.indptr), shape)


@jit
def _transposed(rows: Float32) -> Float32:
    columns = np.empty((rows.shape[1], rows.shape[0]), np.float32)
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            columns[k, i] = rows[i, k]
    return columns


@jit
def _score_two(v: Float32, w: Float32, columns: Float32, for_v: Float32, for_w: Float32) -> None:
    """Inner products of two vectors with each column. Every sum is added up one entry after the
    other; reading four rows of ``columns`` at a time, for two vectors, only saves memory traffic.
    """
    for_v[:] = for_w[:] = np.float32(0.0)
    n, d = len(for_v), len(v)
    k = 0
    while k + 4 <= d:
        v0, v1, v2, v3 = v[k], v[k + 1], v[k + 2], v[k + 3]
        w0, w1, w2, w3 = w[k], w[k + 1], w[k + 2], w[k + 3]
        c0, c1, c2, c3 = columns[k], columns[k + 1], columns[k + 2], columns[k + 3]
        for i in range(n):
            for_v[i] = (((for_v[i] + v0 * c0[i]) + v1 * c1[i]) + v2 * c2[i]) + v3 * c3[i]
            for_w[i] = (((for_w[i] + w0 * c0[i]) + w1 * c1[i]) + w2 * c2[i]) + w3 * c3[i]
        k += 4
    while k < d:
        column, v0, w0 = columns[k], v[k], w[k]
        for i in range(n):
            for_v[i] += v0 * column[i]
            for_w[i] += w0 * column[i]
        k += 1


@jit
def _score_tiles(block: Int64, vectors: Float32, table: Float32, scores: Float32) -> None:
    n_users, unused = len(vectors), np.empty(_TILE_ITEMS, np.float32)
    for tile in block:
        low = tile * _TILE_ITEMS
        high = min(low + _TILE_ITEMS, len(table))
        columns = _transposed(table[low:high])
        for c in range(0, n_users, 2):
            second = min(c + 1, n_users - 1)
            out = scores[c + 1, low:high] if c < second else unused[: high - low]
            _score_two(vectors[c], vectors[second], columns, scores[c, low:high], out)


def score_table(vectors: Float32, table: Float32) -> Float32:
    """Inner product of each client's vector with every row of an item table. A client's scores do
    not depend on the other clients, to the bit, unlike those of a matrix library."""
    scores = np.empty((len(vectors), len(table)), np.float32)
    n_tiles = -(-len(table) // _TILE_ITEMS)
    vectors, table = np.ascontiguousarray(vectors), np.ascontiguousarray(table)
    in_parallel(n_tiles, _score_tiles, vectors, table, scores)
    return scores


@jit
def _score_rows(block: Int64, vectors: Float32, held: Rows, replace: bool, scores: Float32) -> None:
    for c in block:
        v = vectors[c]
        for j in range(held.indptr[c], held.indptr[c + 1]):
            z, item = inner(v, held.values[j], len(v)), held.items[j]
            scores[c, item] = z if replace else scores[c, item] + z


def replace_scores(scores: Float32, vectors: Float32, held: Rows) -> None:
    """Score items by the clients' own item rows in ``held``, in place of the scores there now."""
    for_each_block(np.diff(held.indptr), _score_rows, vectors, held, True, scores)


def add_scores(scores: Float32, vectors: Float32, held: Rows) -> None:
    """Add to ``scores``, in place, the inner products of each client's vector with its item rows,
    which are in ``held``."""
    for_each_block(np.diff(held.indptr), _score_rows, vectors, held, False, scores)


def score_items(vectors: Float32, table: Float32, held: Rows) -> Float32:
    """Scores of all items for each client, whose rows in ``held`` replace those of ``table``."""
    scores = score_table(vectors, table)
    replace_scores(scores, vectors, held)
    return scores


def orthonormal(S: Float64) -> Float32:
    """Orthonormal columns that span the columns of ``S``. Columns that depend linearly on others
    (up to the rounding of float32 uploads) become zero."""
    Q, R = np.linalg.qr(S)
    size = np.abs(np.diag(R))
    kept: Float64 = Q * (size > 1e-6 * size.max(initial=0))
    return kept.astype(np.float32)
