"""PFedCLR's two local trainers: Adam on the rows a client touches.

torch's dense Adam moves a row only once it has had a gradient, so a client's round concerns its
touched rows alone. Within the round they keep moving by momentum, also in batches they are not in.
All moments start at zero each round.

* :func:`train_rows`: item rows against a frozen user vector (Step 1; AF's fine-tuning);
* :func:`train_low_rank`: the user vector and the buffer A B over frozen item rows (Step 2).
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.adam import (
    adam_step,
    add_moves,
    choose_nodes,
    corrections,
    frozen_user_step,
)
from unskew.kernels.arithmetic import add_scaled, load_columns, logistic_batch, store_columns
from unskew.kernels.batches import (
    Clients,
    Schedule,
    batch_buffers,
    batch_gradient,
    client_rows,
    client_samples,
    has_converged,
    pack_samples,
    run_clients,
    sample_row,
    shuffle,
)
from unskew.kernels.vectors import PADDING, inner, score_samples, sum_samples
from unskew.types import Cohort, Float32, Float64


@jit
def _rows_kernel(
    clients: Clients,
    P: Float32,
    rows: Float32,
    lr: float,
) -> None:
    D = P.shape[1]
    batch, max_rows = clients.batch, clients.max_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    width = max_rows + (-max_rows) % PADDING
    z = np.zeros(width, np.float32)
    g = np.zeros(width, np.float32)
    mu = np.zeros(width, np.float32)
    nu = np.zeros(width, np.float32)
    pull = np.zeros(width, np.float32)
    moved = np.zeros((D, width), np.float32)
    apart = np.empty((D, D), np.float64)
    gap = np.empty(D, np.float64)
    floor = np.empty(D, np.float32)
    weight = np.empty(D, np.float32)
    mixing = np.empty((D, D), np.float32)
    for c in clients.block:
        row, label, n, key = client_samples(clients, c)
        first, n_rows = client_rows(clients, c)
        p = P[c]
        n_nodes = choose_nodes(p, apart, gap, floor, weight, mixing)
        at_nodes = moved[:n_nodes]
        at_nodes[:, :n_rows] = 0.0
        for i in range(n_rows):
            z[i] = inner(rows[first + i], p, D)
        g[:n_rows] = 0.0
        mu[:n_rows] = 0.0
        nu[:n_rows] = 0.0
        pack_samples(order, row, label, n)
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], z, g, zb, yb, sb, bits, b)
                t += 1
                frozen_user_step(at_nodes, z, g, mu, nu, pull, weight, floor, n_rows, lr, t)
            if has_converged(clients, c, epoch, total / (n * (epoch + 1))):
                break
        add_moves(rows, first, n_rows, at_nodes, mixing, pull)


@jit
def _low_rank_kernel(
    clients: Clients,
    P: Float32,
    rows: Float32,
    A_rows: Float32,
    Bs: Float32,
    lr_user: float,
    lr_buffer: float,
) -> None:
    D, R = P.shape[1], A_rows.shape[1]
    batch, max_rows = clients.batch, clients.max_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    g = np.empty(max_rows, np.float32)
    A = np.empty((R, max_rows), np.float32)
    mA = np.empty((R, max_rows), np.float32)
    vA = np.empty((R, max_rows), np.float32)
    gp = np.zeros(D, np.float32)
    mp = np.zeros(D, np.float32)
    vp = np.zeros(D, np.float32)
    gB = np.zeros(R * D, np.float32)
    mB = np.zeros(R * D, np.float32)
    vB = np.zeros(R * D, np.float32)
    Bp = np.zeros(R, np.float32)
    Ab = np.empty((R, batch), np.float32)
    for c in clients.block:
        row, label, n, key = client_samples(clients, c)
        first, n_rows = client_rows(clients, c)
        p, B = P[c], Bs[c]
        flat_B = B.reshape(R * D)
        load_columns(A_rows, first, n_rows, A)
        mA[:, :n_rows] = 0.0
        vA[:, :n_rows] = 0.0
        mp[:] = 0.0
        vp[:] = 0.0
        mB[:] = 0.0
        vB[:] = 0.0
        g[:n_rows] = 0.0
        pack_samples(order, row, label, n)
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                # p.(q + a B) = p.q + a.(B p): the product A B is never formed. The rows q do not
                # move here, so only those of the batch are read.
                packed = order[low:]
                zb[:b] = 0.0
                score_samples(rows, first, packed, p, zb, b)
                for r in range(R):
                    Bp[r] = inner(B[r], p, D)
                    for j in range(b):
                        Ab[r, j] = A[r, sample_row(packed[j])]
                    add_scaled(zb, Ab[r], Bp[r], b)
                for j in range(b):
                    yb[j] = packed[j] & 1
                total += logistic_batch(zb, yb, sb, bits, b)
                t += 1
                # dL/dp = sum_i g_i (q_i + a_i B), dL/da_i = g_i B p, dL/dB = (sum_i g_i a_i) p^T
                sum_samples(rows, first, packed, sb, gp, b)
                for j in range(b):
                    g[sample_row(packed[j])] += sb[j]
                for r in range(R):
                    ga = inner(sb, Ab[r], b)
                    for k in range(D):
                        gp[k] += ga * B[r, k]
                        gB[r * D + k] = ga * p[k]
                scale, unbias = corrections(t)
                for r in range(R):
                    adam_step(A[r], mA[r], vA[r], g, Bp[r], n_rows, lr_buffer * scale, unbias)
                adam_step(flat_B, mB, vB, gB, 1.0, R * D, lr_buffer * scale, unbias)
                adam_step(p, mp, vp, gp, 1.0, D, lr_user * scale, unbias)
                g[:n_rows] = 0.0
            if has_converged(clients, c, epoch, total / (n * (epoch + 1))):
                break
        store_columns(A, A_rows, first, n_rows)


def train_rows(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    rate: float,
) -> Float64:
    """Train each client's touched ``rows`` in place against a frozen ``p``; return mean losses."""
    kernel = _rows_kernel
    return run_clients(kernel, cohort, samples, purpose, schedule, p, rows, rate)


def train_low_rank(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    A: Float32,
    B: Float32,
    user_rate: float,
    buffer_rate: float,
) -> Float64:
    """Train ``p``, the touched rows of ``A``, and ``B`` in place over frozen ``rows``; return mean
    losses."""
    kernel = _low_rank_kernel
    return run_clients(
        kernel, cohort, samples, purpose, schedule, p, rows, A, B, user_rate, buffer_rate
    )
