"""FedRefit on a device: user vectors by least squares, and sums from which the server fits items.

A device reads its history of items i_1, i_2, ... in order. After step t it has one vector per decay
rate g, the exact optimum for a frozen, orthonormal item table U:

    p_t = argmin_p |x_t - U p|^2 = U^T x_t,    x_t = sum over s <= t of g^(t - s) x_(i_s) / norm,

with x_i the one-hot vector of item i times the item's weight, and norm^2 the sum of all g^(t - s).
The feature vector f_t consists of the p_t of all decay rates and a constant 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import sqrt32
from unskew.kernels.parallel import for_each_block
from unskew.kernels.tables import binary_matrix
from unskew.ragged import owners
from unskew.types import Float32, Int32, Int64, Ragged


class Walk(NamedTuple):
    """Parameters of reading a history: ``decays`` of past items, the decay of later items as
    targets (``horizon``), and the weight of a second pass in reverse order (``backward``)."""

    decays: Float32
    horizon: float
    backward: float


@jit
def add_item(own: Float32, decays: Float32, state: Float32, weights: Float32, f: Float32) -> None:
    """Update the feature vector ``f`` with one more item: for each decay rate, the decayed sum of
    item rows divided by the square root of the decayed number of items."""
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
    """Read a history once. To each item's row of ``F`` add the feature vectors before it, decayed
    by ``horizon``; to ``M``, their outer products (upper triangle). ``f`` ends as the last one."""
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
        add_item(T[row[t]], walk.decays, state, weights, f)


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
    """Each client's last feature vector f and, if ``fit``, two sums over its history: for each of
    its items the feature vectors before it, and the outer products f f^T (upper triangle, flat).
    Both sums are divided by the square root of the client's number of items.

    ``history.items`` are indices into the client's rows of ``T``, which has one row per distinct
    item of each client, client after client.
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
    """Sum of each client's rows of ``T``, divided by the square root of their number."""
    rows = Ragged(own.indptr, np.arange(len(T), dtype=np.int32))
    share = (1 / np.sqrt(own.counts().clip(1))).astype(np.float32)
    sums: Float32 = (binary_matrix(rows, len(T)) @ T) * share[:, None]
    return sums


def spread_vectors(own: Ragged, p: Float32) -> Float32:
    """A row for each item of each client: its vector ``p`` / sqrt(number of its items), then a 1,
    so that the sum over clients also counts the item's users."""
    share = (1 / np.sqrt(own.counts().clip(1))).astype(np.float32)
    rows = np.ones((len(own.items), p.shape[1] + 1), np.float32)
    rows[:, :-1] = np.repeat(p * share[:, None], own.counts(), axis=0)
    return rows


def history_rows(history: Ragged, own: Ragged, n_items: int) -> Ragged:
    """For each entry of a client's history, the index of its item among the client's items."""

    def keys(lists: Ragged) -> Int64:
        return owners(lists.indptr) * n_items + lists.items

    row = np.searchsorted(keys(own), keys(history))
    row -= np.repeat(own.indptr[:-1], history.counts())
    return Ragged(history.indptr, row.astype(np.int32))
