"""A small perceptron on a user and an item embedding: gradients, FedNCF's trainer, and scores.

The network is 2d -> d -> d/2 -> 1 with ReLU between. Its weights lie in one vector per client, in
the order in which torch lists them: W1 (d x 2d, user part first in each row), b1, W2, b2, W3, b3.
On one device the user embedding p is one vector, so the first layer is

    W1 [p; q] + b1 = W_q q + (W_p p + b1),

whose bracket is computed once per batch. A batch lies as columns, one contiguous run per unit, so
that every inner loop runs over its samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.adam import adam_step
from unskew.kernels.arithmetic import add_scaled, logistic_batch
from unskew.kernels.batches import (
    Clients,
    Schedule,
    batch_buffers,
    client_rows,
    client_samples,
    has_converged,
    run_clients,
    shuffle,
)
from unskew.kernels.parallel import in_parallel
from unskew.kernels.vectors import inner
from unskew.types import Cohort, Float32, Float64, Int32, Int64, Rows

_ITEMS_PER_PASS = 256
"""Items scored together."""
_zero = np.float32(0.0)


def mlp_layers(dim: int) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of each layer for embeddings of size ``dim``."""
    return ((2 * dim, dim), (dim, dim // 2), (dim // 2, 1))


@jit
def _add_four(
    out: Float32,
    x0: Float32,
    x1: Float32,
    x2: Float32,
    x3: Float32,
    c0: float,
    c1: float,
    c2: float,
    c3: float,
    n: int,
) -> None:
    for j in range(n):
        out[j] += (c0 * x0[j] + c1 * x1[j]) + (c2 * x2[j] + c3 * x3[j])


@jit
def _combine(out: Float32, start: float, c: Float32, x: Float32, n: int) -> None:
    """out_j = start + sum_k c_k x_kj, four rows per pass over ``out``."""
    for j in range(n):
        out[j] = start
    size = len(c)
    whole = size - size % 4
    for k in range(0, whole, 4):
        _add_four(out, x[k], x[k + 1], x[k + 2], x[k + 3], c[k], c[k + 1], c[k + 2], c[k + 3], n)
    for k in range(whole, size):
        add_scaled(out, x[k], c[k], n)


@jit
def _relu(h: Float32, n: int) -> None:
    for j in range(n):
        h[j] = max(h[j], _zero)


@jit
def forward(
    w: Float32, p: Float32, x: Float32, h1: Float32, h2: Float32, z: Float32, n: int
) -> None:
    """Logits ``z`` of ``n`` items whose embeddings are the columns of ``x``; the activations of
    both hidden layers are left in ``h1`` and ``h2``."""
    D, H = h1.shape[0], h2.shape[0]
    b1, w2 = 2 * D * D, 2 * D * D + D
    b2 = w2 + H * D
    w3 = b2 + H
    for o in range(D):
        row = o * 2 * D
        start = w[b1 + o] + inner(w[row : row + D], p, D)
        _combine(h1[o], start, w[row + D : row + 2 * D], x, n)
        _relu(h1[o], n)
    for o in range(H):
        row = w2 + o * D
        _combine(h2[o], w[b2 + o], w[row : row + D], h1, n)
        _relu(h2[o], n)
    _combine(z, w[w3 + H], w[w3 : w3 + H], h2, n)


@jit
def _backward(
    w: Float32,
    p: Float32,
    x: Float32,
    h1: Float32,
    h2: Float32,
    s: Float32,
    ones: Float32,
    column: Float32,
    d1: Float32,
    g: Float32,
    gp: Float32,
    dx: Float32,
    n: int,
) -> None:
    """Gradients of weights, user and items from ``s`` = dL/dz; ``h2`` is overwritten.

    ``g`` is laid out as ``w``, the columns of ``dx`` belong to the samples.
    """
    D, H = h1.shape[0], h2.shape[0]
    b1, w2 = 2 * D * D, 2 * D * D + D
    b2 = w2 + H * D
    w3 = b2 + H
    g[w3 + H] = inner(s, ones, n)
    for o in range(H):
        g[w3 + o] = inner(s, h2[o], n)
        d2, c = h2[o], w[w3 + o]
        for j in range(n):
            d2[j] = c * s[j] if d2[j] > _zero else _zero
        g[b2 + o] = inner(d2, ones, n)
        for k in range(D):
            g[w2 + o * D + k] = inner(d2, h1[k], n)
    for k in range(D):
        for o in range(H):
            column[o] = w[w2 + o * D + k]
        _combine(d1[k], 0.0, column[:H], h2, n)
        dk, hk = d1[k], h1[k]
        for j in range(n):
            dk[j] = dk[j] if hk[j] > _zero else _zero
    gp[:] = _zero
    for o in range(D):
        row = o * 2 * D
        total = inner(d1[o], ones, n)
        g[b1 + o] = total
        for k in range(D):
            g[row + k] = total * p[k]
            gp[k] += total * w[row + k]
            g[row + D + k] = inner(d1[o], x[k], n)
    for k in range(D):
        for o in range(D):
            column[o] = w[o * 2 * D + D + k]
        _combine(dx[k], 0.0, column, d1, n)


class Layers(NamedTuple):
    """A batch's activations and their gradients, and the gradients of the weights and of p."""

    ones: Float32
    x: Float32
    dx: Float32
    h1: Float32
    d1: Float32
    h2: Float32
    column: Float32
    gw: Float32
    gp: Float32


@jit
def layer_buffers(D: int, size: int, batch: int) -> Layers:
    return Layers(
        np.ones(batch, np.float32),
        np.empty((D, batch), np.float32),
        np.empty((D, batch), np.float32),
        np.empty((D, batch), np.float32),
        np.empty((D, batch), np.float32),
        np.empty((D // 2, batch), np.float32),
        np.empty(D, np.float32),
        np.zeros(size, np.float32),
        np.zeros(D, np.float32),
    )


@jit
def mlp_batch(
    w: Float32,
    p: Float32,
    q: Float32,
    row: Int32,
    label: Float32,
    order: Int32,
    layers: Layers,
    g: Float32,
    zb: Float32,
    yb: Float32,
    sb: Float32,
    bits: Int32,
    b: int,
) -> float:
    """Summed loss of the batch's first ``b`` samples.

    The gradients of the weights and of p are written to ``layers``; those of the flat rows ``q``
    are added to ``g``.
    """
    D = len(p)
    ones, x, dx, h1, d1, h2, column, gw, gp = layers
    for j in range(b):
        yb[j] = label[order[j]]
        at = row[order[j]] * D
        for k in range(D):
            x[k, j] = q[at + k]
    forward(w, p, x, h1, h2, zb, b)
    loss = logistic_batch(zb, yb, sb, bits, b)
    _backward(w, p, x, h1, h2, sb, ones, column, d1, gw, gp, dx, b)
    for j in range(b):
        at = row[order[j]] * D
        for k in range(D):
            g[at + k] += dx[k, j]
    return loss


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
    batch, max_rows = clients.batch, clients.max_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    layers = layer_buffers(D, size, batch)
    mw = np.zeros(size, np.float32)
    vw = np.zeros(size, np.float32)
    mp = np.zeros(D, np.float32)
    vp = np.zeros(D, np.float32)
    g = np.zeros(max_rows * D, np.float32)
    m = np.zeros(max_rows * D, np.float32)
    v = np.zeros(max_rows * D, np.float32)
    for c in clients.block:
        row, label, n, key = client_samples(clients, c)
        first, n_rows = client_rows(clients, c)
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
            if has_converged(clients, c, epoch, total / (n * (epoch + 1))):
                break


@jit
def _score_kernel(
    block: Int64,
    max_items: int,
    table: Float32,
    P: Float32,
    weights: Float32,
    h_indptr: Int64,
    h_items: Int32,
    h_values: Float32,
    scores: Float32,
) -> None:
    D, n_items = P.shape[1], len(table)
    x = np.empty((D, max_items), np.float32)
    h1 = np.empty((D, max_items), np.float32)
    h2 = np.empty((D // 2, max_items), np.float32)
    for c in block:
        held, held_end = h_indptr[c], h_indptr[c + 1]
        for low in range(0, n_items, max_items):
            n = min(max_items, n_items - low)
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
    """Train ``p``, the touched ``rows`` and the networks' ``weights`` in place by Adam; return
    mean losses."""
    rates = (user_rate, row_rate, weight_rate)
    return run_clients(_train_kernel, cohort, samples, purpose, schedule, p, rows, weights, *rates)


def score_mlp(table: Float32, p: Float32, weights: Float32, held: Rows) -> Float32:
    """Logit of every item for each client, with the client's own rows where it holds some."""
    scores = np.empty((len(p), len(table)), np.float32)
    in_parallel(len(p), _score_kernel, _ITEMS_PER_PASS, table, p, weights, *held, scores)
    return scores
