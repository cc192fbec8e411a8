"""Item tables, and the rows in which a client's table differs: overlay, merge and score."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.kernels.vectors import inner
from unskew.ragged import indptr_from_counts
from unskew.types import Float32, Int64, Ragged, Rows


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
def _score_table(block: Int64, vectors: Float32, columns: Float32, scores: Float32) -> None:
    for c in block:
        out = scores[c]
        out[:] = 0.0
        for k in range(columns.shape[0]):
            column = columns[k]
            v = vectors[c, k]
            for i in range(len(out)):
                out[i] += v * column[i]


def score_table(vectors: Float32, table: Float32) -> Float32:
    """Inner product of each client's vector with every row of an item table."""
    scores = np.empty((len(vectors), len(table)), np.float32)
    columns = np.ascontiguousarray(table.T)
    in_parallel(len(vectors), _score_table, vectors, columns, scores)
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
