"""NCF's perceptron on pairs of embeddings: forward, backward, epochs, user gradients and scores.

Samples lie as columns, a few hundred at a time, so every inner loop runs over samples whatever the
widths of the layers. All weights are one flat vector, split by :class:`Shape`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples, draw_samples
from unskew.kernels.arithmetic import add_scaled, logistic_batch
from unskew.kernels.central import Table, adam, epoch_order, sample_items, sample_users
from unskew.kernels.parallel import for_each_block
from unskew.kernels.vectors import inner
from unskew.types import Cohort, Float32, Int32, Int64

_COLUMNS = 256
"""Samples that go through the network together."""


class Shape(NamedTuple):
    """Widths: input 2 d, two hidden layers, one output. The weights lie as W1 (first x 2 d), b1,
    W2 (second x first), b2, w3 (second), b3."""

    first: int
    second: int

    def sizes(self, dim: int) -> tuple[tuple[int, int], ...]:
        """(entries, fan-in) of the six parts."""
        first, second, width = self.first, self.second, 2 * dim
        return (
            (first * width, width),
            (first, width),
            (second * first, first),
            (second, first),
            (second, second),
            (1, second),
        )


@jit
def _dense(W: Float32, b: Float32, x: Float32, out: Float32, n: int, rectify: bool) -> None:
    """out = W x + b for ``n`` samples, negative values set to zero if ``rectify``."""
    for h in range(W.shape[0]):
        row = out[h]
        row[:n] = b[h]
        for k in range(W.shape[1]):
            add_scaled(row, x[k], W[h, k], n)
        if rectify:
            for j in range(n):
                row[j] = max(row[j], np.float32(0.0))


@jit
def _dense_back(
    W: Float32, x: Float32, d_out: Float32, gW: Float32, gb: Float32, d_in: Float32, n: int
) -> None:
    """Add the weights' gradients to ``gW`` and ``gb``; the input's gradient into ``d_in``."""
    ones = np.ones(n, np.float32)
    for h in range(W.shape[0]):
        gb[h] += inner(d_out[h], ones, n)
        for k in range(W.shape[1]):
            gW[h, k] += inner(d_out[h], x[k], n)
    for k in range(W.shape[1]):
        d_in[k, :n] = 0.0
        for h in range(W.shape[0]):
            add_scaled(d_in[k], d_out[h], W[h, k], n)


@jit
def _mask_inactive(d: Float32, activation: Float32, n: int) -> None:
    """Set the gradient to zero where the rectifier's output is zero."""
    for h in range(d.shape[0]):
        for j in range(n):
            d[h, j] = d[h, j] if activation[h, j] > 0 else np.float32(0.0)


@jit
def _parts(
    w: Float32, first: int, second: int, width: int
) -> tuple[Float32, Float32, Float32, Float32, Float32, Float32]:
    a = first * width
    b = a + first
    c = b + second * first
    d = c + second
    return (
        w[:a].reshape((first, width)),
        w[a:b],
        w[b:c].reshape((second, first)),
        w[c:d],
        w[d : d + second].reshape((1, second)),
        w[d + second :],
    )


@jit
def _forward_backward(
    w: Float32,
    g: Float32,
    first: int,
    second: int,
    x: Float32,
    y: Float32,
    dx: Float32,
    n: int,
    share: float,
) -> float:
    """Summed loss of ``n`` columns of ``x``; ``share`` times the gradient of their mean is added to
    ``g`` for the weights and written to ``dx`` for the input."""
    width = x.shape[0]
    W1, b1, W2, b2, W3, b3 = _parts(w, first, second, width)
    gW1, gb1, gW2, gb2, gW3, gb3 = _parts(g, first, second, width)
    h1 = np.empty((first, n), np.float32)
    h2 = np.empty((second, n), np.float32)
    z = np.empty((1, n), np.float32)
    s = np.empty((1, n), np.float32)
    d1 = np.empty((first, n), np.float32)
    d2 = np.empty((second, n), np.float32)
    bits = np.empty(n, np.int32)
    _dense(W1, b1, x, h1, n, True)
    _dense(W2, b2, h1, h2, n, True)
    _dense(W3, b3, h2, z, n, False)
    loss = logistic_batch(z[0], y, s[0], bits, n)
    for j in range(n):
        s[0, j] *= np.float32(share)
    _dense_back(W3, h2, s, gW3, gb3, d2, n)
    _mask_inactive(d2, h2, n)
    _dense_back(W2, h1, d2, gW2, gb2, d1, n)
    _mask_inactive(d1, h1, n)
    _dense_back(W1, x, d1, gW1, gb1, dx, n)
    return loss


