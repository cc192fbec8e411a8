"""The perceptron of FedNCF, GPFedRec and NCF: forward and backward through a batch, and scores.

The network is 2d -> d -> d/2 -> 1 with ReLU between. Its weights lie in one vector, in the order in
which torch lists them: W1 (d x 2d, user part first in each row), b1, W2, b2, W3, b3. For one client
the user embedding p is one vector, so the first layer is

    W1 [p; q] + b1 = W_q q + (W_p p + b1),

whose bracket is computed once per batch. Where a batch mixes users, p is empty and the columns of x
are whole pairs [p; q]. A batch lies as columns, one contiguous run per unit, so that every inner
loop runs over its samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import logistic_batch, score_columns
from unskew.kernels.parallel import in_parallel
from unskew.kernels.vectors import inner
from unskew.types import Float32, Int32, Int64, Rows

_ITEMS_PER_PASS = 256
"""Items scored together."""
_zero = np.float32(0.0)


def mlp_layers(dim: int) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of each layer for embeddings of size ``dim``."""
    half = max(dim // 2, 1)
    return ((2 * dim, dim), (dim, half), (half, 1))


class Layers(NamedTuple):
    """A batch's inputs, activations and logits, and all gradients."""

    ones: Float32
    x: Float32
    dx: Float32
    h1: Float32
    d1: Float32
    h2: Float32
    column: Float32
    gw: Float32
    gp: Float32
    z: Float32
    y: Float32
    s: Float32
    bits: Int32


@jit
def layer_buffers(D: int, inputs: int, size: int, batch: int) -> Layers:
    """Arrays for batches whose x has ``inputs`` rows and a network of ``size`` weights."""
    return Layers(
        np.ones(batch, np.float32),
        np.empty((inputs, batch), np.float32),
        np.empty((inputs, batch), np.float32),
        np.empty((D, batch), np.float32),
        np.empty((D, batch), np.float32),
        np.empty((max(D // 2, 1), batch), np.float32),
        np.empty(D, np.float32),
        np.zeros(size, np.float32),
        np.zeros(D, np.float32),
        np.empty(batch, np.float32),
        np.empty(batch, np.float32),
        np.empty(batch, np.float32),
        np.empty(batch, np.int32),
    )


@jit
def _relu_layer(out: Float32, start: float, c: Float32, x: Float32, n: int) -> None:
    """out_j = max(start + sum_k c_k x_kj, 0)."""
    score_columns(out, x, c, n)
    for j in range(n):
        out[j] = max(out[j] + start, _zero)


@jit
def _forward(
    w: Float32, p: Float32, x: Float32, h1: Float32, h2: Float32, z: Float32, n: int
) -> None:
    """Logits ``z`` of ``n`` columns of ``x``; ``h1`` and ``h2`` receive the hidden activations."""
    D, H, U = h1.shape[0], h2.shape[0], len(p)
    b1, w2 = 2 * D * D, 2 * D * D + D
    b2 = w2 + H * D
    w3 = b2 + H
    for o in range(D):
        row = o * 2 * D
        start = w[b1 + o] + inner(w[row : row + U], p, U)
        _relu_layer(h1[o], start, w[row + U : row + 2 * D], x, n)
    for o in range(H):
        row = w2 + o * D
        _relu_layer(h2[o], w[b2 + o], w[row : row + D], h1, n)
    score_columns(z, h2, w[w3 : w3 + H], n)
    for j in range(n):
        z[j] += w[w3 + H]


@jit
def mlp_gradients(w: Float32, p: Float32, layers: Layers, n: int, share: float) -> float:
    """Summed loss of ``n`` samples with inputs ``layers.x`` and labels ``layers.y``.

    ``share`` times the gradients of the mean loss are written to ``gw``, ``gp`` and ``dx`` of
    ``layers``. ``gw`` is laid out as ``w``.
    """
    ones, x, dx, h1, d1, h2, column, g, gp, z, y, s, bits = layers
    D, H, U = h1.shape[0], h2.shape[0], len(p)
    b1, w2 = 2 * D * D, 2 * D * D + D
    b2 = w2 + H * D
    w3 = b2 + H
    _forward(w, p, x, h1, h2, z, n)
    loss = logistic_batch(z, y, s, bits, n)
    for j in range(n):
        s[j] *= np.float32(share)
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
        dk, hk = d1[k], h1[k]
        score_columns(dk, h2, column, n)
        for j in range(n):
            dk[j] = dk[j] if hk[j] > _zero else _zero
    gp[:] = _zero
    for o in range(D):
        row = o * 2 * D
        total = inner(d1[o], ones, n)
        g[b1 + o] = total
        for k in range(U):
            g[row + k] = total * p[k]
            gp[k] += total * w[row + k]
        for k in range(len(x)):
            g[row + U + k] = inner(d1[o], x[k], n)
    for k in range(len(x)):
        for o in range(D):
            column[o] = w[o * 2 * D + U + k]
        score_columns(dx[k], d1, column, n)
    return loss


@jit
def client_gradients(
    w: Float32,
    p: Float32,
    q: Float32,
    row: Int32,
    label: Float32,
    order: Int32,
    layers: Layers,
    g: Float32,
    b: int,
) -> float:
    """Summed loss of the first ``b`` samples of ``order`` on one client.

    The gradients of the weights and of p are written to ``layers``; those of the flat rows ``q``
    are added to ``g``.
    """
    D = len(p)
    for j in range(b):
        layers.y[j] = label[order[j]]
        at = row[order[j]] * D
        for k in range(D):
            layers.x[k, j] = q[at + k]
    loss = mlp_gradients(w, p, layers, b, 1.0)
    for j in range(b):
        at = row[order[j]] * D
        for k in range(D):
            g[at + k] += layers.dx[k, j]
    return loss


@jit
def _score_items(
    block: Int64,
    table: Float32,
    P: Float32,
    weights: Float32,
    h_indptr: Int64,
    h_items: Int32,
    h_values: Float32,
    scores: Float32,
) -> None:
    D, n_items = P.shape[1], len(table)
    x = np.empty((D, _ITEMS_PER_PASS), np.float32)
    h1 = np.empty((D, _ITEMS_PER_PASS), np.float32)
    h2 = np.empty((max(D // 2, 1), _ITEMS_PER_PASS), np.float32)
    for c in block:
        held, held_end = h_indptr[c], h_indptr[c + 1]
        for low in range(0, n_items, _ITEMS_PER_PASS):
            n = min(_ITEMS_PER_PASS, n_items - low)
            for j in range(n):
                own = held < held_end and h_items[held] == low + j
                for k in range(D):
                    x[k, j] = h_values[held, k] if own else table[low + j, k]
                held += own
            _forward(weights[c], P[c], x, h1, h2, scores[c, low : low + n], n)


def score_mlp(table: Float32, p: Float32, weights: Float32, held: Rows) -> Float32:
    """Logit of every item for each client, with the client's own rows where it holds some."""
    scores = np.empty((len(p), len(table)), np.float32)
    in_parallel(len(p), _score_items, table, p, weights, *held, scores)
    return scores
