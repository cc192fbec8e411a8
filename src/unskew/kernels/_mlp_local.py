"""SGD on a private multi-layer perceptron over rows that a quadratic pulls to an anchor.

With mean binary cross-entropy plus reg x the mean squared distance of the *whole* table from the
anchor A, a step of SGD at rate eta moves every row by

    q <- a + keep (q - a) - eta dL/dq,    keep = 1 - 2 eta reg / (n_items dim),

so a row outside the client's samples is, after t steps, at a + keep^t (q - a): only touched rows
need training. The network is FedNCF's (see ``_mlp``).
"""

from __future__ import annotations

import numpy as np

from unskew.kernels._arithmetic import jit, logistic_batch
from unskew.kernels._mlp import _backward, _forward
from unskew.kernels._sampling import Samples
from unskew.kernels._steps import Schedule, converged, run_clients, shuffle
from unskew.rng import stream
from unskew.types import Cohort, Float32, Float64, Int32, Int64


@jit
def _descend(x: Float32, g: Float32, rate: float, n: int) -> None:
    step = np.float32(rate)
    for i in range(n):
        x[i] -= step * g[i]


@jit
def _descend_anchored(q: Float32, a: Float32, g: Float32, keep: float, rate: float, n: int) -> None:
    """``g`` is consumed."""
    kept, step = np.float32(keep), np.float32(rate)
    for i in range(n):
        q[i] = a[i] + kept * (q[i] - a[i]) - step * g[i]
        g[i] = np.float32(0.0)


@jit
def _kernel(
    block: Int64,
    most: int,
    most_rows: int,
    users: Int64,
    seed: int,
    round: int,
    purpose: int,
    s_indptr: Int64,
    s_row: Int32,
    s_label: Float32,
    t_indptr: Int64,
    epochs: int,
    batch: int,
    tolerance: float,
    losses: Float64,
    P: Float32,
    rows: Float32,
    anchor: Float32,
    weights: Float32,
    steps: Int64,
    lr_user: float,
    lr_rows: float,
    lr_weights: float,
    keep: float,
) -> None:
    D, size = P.shape[1], weights.shape[1]
    order = np.empty(most, np.int32)
    zb = np.empty(batch, np.float32)
    yb = np.empty(batch, np.float32)
    sb = np.empty(batch, np.float32)
    bits = np.empty(batch, np.int32)
    ones = np.ones(batch, np.float32)
    x = np.empty((D, batch), np.float32)
    dx = np.empty((D, batch), np.float32)
    h1 = np.empty((D, batch), np.float32)
    d1 = np.empty((D, batch), np.float32)
    h2 = np.empty((D // 2, batch), np.float32)
    column = np.empty(D, np.float32)
    gw = np.zeros(size, np.float32)
    gp = np.zeros(D, np.float32)
    g = np.zeros(most_rows * D, np.float32)
    for c in block:
        start, n = s_indptr[c], s_indptr[c + 1] - s_indptr[c]
        first, n_rows = t_indptr[c], t_indptr[c + 1] - t_indptr[c]
        row, label = s_row[start : start + n], s_label[start : start + n]
        key = stream(seed, round, users[c], purpose)
        p, w = P[c], weights[c]
        q = rows[first : first + n_rows].reshape(n_rows * D)
        a = anchor[first : first + n_rows].reshape(n_rows * D)
        for i in range(n):
            order[i] = i
        counter, total, previous = 0, 0.0, 0.0
        for epoch in range(epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                for j in range(b):
                    yb[j] = label[order[low + j]]
                    at = row[order[low + j]] * D
                    for k in range(D):
                        x[k, j] = q[at + k]
                _forward(w, p, x, h1, h2, zb, b)
                total += logistic_batch(zb, yb, sb, bits, b)
                _backward(w, p, x, h1, h2, sb, ones, column, d1, gw, gp, dx, b)
                for j in range(b):
                    at = row[order[low + j]] * D
                    for k in range(D):
                        g[at + k] += dx[k, j]
                _descend(w, gw, lr_weights, size)
                _descend(p, gp, lr_user, D)
                _descend_anchored(q, a, g, keep, lr_rows, n_rows * D)
                steps[c] += 1
            mean = total / (n * (epoch + 1))
            losses[c] = mean
            if converged(epoch, mean, previous, tolerance):
                break
            previous = mean


def train_anchored(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    anchor: Float32,
    weights: Float32,
    user_rate: float,
    row_rate: float,
    weight_rate: float,
    keep: float,
) -> tuple[Float64, Int64]:
    """Train ``p``, the touched ``rows`` and the networks' ``weights`` in place. Returns the mean
    losses (without the pull) and how many steps each client took."""
    steps = np.zeros(len(p), np.int64)
    arrays = (p, rows, anchor, weights, steps)
    rates = (user_rate, row_rate, weight_rate, keep)
    losses = run_clients(_kernel, cohort, samples, purpose, schedule, *arrays, *rates)
    return losses, steps
