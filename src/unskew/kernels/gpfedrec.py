"""GPFedRec's local trainer: SGD on a private perceptron and on rows pulled towards an anchor.

With mean binary cross-entropy plus reg x the mean squared distance of the *whole* table from the
anchor A, a step of SGD at rate eta moves every row by

    q <- a + keep (q - a) - eta dL/dq,    keep = 1 - 2 eta reg / (n_items dim),

so a row outside the client's samples is, after t steps, at a + keep^t (q - a): only touched rows
need training. The network is FedNCF's.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.batches import (
    Clients,
    Schedule,
    client_rows,
    client_samples,
    has_converged,
    run_clients,
    shuffle,
)
from unskew.kernels.perceptron import client_gradients, layer_buffers
from unskew.types import Cohort, Float32, Float64, Int64, Rows


@jit
def _descend(x: Float32, g: Float32, rate: float, n: int) -> None:
    """x <- x - rate g."""
    step = np.float32(rate)
    for i in range(n):
        x[i] -= step * g[i]


@jit
def _descend_anchored(q: Float32, a: Float32, g: Float32, keep: float, rate: float, n: int) -> None:
    """q <- a + keep (q - a) - rate g; ``g`` is set to zero."""
    kept, step = np.float32(keep), np.float32(rate)
    for i in range(n):
        q[i] = a[i] + kept * (q[i] - a[i]) - step * g[i]
        g[i] = np.float32(0.0)


@jit
def _kernel(
    clients: Clients,
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
    batch, max_rows = clients.batch, clients.max_rows
    order = np.empty(clients.max_samples, np.int32)
    layers = layer_buffers(D, D, size, batch)
    g = np.zeros(max_rows * D, np.float32)
    for c in clients.block:
        row, label, n, key = client_samples(clients, c)
        first, n_rows = client_rows(clients, c)
        p, w = P[c], weights[c]
        q = rows[first : first + n_rows].reshape(n_rows * D)
        a = anchor[first : first + n_rows].reshape(n_rows * D)
        for i in range(n):
            order[i] = i
        counter, total = 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += client_gradients(w, p, q, row, label, order[low:], layers, g, b)
                _descend(w, layers.gw, lr_weights, size)
                _descend(p, layers.gp, lr_user, D)
                _descend_anchored(q, a, g, keep, lr_rows, n_rows * D)
                steps[c] += 1
            if has_converged(clients, c, epoch, total / (n * (epoch + 1))):
                break


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
    """Train ``p``, the touched ``rows`` and the networks' ``weights`` in place.

    Returns the mean losses (without the pull) and the number of steps each client took.
    """
    steps = np.zeros(len(p), np.int64)
    arrays = (p, rows, anchor, weights, steps)
    rates = (user_rate, row_rate, weight_rate, keep)
    losses = run_clients(_kernel, cohort, samples, purpose, schedule, *arrays, *rates)
    return losses, steps


def whole_tables(base: Float32, tables: Float32, extra: Rows) -> Rows:
    """``base`` + each client's own flat table + its extra rows, as rows that cover all items."""
    n, (n_items, width) = len(tables), base.shape
    values = tables + base.reshape(-1)
    client = np.repeat(np.arange(n), np.diff(extra.indptr))
    values = values.reshape(n, n_items, width)
    values[client, extra.items] += extra.values
    items = np.tile(np.arange(n_items, dtype=np.int32), n)
    return Rows(np.arange(n + 1, dtype=np.int64) * n_items, items, values.reshape(-1, width))
