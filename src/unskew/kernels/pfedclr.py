"""PFedCLR's two local trainers: Adam on the touched items, those in a client's samples.

torch's Adam moves a row only once it has had a gradient, so only touched rows change in a round.
From then on they move by momentum, also in batches without their item. Moments start at zero in
each round.

* :func:`train_rows`: item rows, with the user vector frozen (Step 1, and the baseline FedMF w/ AF);
* :func:`train_low_rank`: the user vector and the low-rank buffer A B, a matrix added to the item
  table, with the item rows frozen (Step 2).
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.adam import (
    adam_step,
    add_moves,
    choose_nodes,
    corrections,
    frozen_user_rows,
    frozen_user_step,
)
from unskew.kernels.arithmetic import add_scaled, batch_arrays, columns_of, store_columns
from unskew.kernels.batches import (
    ENDLESS,
    Clients,
    batch_gradient,
    client_rows,
    next_batch,
    packed_loss,
    packed_samples,
    sample_row,
)
from unskew.kernels.vectors import inner, score_samples, sum_samples
from unskew.types import Float32


@jit
def train_rows(clients: Clients, P: Float32, rows: Float32, lr: float) -> None:
    """Train the ``rows`` of the items in each client's samples; user vectors ``P`` are frozen."""
    batch = batch_arrays(clients.schedule.batch)
    for c in clients.block:
        p, mine = P[c], client_rows(clients, c, rows)
        floor, weight, mixing = choose_nodes(p)
        state = frozen_user_rows(mine, p, len(floor))
        order = packed_samples(clients, c)
        for t in range(1, ENDLESS):
            packed = next_batch(clients, c, order, t)
            if not len(packed):
                break
            clients.losses[c] += batch_gradient(packed, state.z, state.g, batch)
            frozen_user_step(state, weight, floor, lr, t)
        add_moves(mine, state.moved, mixing)


@jit
def train_low_rank(
    clients: Clients,
    P: Float32,
    rows: Float32,
    A_rows: Float32,
    Bs: Float32,
    lr_user: float,
    lr_buffer: float,
) -> None:
    """Train in place each client's user vector in ``P`` and low-rank buffer A B (the rows of A of
    the items in its samples, and its matrix B), with the item ``rows`` frozen."""
    D, R = P.shape[1], A_rows.shape[1]
    batch = batch_arrays(clients.schedule.batch)
    Ab = np.empty((R, clients.schedule.batch), np.float32)
    gp, gB, Bp = np.empty(D, np.float32), np.empty(R * D, np.float32), np.empty(R, np.float32)
    for c in clients.block:
        p, B = P[c], Bs[c]
        Q, A_mine = client_rows(clients, c, rows), client_rows(clients, c, A_rows)
        flat_B, A = B.reshape(R * D), columns_of(A_mine)
        mA, vA = np.zeros_like(A), np.zeros_like(A)
        mB, vB = np.zeros(R * D, np.float32), np.zeros(R * D, np.float32)
        mp, vp = np.zeros(D, np.float32), np.zeros(D, np.float32)
        g = np.zeros(len(Q), np.float32)
        order = packed_samples(clients, c)
        for t in range(1, ENDLESS):
            packed = next_batch(clients, c, order, t)
            if not len(packed):
                break
            # p.(q + a B) = p.q + a.(B p): the product A B is never formed. The rows q do not
            # move here, so only those of the batch are read.
            b = len(packed)
            batch.z[:b] = 0.0
            score_samples(Q, packed, p, batch.z, b)
            for r in range(R):
                Bp[r] = inner(B[r], p, D)
                for j in range(b):
                    Ab[r, j] = A[r, sample_row(packed[j])]
                add_scaled(batch.z, Ab[r], Bp[r], b)
            clients.losses[c] += packed_loss(packed, batch)
            # dL/dp = sum_i g_i (q_i + a_i B), dL/da_i = g_i B p, dL/dB = (sum_i g_i a_i) p^T
            sum_samples(Q, packed, batch.s, gp, b)
            for j in range(b):
                g[sample_row(packed[j])] += batch.s[j]
            for r in range(R):
                ga = inner(batch.s, Ab[r], b)
                for k in range(D):
                    gp[k] += ga * B[r, k]
                    gB[r * D + k] = ga * p[k]
            scale, unbias = corrections(t)
            for r in range(R):
                adam_step(A[r], mA[r], vA[r], g, Bp[r], len(g), lr_buffer * scale, unbias)
            adam_step(flat_B, mB, vB, gB, 1.0, R * D, lr_buffer * scale, unbias)
            adam_step(p, mp, vp, gp, 1.0, D, lr_user * scale, unbias)
            g[:] = 0.0
        store_columns(A, A_mine)
