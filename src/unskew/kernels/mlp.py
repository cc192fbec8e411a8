"""Local training of a small MLP (see ``network``), with Adam throughout, and its scores.

The item rows lie as rows, so that Adam steps over all of them in one run. As in
:mod:`unskew.kernels._local`, only touched rows can move, and moments start afresh each round.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._parallel import for_each_block
from unskew.kernels._sampling import Samples
from unskew.kernels._steps import (
    Clients,
    Schedule,
    adam_step,
    batch_buffers,
    rows_held,
    run_clients,
    samples_of,
    settled,
    shuffle,
)
from unskew.kernels.network import forward, layer_buffers, mlp_batch
from unskew.types import Cohort, Float32, Float64, Int32, Int64, Rows

_SCORED_AT_A_TIME = 256
_zero = np.float32(0.0)


@jit
def _train_kernel(
    clients: Clients,
    P: Float32,
    rows: Float32,
    weights: Float32,
    lr_user: float,
    lr_rows: float,
    lr_weights: float,
) -> None:
    D, size = P.shape[1], weights.shape[1]
    batch, most_rows = clients.batch, clients.most_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    layers = layer_buffers(D, size, batch)
    mw = np.zeros(size, np.float32)
    vw = np.zeros(size, np.float32)
    mp = np.zeros(D, np.float32)
    vp = np.zeros(D, np.float32)
    g = np.zeros(most_rows * D, np.float32)
    m = np.zeros(most_rows * D, np.float32)
    v = np.zeros(most_rows * D, np.float32)
    for c in clients.block:
        row, label, n, key = samples_of(clients, c)
        first, n_rows = rows_held(clients, c)
        p, w = P[c], weights[c]
        q = rows[first : first + n_rows].reshape(n_rows * D)
        mw[:] = _zero
        vw[:] = _zero
        mp[:] = _zero
        vp[:] = _zero
        m[: n_rows * D] = _zero
        v[: n_rows * D] = _zero
        for i in range(n):
            order[i] = i
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += mlp_batch(w, p, q, row, label, order[low:], layers, g, zb, yb, sb, bits, b)
                t += 1
                adam_step(w, mw, vw, layers.gw, size, lr_weights, t)
                adam_step(p, mp, vp, layers.gp, D, lr_user, t)
                adam_step(q, m, v, g, n_rows * D, lr_rows, t)
            if settled(clients, c, epoch, total / (n * (epoch + 1))):
                break


@jit
def _score_kernel(
    block: Int64,
    most: int,
    table: Float32,
    P: Float32,
    weights: Float32,
    h_indptr: Int64,
    h_items: Int32,
    h_values: Float32,
    scores: Float32,
) -> None:
    D, n_items = P.shape[1], len(table)
    x = np.empty((D, most), np.float32)
    h1 = np.empty((D, most), np.float32)
    h2 = np.empty((D // 2, most), np.float32)
    for c in block:
        held, held_end = h_indptr[c], h_indptr[c + 1]
        for low in range(0, n_items, most):
            n = min(most, n_items - low)
            for j in range(n):
                if held < held_end and h_items[held] == low + j:
                    for k in range(D):
                        x[k, j] = h_values[held, k]
                    held += 1
                else:
                    for k in range(D):
                        x[k, j] = table[low + j, k]
            forward(weights[c], P[c], x, h1, h2, scores[c, low : low + n], n)


def train_mlp(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    weights: Float32,
    user_rate: float,
    row_rate: float,
    weight_rate: float,
) -> Float64:
    """Train ``p``, the touched ``rows`` and the MLPs' ``weights`` in place; mean losses."""
    rates = (user_rate, row_rate, weight_rate)
    return run_clients(_train_kernel, cohort, samples, purpose, schedule, p, rows, weights, *rates)


def score_mlp(table: Float32, p: Float32, weights: Float32, held: Rows) -> Float32:
    """Every item's logit on each client, from its own rows where it holds them."""
    scores = np.empty((len(p), len(table)), np.float32)
    for_each_block(
        np.ones(len(p), np.int64),
        lambda block: _score_kernel(block, _SCORED_AT_A_TIME, table, p, weights, *held, scores),
    )
    return scores
