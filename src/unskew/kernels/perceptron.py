"""The perceptron of FedNCF, GPFedRec and NCF: gradients of a batch, FedNCF's local trainer, scores.

For embeddings of size d the layers are 2d -> d -> d/2 -> 1 with ReLU between. The weights lie in
one vector, in torch's order: W1 (d x 2d, user part first in each row), b1, W2, b2, W3, b3. For one
client the user embedding p is the same for all items' embeddings q, so the first layer is

    W1 [p; q] + b1 = W_q q + (W_p p + b1),

whose bracket is computed once per batch. Where a batch mixes users, p is empty and the columns of
the input x are whole pairs [p; q]. A unit's values for the samples of a batch are contiguous.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.adam import adam_step, corrections
from unskew.kernels.arithmetic import Batch, batch_arrays, logistic_batch, score_columns
from unskew.kernels.batches import (
    ENDLESS,
    Clients,
    client_rows,
    next_batch,
    packed_samples,
    sample_row,
)
from unskew.kernels.parallel import in_parallel
from unskew.kernels.vectors import inner
from unskew.types import Float32, Int32, Int64, Rows

_ITEMS_PER_PASS = 256
"""Number of items scored in one forward pass."""
_zero = np.float32(0.0)


def mlp_layers(dim: int) -> tuple[tuple[int, int], ...]:
    """Number of inputs and of outputs of each layer, for embeddings of size ``dim``."""
    half = max(dim // 2, 1)
    return ((2 * dim, dim), (dim, half), (half, 1))


class Layers(NamedTuple):
    """Buffers for one batch: the network's inputs, activations, logits and gradients."""

    ones: Float32
    x: Float32
    dx: Float32
    h1: Float32
    d1: Float32
    h2: Float32
    column: Float32
    gw: Float32
    gp: Float32
    batch: Batch


@jit
def layer_buffers(D: int, inputs: int, size: int, batch: int) -> Layers:
    """Allocate buffers for batches with ``inputs`` values per sample and ``size`` weights."""
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
        batch_arrays(batch),
    )


@jit
def _relu_layer(out: Float32, start: float, c: Float32, x: Float32, n: int) -> None:
    """One ReLU unit for ``n`` samples (columns of ``x``), with weights ``c`` and bias ``start``."""
    score_columns(out, x, c, n)
    for j in range(n):
        out[j] = max(out[j] + start, _zero)


@jit
def _forward(
    w: Float32, p: Float32, x: Float32, h1: Float32, h2: Float32, z: Float32, n: int
) -> None:
    """Write the logits of ``n`` inputs ``x`` to ``z``, hidden activations to ``h1`` and ``h2``."""
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
    """Return the summed loss of ``n`` samples: inputs ``layers.x``, labels ``layers.batch.y``.

    ``share`` times the mean loss's gradients by weights, user embedding and inputs are written to
    ``gw``, ``gp`` and ``dx`` of ``layers``.
    """
    ones, x, dx, h1, d1, h2, column, g, gp, batch = layers
    s = batch.s
    D, H, U = h1.shape[0], h2.shape[0], len(p)
    b1, w2 = 2 * D * D, 2 * D * D + D
    b2 = w2 + H * D
    w3 = b2 + H
    _forward(w, p, x, h1, h2, batch.z, n)
    loss = logistic_batch(batch, n)
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
    w: Float32, p: Float32, q: Float32, packed: Int32, layers: Layers, g: Float32
) -> float:
    """Return the summed loss of one client's packed samples. Gradients by the weights and by the
    user embedding ``p`` are written to ``layers``; those by item rows ``q`` are added to ``g``."""
    for j in range(len(packed)):
        layers.batch.y[j] = packed[j] & 1
        row = q[sample_row(packed[j])]
        for k in range(len(p)):
            layers.x[k, j] = row[k]
    loss = mlp_gradients(w, p, layers, len(packed), 1.0)
    for j in range(len(packed)):
        row = g[sample_row(packed[j])]
        for k in range(len(p)):
            row[k] += layers.dx[k, j]
    return loss


@jit
def train_mlp(
    clients: Clients,
    P: Float32,
    rows: Float32,
    weights: Float32,
    lr_user: float,
    lr_rows: float,
    lr_weights: float,
) -> None:
    """FedNCF's local trainer: Adam, in place, on user vectors ``P``, the ``rows`` of the items in
    each client's samples, and network ``weights``. Adam's moments start at zero."""
    D, size = P.shape[1], weights.shape[1]
    layers = layer_buffers(D, D, size, clients.schedule.batch)
    for c in clients.block:
        p, w, q = P[c], weights[c], client_rows(clients, c, rows)
        g, entries = np.zeros_like(q), q.size
        flat_q, flat_g = q.reshape(entries), g.reshape(entries)
        m, v = np.zeros_like(flat_q), np.zeros_like(flat_q)
        mw, vw, mp, vp = np.zeros_like(w), np.zeros_like(w), np.zeros_like(p), np.zeros_like(p)
        order = packed_samples(clients, c)
        for t in range(1, ENDLESS):
            packed = next_batch(clients, c, order, t)
            if not len(packed):
                break
            clients.losses[c] += client_gradients(w, p, q, packed, layers, g)
            scale, unbias = corrections(t)
            adam_step(w, mw, vw, layers.gw, 1.0, size, lr_weights * scale, unbias)
            adam_step(p, mp, vp, layers.gp, 1.0, D, lr_user * scale, unbias)
            adam_step(flat_q, m, v, flat_g, 1.0, entries, lr_rows * scale, unbias)
            g[:] = 0.0


@jit
def _score_items(
    block: Int64, table: Float32, P: Float32, weights: Float32, held: Rows, scores: Float32
) -> None:
    D, n_items = P.shape[1], len(table)
    x = np.empty((D, _ITEMS_PER_PASS), np.float32)
    h1 = np.empty((D, _ITEMS_PER_PASS), np.float32)
    h2 = np.empty((max(D // 2, 1), _ITEMS_PER_PASS), np.float32)
    for c in block:
        at, end = held.indptr[c], held.indptr[c + 1]
        own_weights = weights[min(c, len(weights) - 1)]
        for low in range(0, n_items, _ITEMS_PER_PASS):
            n = min(_ITEMS_PER_PASS, n_items - low)
            for j in range(n):
                own = at < end and held.items[at] == low + j
                for k in range(D):
                    x[k, j] = held.values[at, k] if own else table[low + j, k]
                at += own
            _forward(own_weights, P[c], x, h1, h2, scores[c, low : low + n], n)


def score_mlp(table: Float32, p: Float32, weights: Float32, held: Rows) -> Float32:
    """Logit of every item for each client, whose rows in ``held`` replace those of ``table``.
    ``weights`` has a network per client, or a single one for all."""
    scores = np.empty((len(p), len(table)), np.float32)
    in_parallel(len(p), _score_items, table, p, weights, held, scores)
    return scores
