"""NCF in one place: epochs of Adam over users, items and the perceptron, and user gradients."""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples, draw_samples
from unskew.kernels.arithmetic import add_scaled
from unskew.kernels.central import Table, adam, epoch_order, sample_items, sample_users
from unskew.kernels.parallel import for_each_block
from unskew.kernels.perceptron import layer_buffers, mlp_gradients
from unskew.types import Cohort, Float32, Int32, Int64

_COLUMNS = 256
"""Samples that go through the network together."""


@jit
def _epoch(
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
    batch: int,
    lr: float,
    decay: float,
    t: int,
) -> float:
    D = P.shape[1]
    gP = np.zeros(P.shape, np.float32)
    gQ = np.zeros(Q.shape, np.float32)
    gw = np.zeros(w.shape, np.float32)
    layers = layer_buffers(D, 2 * D, len(w), _COLUMNS)
    x, dx, no_user = layers.x, layers.dx, np.empty(0, np.float32)
    total = 0.0
    for low in range(0, len(order), batch):
        b = min(batch, len(order) - low)
        shrink = np.float32(decay / b)
        for part in range(low, low + b, _COLUMNS):
            n = min(_COLUMNS, low + b - part)
            for j in range(n):
                sample = order[part + j]
                layers.y[j] = label[sample]
                for k in range(D):
                    x[k, j] = P[user[sample], k]
                    x[D + k, j] = Q[item[sample], k]
            total += mlp_gradients(w, no_user, layers, n, n / b)
            add_scaled(gw, layers.gw, 1.0, len(w))
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
    loss = _epoch(*data, *users, *items, *weights, batch, rate, decay, t)
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
    g: Float32,
) -> None:
    D = P.shape[1]
    layers = layer_buffers(D, D, len(w), _COLUMNS)
    for c in block:
        n_samples = indptr[c + 1] - indptr[c]
        for part in range(indptr[c], indptr[c + 1], _COLUMNS):
            n = min(_COLUMNS, indptr[c + 1] - part)
            for j in range(n):
                layers.y[j] = label[part + j]
                for k in range(D):
                    layers.x[k, j] = Q[item[part + j], k]
            mlp_gradients(w, P[c], layers, n, n / n_samples)
            add_scaled(g[c], layers.gp, 1.0, D)


def perceptron_user_gradient(samples: Samples, P: Float32, Q: Float32, w: Float32) -> Float32:
    """dL/dp of each user for the mean loss over its own samples, with all else frozen."""
    g, data = np.zeros_like(P), (samples.indptr, sample_items(samples), samples.label)
    for_each_block(samples.counts(), _user_gradient, *data, P, Q, w, g)
    return g
