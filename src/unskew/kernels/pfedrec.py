"""PFedRec's local trainer: an affine score function and the items it scores, by plain SGD in turns.

Per batch, the score function steps first, against the items as they are. After a second forward
pass with the new function, the items step. torch's SGD leaves a row without a gradient where it is,
so a batch moves only the items in it.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.arithmetic import logistic_batch
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
from unskew.kernels.vectors import inner
from unskew.types import Cohort, Float32, Float64, Int32


@jit
def _logits(
    order: Int32, row: Int32, q: Float32, w: Float32, bias: float, z: Float32, b: int
) -> None:
    """z_j = w.q_j + bias for the batch's samples."""
    for j in range(b):
        z[j] = inner(w, q[row[order[j]]], len(w)) + bias


@jit
def _train_kernel(
    clients: Clients,
    W: Float32,
    biases: Float32,
    rows: Float32,
    lr_score: float,
    lr_rows: float,
) -> None:
    D = W.shape[1]
    batch = clients.batch
    order, zb, yb, sb, bits = batch_buffers(clients)
    gw = np.empty(D, np.float32)
    step = np.empty(D, np.float32)
    score_rate, row_rate = np.float32(lr_score), np.float32(lr_rows)
    for c in clients.block:
        row, label, n, key = client_samples(clients, c)
        first, n_rows = client_rows(clients, c)
        w, q = W[c], rows[first : first + n_rows]
        for i in range(n):
            order[i] = i
        counter, total = 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                here = order[low:]
                for j in range(b):
                    yb[j] = label[here[j]]
                # dL/dw = sum_j s_j q_j and dL/db = sum_j s_j, with the items before their step.
                _logits(here, row, q, w, biases[c], zb, b)
                logistic_batch(zb, yb, sb, bits, b)
                gw[:] = np.float32(0.0)
                gb = np.float32(0.0)
                for j in range(b):
                    gb += sb[j]
                    qj = q[row[here[j]]]
                    for k in range(D):
                        gw[k] += sb[j] * qj[k]
                for k in range(D):
                    w[k] -= score_rate * gw[k]
                biases[c] -= score_rate * gb
                # dL/dq_j = s_j w, with the score function after its step.
                _logits(here, row, q, w, biases[c], zb, b)
                total += logistic_batch(zb, yb, sb, bits, b)
                for k in range(D):
                    step[k] = row_rate * w[k]
                for j in range(b):
                    qj = q[row[here[j]]]
                    for k in range(D):
                        qj[k] -= sb[j] * step[k]
            if has_converged(clients, c, epoch, total / (n * (epoch + 1))):
                break


def train_score_function(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    weight: Float32,
    bias: Float32,
    rows: Float32,
    score_rate: float,
    row_rate: float,
) -> Float64:
    """Train each client's score function and its touched ``rows`` in place; return mean losses."""
    rates = (score_rate, row_rate)
    return run_clients(
        _train_kernel, cohort, samples, purpose, schedule, weight, bias, rows, *rates
    )