@jit
def _ncf_epoch(
    order: Int32,
    user: Int32,
    item: Int32,
    label: Float32,
    P: Float32,
    mP: Float32,
    vP: Float32,
    Q: Float32,
    mQ: Float32,
    vQ: Float32,
    w: Float32,
    mw: Float32,
    vw: Float32,
    first: int,
    second: int,
    batch: int,
    lr: float,
    decay: float,
    t: int,
) -> float:
    D = P.shape[1]
    gP = np.zeros(P.shape, np.float32)
    gQ = np.zeros(Q.shape, np.float32)
    gw = np.zeros(w.shape, np.float32)
    x = np.empty((2 * D, _COLUMNS), np.float32)
    dx = np.empty((2 * D, _COLUMNS), np.float32)
    y = np.empty(_COLUMNS, np.float32)
    total = 0.0
    for low in range(0, len(order), batch):
        b = min(batch, len(order) - low)
        for part in range(low, low + b, _COLUMNS):
            n = min(_COLUMNS, low + b - part)
            for j in range(n):
                sample = order[part + j]
                y[j] = label[sample]
                for k in range(D):
                    x[k, j] = P[user[sample], k]
                    x[D + k, j] = Q[item[sample], k]
            total += _forward_backward(w, gw, first, second, x, y, dx, n, n / b)
            shrink = np.float32(decay / b)
            for j in range(n):
                sample = order[part + j]
                u, i = user[sample], item[sample]
                for k in range(D):
                    gP[u, k] += dx[k, j] + shrink * P[u, k]
                    gQ[i, k] += dx[D + k, j] + shrink * Q[i, k]
        t += 1
        adam(P, mP, vP, gP, lr, t)
        adam(Q, mQ, vQ, gQ, lr, t)
        adam(w, mw, vw, gw, lr, t)
    return total / max(len(order), 1)


def train_perceptron(
    cohort: Cohort,
    negatives: int,
    tables: tuple[Table, Table, Table],
    shape: Shape,
    batch: int,
    rate: float,
    decay: float,
    t: int,
) -> tuple[float, int]:
    """One epoch over users, items and weights in place; returns the mean loss and the next step
    count."""
    samples = draw_samples(cohort, negatives)
    order = epoch_order(len(samples.row), cohort)
    data = (order, sample_users(samples), sample_items(samples), samples.label)
    users, items, weights = tables
    loss = _ncf_epoch(*data, *users, *items, *weights, *shape, batch, rate, decay, t)
    return float(loss), t + -(-len(order) // batch)


@jit
def _user_gradient(
    block: Int64,
    indptr: Int64,
    item: Int32,
    label: Float32,
    P: Float32,
    Q: Float32,
    w: Float32,
    first: int,
    second: int,
    g: Float32,
) -> None:
    D = P.shape[1]
    unused = np.zeros(w.shape, np.float32)
    x = np.empty((2 * D, _COLUMNS), np.float32)
    dx = np.empty((2 * D, _COLUMNS), np.float32)
    y = np.empty(_COLUMNS, np.float32)
    for c in block:
        n_samples = indptr[c + 1] - indptr[c]
        for part in range(indptr[c], indptr[c + 1], _COLUMNS):
            n = min(_COLUMNS, indptr[c + 1] - part)
            for j in range(n):
                y[j] = label[part + j]
                for k in range(D):
                    x[k, j] = P[c, k]
                    x[D + k, j] = Q[item[part + j], k]
            _forward_backward(w, unused, first, second, x, y, dx, n, n / n_samples)
            for j in range(n):
                for k in range(D):
                    g[c, k] += dx[k, j]


def perceptron_user_gradient(
    samples: Samples, P: Float32, Q: Float32, w: Float32, shape: Shape
) -> Float32:
    """dL/dp of each user for the mean loss over its own samples, with all else frozen."""
    g, item = np.zeros_like(P), sample_items(samples)
    data = (samples.indptr, item, samples.label)
    for_each_block(samples.counts(), _user_gradient, *data, P, Q, w, *shape, g)
    return g


@jit
def _scores(
    block: Int64, P: Float32, items: Float32, w: Float32, first: int, second: int, scores: Float32
) -> None:
    D, n_items = items.shape
    W1, b1, W2, b2, W3, b3 = _parts(w, first, second, 2 * D)
    from_items = np.empty((first, n_items), np.float32)
    _dense(W1[:, D:].copy(), b1, items, from_items, n_items, False)
    h1 = np.empty((first, n_items), np.float32)
    h2 = np.empty((second, n_items), np.float32)
    zero = np.float32(0.0)
    for c in block:
        for h in range(first):
            shift = inner(W1[h], P[c], D)
            for i in range(n_items):
                h1[h, i] = max(from_items[h, i] + shift, zero)
        _dense(W2, b2, h1, h2, n_items, True)
        _dense(W3, b3, h2, scores[c : c + 1], n_items, False)


def perceptron_scores(P: Float32, Q: Float32, w: Float32, shape: Shape) -> Float32:
    """Logit of every item for each user. The items' part of the first layer is computed once."""
    scores = np.empty((len(P), len(Q)), np.float32)
    columns = np.ascontiguousarray(Q.T)
    for_each_block(np.ones(len(P), np.int64), _scores, P, columns, w, *shape, scores)
    return scores
