"""FedRAP's local trainer: an item model that is the sum of two tables, by SGD with weight decay.

torch's SGD with weight decay shrinks *every* row of a dense table at every step, touched or not,
and all by the same factor. So a client's round needs its touched rows and one number for all other
rows, the product of the factors: see :class:`ScaledTable`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.arithmetic import load_columns, store_columns
from unskew.kernels.batches import (
    Clients,
    Schedule,
    batch_buffers,
    batch_gradient,
    client_rows,
    client_samples,
    has_converged,
    pack_samples,
    run_clients,
    sample_row,
    shuffle,
)
from unskew.kernels.tables import gather, merge, overlay, replace_scores, score_table
from unskew.kernels.vectors import inner
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Int32, Ragged, Rows

_MIN_SCALE = 1e-20
"""Lower bound of a table's scale: such a table is as good as zero, but can be divided by it."""


class ScaledTable(NamedTuple):
    """Each client's item table: ``scale`` x (its own rows where held, else those of ``common``)."""

    common: Float32
    held: Rows
    scale: Float32

    @staticmethod
    def untouched(common: Float32, n_clients: int) -> ScaledTable:
        """The common table for every client."""
        held = Rows.empty(n_clients, common.shape[1])
        return ScaledTable(common, held, np.ones(n_clients, np.float32))

    def rows(self, touched: Ragged) -> Float32:
        """The touched rows of each client's table."""
        rows = overlay(gather(self.common, touched), touched, self.held)
        rows *= np.repeat(self.scale, touched.counts())[:, None]
        return rows

    def with_rows(self, touched: Ragged, rows: Float32, factors: Float64) -> ScaledTable:
        """The table with these rows replaced and all others multiplied by ``factors``."""
        scale = np.maximum(self.scale * factors, _MIN_SCALE).astype(np.float32)
        rows = rows / np.repeat(scale, touched.counts())[:, None]
        return self._replace(held=merge(self.held, Rows(*touched, rows)), scale=scale)

    def difference(self) -> Rows:
        """The table minus scale x the common one: zero except in the rows held."""
        indptr, items, values = self.held
        values = values - gather(self.common, Ragged(indptr, items))
        values *= np.repeat(self.scale, np.diff(indptr))[:, None]
        return Rows(indptr, items, values)

    def scores(self, vectors: Float32) -> Float32:
        """Inner product of each client's vector with every item."""
        vectors = vectors * self.scale[:, None]
        scores = score_table(vectors, self.common)
        replace_scores(scores, vectors, self.held)
        return scores


class AdditiveRates(NamedTuple):
    """SGD's rates and the weights of the loss in one round."""

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
def _step_and_score(
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
    """One dimension's step, and its part of the next logits and penalties.

    With m_i the number of the batch's samples of row i, the gradients without weight decay are

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
def _count_samples(packed: Int32, m: Float32, b: int) -> None:
    """Add the number of samples each row has in the batch to ``m``."""
    for j in range(b):
        m[sample_row(packed[j])] += np.float32(1.0)


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
    batch, max_rows = clients.batch, clients.max_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    z = np.empty(max_rows, np.float32)
    g = np.empty(max_rows, np.float32)
    m = np.empty(max_rows, np.float32)
    penalty = np.empty(max_rows, np.float32)
    ones = np.ones(max_rows, np.float32)
    C = np.empty((dim, max_rows), np.float32)
    D = np.empty((dim, max_rows), np.float32)
    for client in clients.block:
        row, label, n, key = client_samples(clients, client)
        first, n_rows = client_rows(clients, client)
        w, bias = weights[client], biases[client]
        load_columns(C_rows, first, n_rows, C)
        load_columns(D_rows, first, n_rows, D)
        z[:n_rows] = bias
        g[:n_rows] = 0.0
        m[:n_rows] = 0.0
        penalty[:n_rows] = 0.0
        for k in range(dim):
            # A step of rate 0, for the logits and penalties alone.
            _step_and_score(
                C[k], D[k], g, m, z, penalty, n_rows,
                0.0, 0.0, 0.0, 1.0, w[k], independence, sparsity,
            )  # fmt: skip
        pack_samples(order, row, label, n)
        lr, lr_score, factor = tables_rate, score_rate, 1.0
        counter, total = 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], z, g, zb, yb, sb, bits, b)
                _count_samples(order[low:], m, b)
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
                    _step_and_score(
                        C[k], D[k], g, m, z, penalty, n_rows,
                        lr * old, 2.0 * independence * share, sparsity * share, keep,
                        w[k], independence, sparsity,
                    )  # fmt: skip
                g[:n_rows] = 0.0
                m[:n_rows] = 0.0
                factor *= keep
                lr *= rate_decay
                lr_score *= rate_decay
            if has_converged(clients, client, epoch, total / (n * (epoch + 1))):
                break
        biases[client] = bias
        factors[client] = factor
        store_columns(C, C_rows, first, n_rows)
        store_columns(D, D_rows, first, n_rows)


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
    """Train each client's affine score and its touched rows of C + D in place.

    Returns the mean losses, and the factor by which weight decay has shrunk every other row.
    """
    factors = np.ones(len(cohort.users))
    arrays = (weight, bias, C, D, factors)
    purpose = Purpose.SHUFFLE_LOCAL
    losses = run_clients(_kernel, cohort, samples, purpose, schedule, *rates, *arrays)
    return losses, factors
