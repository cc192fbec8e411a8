"""Local training of an item model that is the sum of two tables, by SGD with weight decay.

torch's SGD with weight decay shrinks *every* row of a dense table at every step, touched or not,
and all by the same factor. So a client's round needs its touched rows and one number, the product
of the factors, which holds for all the others: see :class:`ScaledTable`.

As in the other trainers, a client's rows lie as columns inside the kernel, one contiguous run per
embedding dimension, and logits and gradients are kept per row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels._steps import (
    Clients,
    Schedule,
    batch_buffers,
    batch_gradient,
    columns_of,
    pack,
    rows_held,
    rows_of,
    run_clients,
    samples_of,
    settled,
    shuffle,
)
from unskew.kernels._tables import gather, merge, overlay, replace_scores, score_table
from unskew.kernels._vectors import inner
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Int32, Ragged, Rows

_SMALLEST_SCALE = 1e-20
"""A table decayed below this share is zero for every purpose but that of dividing by the scale."""


class ScaledTable(NamedTuple):
    """Each client's own item table: scale x (a common table overlaid with the rows it holds)."""

    common: Float32
    held: Rows
    scale: Float32

    @staticmethod
    def untouched(common: Float32, n_clients: int) -> ScaledTable:
        held = Rows.empty(n_clients, common.shape[1])
        return ScaledTable(common, held, np.ones(n_clients, np.float32))

    def rows(self, touched: Ragged) -> Float32:
        rows = overlay(gather(self.common, touched), touched, self.held)
        rows *= np.repeat(self.scale, touched.counts())[:, None]
        return rows

    def trained(self, touched: Ragged, rows: Float32, factors: Float64) -> ScaledTable:
        """The table with these rows in it and all others shrunk by ``factors``."""
        scale = np.maximum(self.scale * factors, _SMALLEST_SCALE).astype(np.float32)
        rows = rows / np.repeat(scale, touched.counts())[:, None]
        return self._replace(held=merge(self.held, Rows(*touched, rows)), scale=scale)

    def difference(self) -> Rows:
        """The table minus scale x the common one: zero but for the rows held."""
        indptr, items, values = self.held
        values = values - gather(self.common, Ragged(indptr, items))
        values *= np.repeat(self.scale, np.diff(indptr))[:, None]
        return Rows(indptr, items, values)

    def scores(self, vectors: Float32) -> Float32:
        """Every item's inner product with each client's vector."""
        vectors = vectors * self.scale[:, None]
        scores = score_table(vectors, self.common)
        replace_scores(scores, vectors, self.held)
        return scores


class AdditiveRates(NamedTuple):
    """SGD's rates and the loss's weights, as they are in one round."""

    tables: float
    score: float
    decay: float
    """Both rates are multiplied by this after every batch."""
    weight_decay: float
    independence: float
    """lambda, the weight of the mean squared distance of C and D (subtracted)."""
    sparsity: float
    """mu, the weight of the mean absolute value of D."""


@jit
def _step_and_look(
    C: Float32,
    D: Float32,
    g: Float32,
    m: Float32,
    z: Float32,
    penalty: Float32,
    n: int,
    pull: float,
    apart: float,
    shrink: float,
    keep: float,
    w: float,
    independence: float,
    sparsity: float,
) -> None:
    """One dimension's step, and what the stepped rows add to the next logits and penalties.

    With m_i the batch's samples of row i, one entry's gradient is, weight decay aside,

        dL/dc = g_i w - 2 lambda m_i (c - d) / (b dim)
        dL/dd = g_i w + 2 lambda m_i (c - d) / (b dim) + mu m_i sign(d) / (b dim)

    and ``pull``, ``apart``, ``shrink`` are the rate times each term's constant part.
    """
    pull32, apart32, shrink32 = np.float32(pull), np.float32(apart), np.float32(shrink)
    keep32, w32 = np.float32(keep), np.float32(w)
    lam, mu = np.float32(independence), np.float32(sparsity)
    one, zero = np.float32(1.0), np.float32(0.0)
    for i in range(n):
        c, d = C[i], D[i]
        shared = g[i] * pull32
        away = apart32 * m[i] * (c - d)
        above = one if d > zero else zero
        below_zero = one if d < zero else zero
        c = keep32 * c - shared + away
        d = keep32 * d - shared - away - shrink32 * m[i] * (above - below_zero)
        C[i] = c
        D[i] = d
        z[i] += w32 * (c + d)
        penalty[i] += mu * abs(d) - lam * (c - d) * (c - d)


