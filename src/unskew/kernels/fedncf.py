"""FedNCF's local trainer: the user vector, the touched rows and the perceptron, by Adam.

The item rows lie as rows, so that Adam steps over all of them in one loop. Only touched rows can
move, and all moments start at zero each round.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.adam import adam_step, corrections
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
from unskew.types import Cohort, Float32, Float64


@jit
def _kernel(
    clients: Clients,
    P: Float32,
    rows: Float32,
    weights: Float32,
    lr_user: float,
    lr_rows: float,
    lr_weights: float,
) -> None:
    D, size = P.shape[1], weights.shape[1]
    batch, max_entries = clients.batch, clients.max_rows * D
    order = np.empty(clients.max_samples, np.int32)
    layers = layer_buffers(D, D, size, batch)
    mw, vw = np.zeros(size, np.float32), np.zeros(size, np.float32)
    mp, vp = np.zeros(D, np.float32), np.zeros(D, np.float32)
    g = np.zeros(max_entries, np.float32)
    m, v = np.zeros(max_entries, np.float32), np.zeros(max_entries, np.float32)
    for c in clients.block:
        row, label, n, key = client_samples(clients, c)
        first, n_rows = client_rows(clients, c)
        entries = n_rows * D
        p, w, q = P[c], weights[c], rows[first : first + n_rows].reshape(entries)
        for moments in (mw, vw, mp, vp, m[:entries], v[:entries]):
            moments[:] = 0.0
        for i in range(n):
            order[i] = i
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += client_gradients(w, p, q, row, label, order[low:], layers, g, b)
                t += 1
                scale, unbias = corrections(t)
                adam_step(w, mw, vw, layers.gw, 1.0, size, lr_weights * scale, unbias)
                adam_step(p, mp, vp, layers.gp, 1.0, D, lr_user * scale, unbias)
                adam_step(q, m, v, g, 1.0, entries, lr_rows * scale, unbias)
                g[:entries] = 0.0
            if has_converged(clients, c, epoch, total / (n * (epoch + 1))):
                break


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
    """Train ``p``, the touched ``rows`` and the ``weights`` in place; return mean losses."""
    rates = (user_rate, row_rate, weight_rate)
    return run_clients(_kernel, cohort, samples, purpose, schedule, p, rows, weights, *rates)
