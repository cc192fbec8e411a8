"""Sums of uploads that do not depend on the order in which uploads are added, to the bit.

A float sum rounds after every addition, so it depends on who is added first. Here each product of a
value and its weight becomes two integers, a multiple of 2^-12 and the rest as a multiple of 2^-53:

    weight * value = whole 2^-12 + rest 2^-53,    |rest| <= 2^40.

Integer sums are exact. Products below 2^28 of at most 2^22 clients cannot overflow 64 bits; larger
ones are refused. Only the last step, from the two integers back to a float, rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.types import Float32, Float64, Int64, Rows, UnskewError, Upload, UploadSum

MAX_PRODUCT = 2.0**28
"""Products of a value and its weight must be smaller than this."""
MAX_CLIENTS = 2**22
"""Maximum number of uploads in a sum."""
_WHOLE, _REST = 2.0**12, 2.0**53
"""Factors that turn a product into its number of whole units, and the remainder into its rest."""


class ExactSum(NamedTuple):
    """Sum of weighted uploads so far. The first axis of the arrays has wholes, then rests."""

    rows: Int64
    dense: Int64
    weight: Int64
    clients: int
    finite: bool
    """False once an upload with NaN or infinity was added."""

    def result(self) -> UploadSum:
        """The sum as floats; all of them NaN if an upload was not finite."""
        rows, dense, weight = (
            _to_float(part) if self.finite else np.full(part.shape[1:], np.nan)
            for part in (self.rows, self.dense, self.weight)
        )
        return UploadSum(rows, dense, float(weight[0]), self.clients)


def empty_sum(n_items: int, width: int, n_dense: int) -> ExactSum:
    """A sum of zeros: item rows of ``width`` values, and dense parts of ``n_dense`` values."""
    rows, dense = np.zeros((2, n_items, width), np.int64), np.zeros((2, n_dense), np.int64)
    return ExactSum(rows, dense, np.zeros((2, 1), np.int64), 0, True)


def add_uploads(total: ExactSum | None, upload: Upload, n_items: int) -> ExactSum:
    """Add the clients' weighted uploads to ``total``, whose arrays are changed in place; None: to a
    sum of zeros."""
    rows, dense, weight = upload
    if total is None:
        total = empty_sum(n_items, rows.values.shape[1], dense.shape[1])
    return add_weighted(total, rows, dense, weight, weight)


def add_weighted(
    total: ExactSum, rows: Rows, dense: Float32, factors: Float64, weights: Float64
) -> ExactSum:
    """Add each client's rows and dense vector times its factor, and its weight. The arrays of
    ``total`` are changed in place."""
    clients = _check_clients(total.clients + len(factors))
    unfit = _add_rows(rows, factors, total.rows)
    unfit += _add_dense(dense, factors, total.dense)
    unfit += _add_dense(weights[:, None], np.ones(len(weights)), total.weight)
    finite = total.finite
    if unfit:
        finite = finite and _all_finite(rows.values, dense, factors, weights)
        if finite:
            raise UnskewError(
                f"An upload has a value that times its weight is {MAX_PRODUCT:.3g} or more; lower "
                "the learning rate, or scale uploads and weights down."
            )
    return ExactSum(total.rows, total.dense, total.weight, clients, finite)


def merge_sums(total: ExactSum, other: ExactSum) -> ExactSum:
    """Add the uploads in ``other`` to ``total``, whose arrays are changed in place."""
    clients = _check_clients(total.clients + other.clients)
    for mine, theirs in zip(total[:3], other[:3], strict=True):
        mine += theirs
    return ExactSum(*total[:3], clients, total.finite and other.finite)


def _check_clients(clients: int) -> int:
    """Return the number of uploads in a sum; raises an UnskewError if it could overflow."""
    if clients > MAX_CLIENTS:
        raise UnskewError(
            f"A sum of {clients:,} uploads is too long; at most {MAX_CLIENTS:,} clients can take "
            "part in a round: lower the participation."
        )
    return clients


def _to_float(part: Int64) -> Float64:
    values: Float64 = part[0] / _WHOLE
    values += part[1] / _REST
    return values


def _all_finite(*arrays: Float32 | Float64) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


@jit
def _add_row(values: Float32 | Float64, factor: float, whole: Int64, rest: Int64) -> int:
    """Add ``factor`` times ``values``; returns the number of products too large to be added."""
    unfit = 0
    for k in range(len(values)):
        x = factor * values[k]
        fits = abs(x) < MAX_PRODUCT  # false for NaN
        unfit += not fits
        x = x if fits else 0.0
        units = np.rint(x * _WHOLE)
        whole[k] += np.int64(units)
        rest[k] += np.int64(np.rint((x - units / _WHOLE) * _REST))
    return unfit


@jit
def _add_rows(rows: Rows, factors: Float64, total: Int64) -> int:
    unfit = 0
    for c in range(len(factors)):
        for j in range(rows.indptr[c], rows.indptr[c + 1]):
            item = rows.items[j]
            unfit += _add_row(rows.values[j], factors[c], total[0, item], total[1, item])
    return unfit


@jit
def _add_dense(dense: Float32 | Float64, factors: Float64, total: Int64) -> int:
    unfit = 0
    for c in range(len(factors)):
        unfit += _add_row(dense[c], factors[c], total[0], total[1])
    return unfit
