"""Local training: Adam on the rows a client touches, nothing else.

torch's dense Adam moves a row only once it has had a gradient, so a client's round concerns its
touched rows alone; within the round they keep moving by momentum even in batches they are not in,
and so they do here. All moments start afresh each round. Three kernels cover every variant:

* :func:`train_rows`: item rows against a frozen user vector (PFedCLR's Step 1, AF's fine-tuning);
* :func:`train_joint`: item rows and user vector together (FedMF; PFedCLR's Step 2 with a full
  buffer, where training W is training Q + W from where it stands);
* :func:`train_low_rank`: the user vector and the buffer A B over frozen item rows.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._arithmetic import logistic_batch
from unskew.kernels._frozen_user import add_movement, choose_nodes, frozen_user_step
from unskew.kernels._row_vectors import score_samples, sum_samples
from unskew.kernels._sampling import Samples
from unskew.kernels._steps import (
    Clients,
    Schedule,
    adam_step,
    add_scaled,
    batch_buffers,
    batch_gradient,
    columns_of,
    corrections,
    descend,
    moments_step,
    move_and_score,
    pack,
    row_of,
    rows_held,
    rows_of,
    run_clients,
    samples_of,
    score_columns,
    settled,
    shuffle,
)
from unskew.kernels._vectors import PADDING, inner
from unskew.types import Cohort, Float32, Float64


@jit
def _rows_kernel(
    clients: Clients,
    P: Float32,
    rows: Float32,
    lr: float,
) -> None:
    D = P.shape[1]
    batch, most_rows = clients.batch, clients.most_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    width = most_rows + (-most_rows) % PADDING
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
        row, label, n, key = samples_of(clients, c)
        first, n_rows = rows_held(clients, c)
        p = P[c]
        n_nodes = choose_nodes(p, apart, gap, floor, weight, mixing)
        at_nodes = moved[:n_nodes]
        at_nodes[:, :n_rows] = 0.0
        for i in range(n_rows):
            z[i] = inner(rows[first + i], p, D)
        g[:n_rows] = 0.0
        mu[:n_rows] = 0.0
        nu[:n_rows] = 0.0
        pack(order, row, label, n)
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], z, g, zb, yb, sb, bits, b)
                t += 1
                frozen_user_step(at_nodes, z, g, mu, nu, pull, weight, floor, n_rows, lr, t)
            if settled(clients, c, epoch, total / (n * (epoch + 1))):
                break
        add_movement(rows, first, n_rows, at_nodes, mixing, pull)


@jit
def _joint_kernel(
    clients: Clients,
    P: Float32,
    rows: Float32,
    lr_user: float,
    lr_rows: float,
) -> None:
    D = P.shape[1]
    batch, most_rows = clients.batch, clients.most_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    z = np.empty(most_rows, np.float32)
    g = np.empty(most_rows, np.float32)
    u = np.empty(most_rows, np.float32)
    Q = np.empty((D, most_rows), np.float32)
    m = np.empty((D, most_rows), np.float32)
    v = np.empty((D, most_rows), np.float32)
    old = np.zeros(D, np.float32)
    gp = np.zeros(D, np.float32)
    mp = np.zeros(D, np.float32)
    vp = np.zeros(D, np.float32)
    for c in clients.block:
        row, label, n, key = samples_of(clients, c)
        first, n_rows = rows_held(clients, c)
        p = P[c]
        mp[:] = 0.0
        vp[:] = 0.0
        columns_of(rows, first, n_rows, Q)
        m[:, :n_rows] = 0.0
        v[:, :n_rows] = 0.0
        score_columns(z, Q, p, n_rows)
        g[:n_rows] = 0.0
        pack(order, row, label, n)
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], z, g, zb, yb, sb, bits, b)
                t += 1
                # dL/dp = sum_i g_i q_i and dL/dq_i = g_i p, both at the values before the step.
                for k in range(D):
                    gp[k] = inner(g, Q[k], n_rows)
                    old[k] = p[k]
                adam_step(p, mp, vp, gp, D, lr_user, t)
                z[:n_rows] = 0.0
                for k in range(D):
                    moments_step(u, m[k], v[k], g, old[k], n_rows, lr_rows, t)
                    move_and_score(Q[k], u, z, p[k], n_rows)
                g[:n_rows] = 0.0
            if settled(clients, c, epoch, total / (n * (epoch + 1))):
                break
        rows_of(Q, rows, first, n_rows)


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
    batch, most_rows = clients.batch, clients.most_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    g = np.empty(most_rows, np.float32)
    A = np.empty((R, most_rows), np.float32)
    mA = np.empty((R, most_rows), np.float32)
    vA = np.empty((R, most_rows), np.float32)
    gp = np.zeros(D, np.float32)
    mp = np.zeros(D, np.float32)
    vp = np.zeros(D, np.float32)
    gB = np.zeros(R * D, np.float32)
    mB = np.zeros(R * D, np.float32)
    vB = np.zeros(R * D, np.float32)
    Bp = np.zeros(R, np.float32)
    Ab = np.empty((R, batch), np.float32)
    for c in clients.block:
        row, label, n, key = samples_of(clients, c)
        first, n_rows = rows_held(clients, c)
        p, B = P[c], Bs[c]
        flat_B = B.reshape(R * D)
        columns_of(A_rows, first, n_rows, A)
        mA[:, :n_rows] = 0.0
        vA[:, :n_rows] = 0.0
        mp[:] = 0.0
        vp[:] = 0.0
        mB[:] = 0.0
        vB[:] = 0.0
        g[:n_rows] = 0.0
        pack(order, row, label, n)
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                # p.(q + a B) = p.q + a.(B p): the product A B is never formed. Unlike the other
                # trainers' rows, q does not move, so only the batch's own rows are looked at.
                packed = order[low:]
                zb[:b] = 0.0
                score_samples(rows, first, packed, p, zb, b)
                for r in range(R):
                    Bp[r] = inner(B[r], p, D)
                    for j in range(b):
                        Ab[r, j] = A[r, row_of(packed[j])]
                    add_scaled(zb, Ab[r], Bp[r], b)
                for j in range(b):
                    yb[j] = packed[j] & 1
                total += logistic_batch(zb, yb, sb, bits, b)
                t += 1
                # dL/dp = sum_i g_i (q_i + a_i B), dL/da_i = g_i B p, dL/dB = (sum_i g_i a_i) p^T
                sum_samples(rows, first, packed, sb, gp, b)
                for j in range(b):
                    g[row_of(packed[j])] += sb[j]
                for r in range(R):
                    ga = inner(sb, Ab[r], b)
                    for k in range(D):
                        gp[k] += ga * B[r, k]
                        gB[r * D + k] = ga * p[k]
                scale, unbias = corrections(t)
                for r in range(R):
                    descend(A[r], mA[r], vA[r], g, Bp[r], n_rows, lr_buffer * scale, unbias)
                descend(flat_B, mB, vB, gB, 1.0, R * D, lr_buffer * scale, unbias)
                descend(p, mp, vp, gp, 1.0, D, lr_user * scale, unbias)
                g[:n_rows] = 0.0
            if settled(clients, c, epoch, total / (n * (epoch + 1))):
                break
        rows_of(A, A_rows, first, n_rows)


def train_rows(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    rate: float,
) -> Float64:
    """Train each client's touched item ``rows`` in place against its frozen ``p``; mean losses."""
    kernel = _rows_kernel
    return run_clients(kernel, cohort, samples, purpose, schedule, p, rows, rate)


def train_joint(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    user_rate: float,
    row_rate: float,
) -> Float64:
    """Train ``p`` and the touched ``rows`` together, both in place; mean losses."""
    kernel = _joint_kernel
    return run_clients(kernel, cohort, samples, purpose, schedule, p, rows, user_rate, row_rate)


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
    """Train ``p``, the touched rows of ``A``, and ``B`` over frozen ``rows``; mean losses."""
    kernel = _low_rank_kernel
    return run_clients(
        kernel, cohort, samples, purpose, schedule, p, rows, A, B, user_rate, buffer_rate
    )
