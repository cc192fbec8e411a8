"""FedRefit on a device: least-squares vectors along its history, and sums to fit items to them.

Reading its items in order, a device has after each step t one vector per decay rate g, the exact
optimum for frozen orthonormal items U,

    p_t = argmin_p |x_t - U p|^2 = U^T x_t,    x_t = sum over s <= t of g^(t - s) x_(i_s) / norm,

norm^2 the sum of the weights g^(t - s). The vectors of all rates and a constant make up its feature
vector f_t.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import sqrt32
from unskew.kernels.parallel import for_each_block
from unskew.kernels.tables import binary_matrix
from unskew.ragged import owners
from unskew.types import Cohort, Float32, Int32, Int64, Ragged


class Walk(NamedTuple):
    """Parameters of a pass over a history: decay rates of past items, the decay rate of future
    targets, and the weight of a second, backward pass."""

    decays: Float32
    horizon: float
    backward: float


@jit
def _add_item(own: Float32, decays: Float32, state: Float32, weights: Float32, f: Float32) -> None:
    """Add one item to a history's features ``f``: for each decay, a running sum of item rows over
    the root of the decayed number of items. The constant 1 at the end of ``f`` stays."""
    d = len(own)
    for g in range(len(decays)):
        weights[g] = weights[g] * decays[g] + np.float32(1.0)
        scale = np.float32(1.0) / sqrt32(weights[g])
        for k in range(d):
            state[g, k] = state[g, k] * decays[g] + own[k]
            f[g * d + k] = state[g, k] * scale


@jit
def _read(
    row: Int32, T: Float32, walk: Walk, weight: float, f: Float32, F: Float32, M: Float32
) -> None:
    """Read a history once: add the earlier feature vectors, decayed by the horizon, to each item's
    row of F, and their outer products to M (upper triangle). ``f`` is the last one."""
    K, fade, w = len(f), np.float32(walk.horizon), np.float32(weight)
    state = np.zeros((len(walk.decays), T.shape[1]), np.float32)
    weights, z = np.zeros(len(walk.decays), np.float32), np.zeros(K, np.float32)
    f[K - 1] = 1.0
    for t in range(len(row)):
        if t > 0 and weight != 0.0:
            target = F[row[t]]
            for i in range(K):
                z[i] = z[i] * fade + f[i]
                target[i] += w * z[i]
                mine = w * f[i]
                line = M[i]
                for j in range(i, K):
                    line[j] += mine * f[j]
        _add_item(T[row[t]], walk.decays, state, weights, f)


@jit
def _kernel(
    block: Int64,
    history: Ragged,
    first: Int64,
    T: Float32,
    walk: Walk,
    fit: bool,
    features: Float32,
    F: Float32,
    dense: Float32,
) -> None:
    K = features.shape[1]
    M = np.empty((K, K), np.float32)
    for c in block:
        own, sums = T[first[c] : first[c + 1]], F[first[c] : first[c + 1]]
        mine = history.items[history.indptr[c] : history.indptr[c + 1]]
        share = 1.0 / np.sqrt(max(len(own), 1)) if fit else 0.0
        M[:] = 0.0
        if fit and walk.backward != 0.0:
            _read(mine[::-1].copy(), own, walk, share * walk.backward, features[c], sums, M)
        _read(mine, own, walk, share, features[c], sums, M)
        if fit:
            at = 0
            for i in range(K):
                dense[c, at : at + K - i] = M[i, i:]
                at += K - i


def read_histories(
    history: Ragged, own: Ragged, T: Float32, walk: Walk, fit: bool
) -> tuple[Float32, Float32, Float32]:
    """For each client, its last feature vector f and, if ``fit``, two sums over its history: the
    features before each of its own items, and f f^T (upper triangle, flat). Both are divided by the
    square root of the client's number of items.

    ``history.items`` is the index, among the client's own rows, of each entry of its history;
    ``T`` has those rows, client after client.
    """
    n, K = len(own.indptr) - 1, len(walk.decays) * T.shape[1] + 1
    features = np.zeros((n, K), np.float32)
    F = np.zeros((len(T) if fit else 0, K), np.float32)
    dense = np.zeros((n, K * (K + 1) // 2 if fit else 0), np.float32)
    sums = F if fit else np.zeros((len(T), 0), np.float32)
    arrays = (history, own.indptr, T, walk, fit, features, sums, dense)
    for_each_block(history.counts(), _kernel, *arrays)
    return features, F, dense


def sum_rows(own: Ragged, T: Float32) -> Float32:
    """Sum of the rows of ``T`` that belong to each client, over the root of their number."""
    rows = Ragged(own.indptr, np.arange(len(T), dtype=np.int32))
    share = (1 / np.sqrt(own.counts().clip(1))).astype(np.float32)
    sums: Float32 = (binary_matrix(rows, len(T)) @ T) * share[:, None]
    return sums


def spread_vectors(own: Ragged, p: Float32) -> Float32:
    """For each own item of a client, the row p_u / sqrt(number of its items), then a 1, so that the
    sum over clients also counts the item's users."""
    share = (1 / np.sqrt(own.counts().clip(1))).astype(np.float32)
    rows = np.ones((len(own.items), p.shape[1] + 1), np.float32)
    rows[:, :-1] = np.repeat(p * share[:, None], own.counts(), axis=0)
    return rows


def history_rows(cohort: Cohort, own: Ragged) -> Ragged:
    """Index, among a client's own rows, of each entry of its history."""

    def keys(lists: Ragged) -> Int64:
        return owners(lists.indptr) * cohort.n_items + lists.items

    row = np.searchsorted(keys(own), keys(cohort.positives))
    row -= np.repeat(own.indptr[:-1], cohort.positives.counts())
    return Ragged(cohort.positives.indptr, row.astype(np.int32))
