"""FedRAP's local trainer: SGD with weight decay on item embeddings that are the sum of two tables.

torch's SGD with weight decay shrinks *every* row of a table at every step by the same factor, also
rows without samples. So a client's round needs the rows of its samples and, for all other rows, one
number, the product of these factors: see :class:`ScaledTable`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import batch_arrays, columns_of, store_columns
from unskew.kernels.batches import (
    ENDLESS,
    Clients,
    batch_gradient,
    client_rows,
    next_batch,
    packed_samples,
    sample_row,
)
from unskew.kernels.tables import merge, overlay, score_items
from unskew.kernels.vectors import inner
from unskew.types import Float32, Float64, Ragged, Rows

_MIN_SCALE = 1e-20
"""Minimum ``scale`` of a table: practically zero, but safe to divide by."""


class ScaledTable(NamedTuple):
    """An item table per client: its ``scale`` x ``common``, a table that all clients share, in
    which the client's rows in ``held`` replace the common ones."""

    common: Float32
    held: Rows
    scale: Float32

    @staticmethod
    def from_common(common: Float32, n_clients: int) -> ScaledTable:
        """The table ``common`` for every client: scale 1 and no replaced rows."""
        held = Rows.empty(n_clients, common.shape[1])
        return ScaledTable(common, held, np.ones(n_clients, np.float32))

    def rows(self, touched: Ragged) -> Float32:
        """Rows of each client's table at its touched items, client after client."""
        rows = overlay(self.common[touched.items], touched, self.held)
        rows *= np.repeat(self.scale, touched.counts())[:, None]
        return rows

    def with_rows(self, touched: Ragged, rows: Float32, factors: Float64) -> ScaledTable:
        """Tables with the touched rows set to ``rows``, all other rows times the client's
        factor."""
        scale = np.maximum(self.scale * factors, _MIN_SCALE).astype(np.float32)
        rows = rows / np.repeat(scale, touched.counts())[:, None]
        return self._replace(held=merge(self.held, Rows(*touched, rows)), scale=scale)

    def difference(self) -> Rows:
        """Each client's table minus ``scale`` x ``common``: zero except in the rows of ``held``."""
        indptr, items, values = self.held
        scale = np.repeat(self.scale, np.diff(indptr))[:, None]
        return Rows(indptr, items, (values - self.common[items]) * scale)

    def scores(self, vectors: Float32) -> Float32:
        """Inner product of each client's vector with every row of its table."""
        return score_items(vectors * self.scale[:, None], self.common, self.held)


class AdditiveRates(NamedTuple):
    """Learning rates, weight decay and penalty weights of a client's training in one round."""

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
    """SGD step in one embedding dimension of all touched items, and its part of the next logits.

    An item has the entries c in the private table C and d in the shared table D. In a batch of b
    samples, m_i of item i, with g_i the gradient by the item's logit and w the score weight,

        dL/dc = g_i w - 2 lambda m_i (c - d) / (b dim)
        dL/dd = g_i w + 2 lambda m_i (c - d) / (b dim) + mu m_i sign(d) / (b dim)

    without weight decay; lambda and mu are the weights of the independence and sparsity penalties.
    ``pull`` = rate x w before its step, ``share`` = rate / (b dim), and ``w`` is after its step.
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
    """Train in place each client's score weights and bias, and the rows of its samples' items in
    its private table C and the shared table D. ``factors`` gets the weight decay of all other
    rows."""
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
        order = packed_samples(clients, client)
        for t in range(1, ENDLESS):
            packed = next_batch(clients, client, order, t)
            if not len(packed):
                break
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