@jit
def _count(packed: Int32, m: Float32, b: int) -> None:
    """How many of the batch's samples each row has, into ``m`` (zero before)."""
    for j in range(b):
        m[packed[j] >> 1] += np.float32(1.0)


@jit
def _kernel(
    clients: Clients,
    tables_rate: float,
    score_rate: float,
    rate_decay: float,
    weight_decay: float,
    independence: float,
    sparsity: float,
    weights: Float32,
    biases: Float32,
    C_rows: Float32,
    D_rows: Float32,
    factors: Float64,
) -> None:
    dim = weights.shape[1]
    batch, most_rows = clients.batch, clients.most_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    z = np.empty(most_rows, np.float32)
    g = np.empty(most_rows, np.float32)
    m = np.empty(most_rows, np.float32)
    penalty = np.empty(most_rows, np.float32)
    ones = np.ones(most_rows, np.float32)
    C = np.empty((dim, most_rows), np.float32)
    D = np.empty((dim, most_rows), np.float32)
    for client in clients.block:
        row, label, n, key = samples_of(clients, client)
        first, n_rows = rows_held(clients, client)
        w, bias = weights[client], biases[client]
        columns_of(C_rows, first, n_rows, C)
        columns_of(D_rows, first, n_rows, D)
        z[:n_rows] = bias
        g[:n_rows] = 0.0
        m[:n_rows] = 0.0
        penalty[:n_rows] = 0.0
        for k in range(dim):
            # A step of rate 0: only looks.
            _step_and_look(
                C[k], D[k], g, m, z, penalty, n_rows,
                0.0, 0.0, 0.0, 1.0, w[k], independence, sparsity,
            )  # fmt: skip
        pack(order, row, label, n)
        lr, lr_score, factor = tables_rate, score_rate, 1.0
        counter, total = 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], z, g, zb, yb, sb, bits, b)
                _count(order[low:], m, b)
                total += inner(m, penalty, n_rows) / dim
                keep = 1.0 - lr * weight_decay
                keep_score = 1.0 - lr_score * weight_decay
                share = lr / (b * dim)
                # dL/dbias = sum_i g_i, and dL/dw = sum_i g_i (c_i + d_i) before the rows move.
                bias = np.float32(keep_score * bias - lr_score * inner(g, ones, n_rows))
                z[:n_rows] = bias
                penalty[:n_rows] = 0.0
                for k in range(dim):
                    slope = inner(g, C[k], n_rows) + inner(g, D[k], n_rows)
                    old = w[k]
                    w[k] = np.float32(keep_score * old - lr_score * slope)
                    _step_and_look(
                        C[k], D[k], g, m, z, penalty, n_rows,
                        lr * old, 2.0 * independence * share, sparsity * share, keep,
                        w[k], independence, sparsity,
                    )  # fmt: skip
                g[:n_rows] = 0.0
                m[:n_rows] = 0.0
                factor *= keep
                lr *= rate_decay
                lr_score *= rate_decay
            if settled(clients, client, epoch, total / (n * (epoch + 1))):
                break
        biases[client] = bias
        factors[client] = factor
        rows_of(C, C_rows, first, n_rows)
        rows_of(D, D_rows, first, n_rows)


def train_additive(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    rates: AdditiveRates,
    weight: Float32,
    bias: Float32,
    C: Float32,
    D: Float32,
) -> tuple[Float64, Float64]:
    """Train, all in place, each client's affine score over its touched rows of C + D.

    Returns the mean losses, and the factor by which weight decay has shrunk every other row.
    """
    factors = np.ones(len(cohort.users))
    arrays = (weight, bias, C, D, factors)
    purpose = Purpose.SHUFFLE_LOCAL
    losses = run_clients(_kernel, cohort, samples, purpose, schedule, *rates, *arrays)
    return losses, factors
