"""Item tables and the sparse rows clients hold of them: gather, overlay, merge, sum and score."""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.kernels.vectors import inner
from unskew.types import Float32, Float64, Int32, Int64, Ragged, Rows, Upload, UploadSum


@jit
def _gather(block: Int64, indptr: Int64, items: Int32, table: Float32, out: Float32) -> None:
    for c in block:
        for j in range(indptr[c], indptr[c + 1]):
            for k in range(table.shape[1]):
                out[j, k] = table[items[j], k]


@jit
def _difference(
    block: Int64, indptr: Int64, items: Int32, values: Float32, table: Float32, out: Float32
) -> None:
    for c in block:
        for j in range(indptr[c], indptr[c + 1]):
            for k in range(table.shape[1]):
                out[j, k] = values[j, k] - table[items[j], k]


@jit
def _overlay(
    block: Int64,
    indptr: Int64,
    items: Int32,
    s_indptr: Int64,
    s_items: Int32,
    s_values: Float32,
    out: Float32,
) -> None:
    for c in block:
        s, s_end = s_indptr[c], s_indptr[c + 1]
        j, j_end = indptr[c], indptr[c + 1]
        # Steps of 0 or 1 instead of branches, which the processor could not predict.
        while s < s_end and j < j_end:
            x, y = s_items[s], items[j]
            if x == y:
                for k in range(out.shape[1]):
                    out[j, k] = s_values[s, k]
            s += x <= y
            j += y <= x


@jit
def _count_union(
    a_indptr: Int64, a_items: Int32, b_indptr: Int64, b_items: Int32, counts: Int64
) -> None:
    for c in range(len(counts)):
        a, b = a_indptr[c], b_indptr[c]
        n = 0
        while a < a_indptr[c + 1] and b < b_indptr[c + 1]:
            x, y = a_items[a], b_items[b]
            a += x <= y
            b += y <= x
            n += 1
        counts[c] = n + (a_indptr[c + 1] - a) + (b_indptr[c + 1] - b)


@jit
def _merge(
    block: Int64,
    a_indptr: Int64,
    a_items: Int32,
    a_values: Float32,
    b_indptr: Int64,
    b_items: Int32,
    b_values: Float32,
    indptr: Int64,
    items: Int32,
    values: Float32,
) -> None:
    for c in block:
        a, b = a_indptr[c], b_indptr[c]
        a_end, b_end = a_indptr[c + 1], b_indptr[c + 1]
        out = indptr[c]
        while a < a_end and b < b_end:
            x, y = a_items[a], b_items[b]
            items[out] = min(x, y)
            for k in range(values.shape[1]):
                held, new = a_values[a, k], b_values[b, k]
                values[out, k] = new if y <= x else held
            a += x <= y
            b += y <= x
            out += 1
        for rest in range(a_end - a):
            items[out + rest] = a_items[a + rest]
            values[out + rest] = a_values[a + rest]
        for rest in range(b_end - b):
            items[out + rest] = b_items[b + rest]
            values[out + rest] = b_values[b + rest]


@jit
def _fold(indptr: Int64, items: Int32, values: Float32, weight: Float64, total: Float64) -> None:
    for c in range(len(weight)):
        w = weight[c]
        for j in range(indptr[c], indptr[c + 1]):
            for k in range(values.shape[1]):
                total[items[j], k] += w * values[j, k]


@jit
def _score_table(block: Int64, vectors: Float32, columns: Float32, scores: Float32) -> None:
    n = columns.shape[1]
    for c in block:
        out = scores[c]
        out[:] = 0.0
        for k in range(columns.shape[0]):
            column = columns[k]
            v = vectors[c, k]
            for i in range(n):
                out[i] += v * column[i]


@jit
def _score_rows(
    block: Int64,
    vectors: Float32,
    indptr: Int64,
    items: Int32,
    values: Float32,
    replace: bool,
    scores: Float32,
) -> None:
    width = values.shape[1]
    for c in block:
        v = vectors[c]
        for j in range(indptr[c], indptr[c + 1]):
            z = inner(v, values[j], width)
            scores[c, items[j]] = z if replace else scores[c, items[j]] + z


def gather(table: Float32, touched: Ragged) -> Float32:
    """The rows of ``table`` that each client touches."""
    out = np.empty((len(touched.items), table.shape[1]), np.float32)
    for_each_block(touched.counts(), _gather, touched.indptr, touched.items, table, out)
    return out


def difference(rows: Rows, table: Float32) -> Rows:
    """The rows minus those of ``table``: the content of an upload."""
    out = np.empty_like(rows.values)
    for_each_block(np.diff(rows.indptr), _difference, *rows, table, out)
    return rows._replace(values=out)


def overlay(base: Float32, touched: Ragged, held: Rows) -> Float32:
    """Overwrite the touched rows in ``base``, in place, where a client holds its own."""
    for_each_block(touched.counts(), _overlay, touched.indptr, touched.items, *held, base)
    return base


def merge(held: Rows, new: Rows) -> Rows:
    """The rows a client holds with the new ones added; a new row replaces the old one."""
    counts = np.empty(len(held.indptr) - 1, np.int64)
    _count_union(held.indptr, held.items, new.indptr, new.items, counts)
    indptr = np.concatenate(([0], np.cumsum(counts)))
    items = np.empty(indptr[-1], np.int32)
    values = np.empty((indptr[-1], new.values.shape[1]), np.float32)
    for_each_block(counts, _merge, *held, *new, indptr, items, values)
    return Rows(indptr, items, values)


def empty_sum(n_items: int, upload: Upload) -> UploadSum:
    """A sum of no uploads, in the shape of ``upload``."""
    rows = np.zeros((n_items, upload.rows.values.shape[1]))
    return UploadSum(rows, np.zeros(upload.dense.shape[1]), 0.0, 0)


def fold(total: UploadSum, upload: Upload) -> UploadSum:
    """Add the clients' weighted uploads, one after another in cohort order.

    The order, and with it every rounding, does not depend on the chunks. The arrays of ``total``
    are changed in place.
    """
    _fold(*upload.rows, upload.weight, total.rows)
    if upload.dense.shape[1]:
        for weight, dense in zip(upload.weight, upload.dense, strict=True):
            total.dense[:] += weight * dense
    weight = total.weight
    for one in upload.weight.tolist():
        weight += one
    return UploadSum(total.rows, total.dense, weight, total.clients + len(upload.weight))


def score_table(vectors: Float32, table: Float32) -> Float32:
    """Inner product of each client's vector with every item."""
    scores = np.empty((len(vectors), len(table)), np.float32)
    columns = np.ascontiguousarray(table.T)
    in_parallel(len(vectors), _score_table, vectors, columns, scores)
    return scores


def replace_scores(scores: Float32, vectors: Float32, held: Rows) -> None:
    """Replace, in place, the scores of items whose rows a client holds itself."""
    counts = np.diff(held.indptr)
    for_each_block(counts, _score_rows, vectors, *held, True, scores)


def add_scores(scores: Float32, vectors: Float32, held: Rows) -> None:
    """Add, in place, the inner products with a client's own additive rows."""
    counts = np.diff(held.indptr)
    for_each_block(counts, _score_rows, vectors, *held, False, scores)
