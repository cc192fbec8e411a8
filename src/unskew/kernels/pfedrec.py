"""PFedRec's local trainer: plain SGD, in turns, on an affine score function and on the item rows.

In each batch the score function steps first, with the items fixed. After a second forward pass with
the new function, the batch's items step; torch's SGD moves no row without a gradient.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import Batch, batch_arrays
from unskew.kernels.batches import (
    ENDLESS,
    Clients,
    client_rows,
    next_batch,
    packed_loss,
    packed_samples,
    sample_row,
)
from unskew.kernels.vectors import inner
from unskew.types import Float32, Int32


@jit
def _forward(packed: Int32, q: Float32, w: Float32, bias: float, batch: Batch) -> float:
    """Summed loss of packed samples with logits w.q + bias, q the embedding of a sample's item."""
    for j in range(len(packed)):
        batch.z[j] = inner(w, q[sample_row(packed[j])], len(w)) + bias
    return packed_loss(packed, batch)


@jit
def train_score_function(
    clients: Clients,
    W: Float32,
    biases: Float32,
    rows: Float32,
    lr_score: float,
    lr_rows: float,
) -> None:
    """Train each client's score function (``W``, ``biases``) and touched item ``rows`` in place."""
    D = W.shape[1]
    batch = batch_arrays(clients.schedule.batch)
    gw, step = np.empty(D, np.float32), np.empty(D, np.float32)
    score_rate, row_rate = np.float32(lr_score), np.float32(lr_rows)
    for c in clients.block:
        w, q = W[c], client_rows(clients, c, rows)
        order = packed_samples(clients, c)
        for t in range(1, ENDLESS):
            packed = next_batch(clients, c, order, t)
            if not len(packed):
                break
            # dL/dw = sum_j s_j q_j and dL/db = sum_j s_j, with the items before their step.
            _forward(packed, q, w, biases[c], batch)
            gw[:] = np.float32(0.0)
            gb = np.float32(0.0)
            for j in range(len(packed)):
                gb += batch.s[j]
                qj = q[sample_row(packed[j])]
                for k in range(D):
                    gw[k] += batch.s[j] * qj[k]
            for k in range(D):
                w[k] -= score_rate * gw[k]
            biases[c] -= score_rate * gb
            # dL/dq_j = s_j w, with the score function after its step.
            clients.losses[c] += _forward(packed, q, w, biases[c], batch)
            for k in range(D):
                step[k] = row_rate * w[k]
            for j in range(len(packed)):
                qj = q[sample_row(packed[j])]
                for k in range(D):
                    qj[k] -= batch.s[j] * step[k]
