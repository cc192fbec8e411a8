"""FedRAP's local trainer: an item model that is the sum of two tables, by SGD with weight decay.

torch's SGD with weight decay shrinks *every* row of a dense table at every step, touched or not,
and all by the same factor. So a client's round needs its touched rows and one number for all other
rows, the product of the factors: see :class:`ScaledTable`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import batch_arrays, columns_of, store_columns
from unskew.kernels.batches import (
    Clients,
    batch_gradient,
    client_rows,
    sample_row,
    shuffled_batches,
)
from unskew.kernels.tables import merge, overlay, score_items
from unskew.kernels.vectors import inner
from unskew.types import Float32, Float64, Ragged, Rows

_MIN_SCALE = 1e-20
"""Minimum scale of a table: small enough to count as zero, but safe to divide by."""


class ScaledTable(NamedTuple):
    """Each client's item table: ``scale`` x (its own rows where held, else those of ``common``)."""

    common: Float32
    held: Rows
    scale: Float32

    @staticmethod
    def from_common(common: Float32, n_clients: int) -> ScaledTable:
        """For every client the common table itself: scale 1, no rows of its own."""
        held = Rows.empty(n_clients, common.shape[1])
        return ScaledTable(common, held, np.ones(n_clients, np.float32))

    def rows(self, touched: Ragged) -> Float32:
        """The touched rows of each client's table."""
        rows = overlay(self.common[touched.items], touched, self.held)
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
        scale = np.repeat(self.scale, np.diff(indptr))[:, None]
        return Rows(indptr, items, (values - self.common[items]) * scale)

    def scores(self, vectors: Float32) -> Float32:
        """Inner product of each client's vector with every row of its own table."""
        return score_items(vectors * self.scale[:, None], self.common, self.held)


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
    rates: AdditiveRates,
    pull: float,
    share: float,
    keep: float,
    w: float,
) -> None:
    """Do the SGD step of one dimension and add its part to the next logits and penalties.

    With m_i the number of the batch's samples of row i, the gradients without weight decay are

        dL/dc = g_i w - 2 lambda m_i (c - d) / (b dim)
        dL/dd = g_i w + 2 lambda m_i (c - d) / (b dim) + mu m_i sign(d) / (b dim)

    with ``pull`` = rate x w before its step, ``share`` = rate / (b dim), and ``w`` after its step.
    """
    apart = np.float32(2.0 * rates.independence * share)
    shrink = np.float32(rates.sparsity * share)
    pull32, keep32, w32 = np.float32(pull), np.float32(keep), np.float32(w)
    lam, mu = np.float32(rates.independence), np.float32(rates.sparsity)
    one, zero = np.float32(1.0), np.float32(0.0)
    for i in range(len(z)):
        c, d = C[i], D[i]
        shared = g[i] * pull32
        away = apart * m[i] * (c - d)
        above = one if d > zero else zero
        below_zero = one if d < zero else zero
        c = keep32 * c - shared + away
        d = keep32 * d - shared - away - shrink * m[i] * (above - below_zero)
        C[i] = c
        D[i] = d
        z[i] += w32 * (c + d)
        penalty[i] += mu * abs(d) - lam * (c - d) * (c - d)


@jit
def train_additive(
    clients: Clients,
    rates: AdditiveRates,
    weights: Float32,
    biases: Float32,
    C_rows: Float32,
    D_rows: Float32,
    factors: Float64,
) -> None:
    """Train in place each client's score weights and bias, and its touched rows of its own table C
    and of the shared table D. ``factors`` receives the weight decay of rows it has not touched."""
    dim = weights.shape[1]
    batch = batch_arrays(clients.schedule.batch)
    for client in clients.block:
        w, bias = weights[client], biases[client]
        C_mine, D_mine = client_rows(clients, client, C_rows), client_rows(clients, client, D_rows)
        C, D, n = columns_of(C_mine), columns_of(D_mine), len(C_mine)
        g, m, ones = np.zeros(n, np.float32), np.zeros(n, np.float32), np.ones(n, np.float32)
        z, penalty = np.full(n, bias), np.zeros(n, np.float32)
        for k in range(dim):
            # A step of rate 0, for the logits and penalties alone.
            _step_and_score(C[k], D[k], g, m, z, penalty, rates, 0.0, 0.0, 1.0, w[k])
        lr, lr_score, factor = rates.tables, rates.score, 1.0
        for _, packed in shuffled_batches(clients, client):
            loss = batch_gradient(packed, z, g, batch)
            for j in range(len(packed)):
                m[sample_row(packed[j])] += np.float32(1.0)
            clients.losses[client] += loss
            clients.losses[client] += inner(m, penalty, n) / dim
            keep = 1.0 - lr * rates.weight_decay
            keep_score = 1.0 - lr_score * rates.weight_decay
            share = lr / (len(packed) * dim)
            # dL/dbias = sum_i g_i, and dL/dw = sum_i g_i (c_i + d_i) before the rows move.
            bias = np.float32(keep_score * bias - lr_score * inner(g, ones, n))
            z[:] = bias
            penalty[:] = 0.0
            for k in range(dim):
                slope = inner(g, C[k], n) + inner(g, D[k], n)
                old = w[k]
                w[k] = np.float32(keep_score * old - lr_score * slope)
                _step_and_score(C[k], D[k], g, m, z, penalty, rates, lr * old, share, keep, w[k])
            g[:] = 0.0
            m[:] = 0.0
            factor *= keep
            lr *= rates.decay
            lr_score *= rates.decay
        biases[client] = bias
        factors[client] = factor
        store_columns(C, C_mine)
        store_columns(D, D_mine)
