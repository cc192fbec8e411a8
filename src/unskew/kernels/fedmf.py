"""Train the user vector and the touched rows together by Adam, with an optional pull.

FedMF and PFedCLR's full buffer train without the pull. pFedGraph adds -weight cos(A, Q) over the
*whole* item tables, which has a gradient on every row: clients with a pull train all their rows,
the others, in the same call, the rows they touch.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.adam import adam_step, corrections
from unskew.kernels.arithmetic import load_columns, score_columns, store_columns
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
    shuffle,
)
from unskew.kernels.vectors import inner
from unskew.types import Bool, Cohort, Float32, Float64, Ragged


@jit
def _pulled_gradient(
    u: Float32, g: Float32, gk: float, q: Float32, along: float, a: Float32, towards: float, n: int
) -> None:
    """u = gk g + along q + towards (a - q)."""
    f, h = np.float32(along), np.float32(towards)
    for i in range(n):
        u[i] = g[i] * gk + (f * q[i] + h * (a[i] - q[i]))


@jit
def _cosine_gradient(
    Q: Float32, A: Float32, size: float, weight: float, u: Float32, n: int
) -> tuple[float, float]:
    """The gradient of -weight cos(A, Q) as along Q + towards (A - Q); ``size`` is |A|^2.

    -d cos / dQ = -(A / (|A| |Q|) - cos Q / |Q|^2). In terms of Q and A - Q, because the two terms
    almost cancel as long as Q is near A. ``u`` is scratch.
    """
    own, apart = 0.0, 0.0
    for k in range(len(Q)):
        _difference(u, A[k], Q[k], n)
        own += inner(Q[k], Q[k], n)
        apart += inner(u, Q[k], n)
    towards = -weight / np.sqrt(size * own)
    return -towards * apart / own, towards


@jit
def _difference(out: Float32, a: Float32, b: Float32, n: int) -> None:
    for i in range(n):
        out[i] = a[i] - b[i]


@jit
def _kernel(
    clients: Clients,
    P: Float32,
    rows: Float32,
    target: Float32,
    weights: Float64,
    lr_user: float,
    lr_rows: float,
) -> None:
    D = P.shape[1]
    batch, max_rows = clients.batch, clients.max_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    z = np.empty(max_rows, np.float32)
    g = np.empty(max_rows, np.float32)
    u = np.empty(max_rows, np.float32)
    Q = np.empty((D, max_rows), np.float32)
    A = np.empty((D, max_rows if len(target) else 0), np.float32)
    m = np.empty((D, max_rows), np.float32)
    v = np.empty((D, max_rows), np.float32)
    old = np.zeros(D, np.float32)
    gp = np.zeros(D, np.float32)
    mp = np.zeros(D, np.float32)
    vp = np.zeros(D, np.float32)
    for c in clients.block:
        row, label, n, key = client_samples(clients, c)
        first, n_rows = client_rows(clients, c)
        p, weight = P[c], weights[c]
        mp[:] = 0.0
        vp[:] = 0.0
        load_columns(rows, first, n_rows, Q)
        m[:, :n_rows] = 0.0
        v[:, :n_rows] = 0.0
        score_columns(z, Q, p, n_rows)
        g[:n_rows] = 0.0
        size = 0.0
        if weight != 0.0:
            load_columns(target, first, n_rows, A)
            for k in range(D):
                size += inner(A[k], A[k], n_rows)
        pack_samples(order, row, label, n)
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], z, g, zb, yb, sb, bits, b)
                t += 1
                along, towards = 0.0, 0.0
                if weight != 0.0:
                    along, towards = _cosine_gradient(Q, A, size, weight, u, n_rows)
                # dL/dp = sum_i g_i q_i and dL/dq_i = g_i p, both at the values before the step.
                for k in range(D):
                    gp[k] = inner(g, Q[k], n_rows)
                    old[k] = p[k]
                scale, unbias = corrections(t)
                adam_step(p, mp, vp, gp, 1.0, D, lr_user * scale, unbias)
                for k in range(D):
                    slope, factor = g, old[k]
                    if weight != 0.0:
                        _pulled_gradient(u, g, old[k], Q[k], along, A[k], towards, n_rows)
                        slope, factor = u, np.float32(1.0)
                    adam_step(Q[k], m[k], v[k], slope, factor, n_rows, lr_rows * scale, unbias)
                score_columns(z, Q, p, n_rows)
                g[:n_rows] = 0.0
            if has_converged(clients, c, epoch, total / (n * (epoch + 1))):
                break
        store_columns(Q, rows, first, n_rows)


def touch_all_rows(samples: Samples, chosen: Bool, n_items: int) -> Samples:
    """The same samples with every item counted as touched by the ``chosen`` clients."""
    every = np.arange(n_items, dtype=np.int32)
    row = samples.row.copy()
    touched = [every[:0]]
    for c, all_rows in enumerate(chosen.tolist()):
        own = samples.touched.of(c)
        touched.append(every if all_rows else own)
        if all_rows:
            run = slice(samples.indptr[c], samples.indptr[c + 1])
            row[run] = own[row[run]]
    indptr = np.cumsum([len(part) for part in touched]).astype(np.int64)
    return samples._replace(row=row, touched=Ragged(indptr, np.concatenate(touched)))


def train_joint(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    user_rate: float,
    row_rate: float,
    target: Float32 | None = None,
    weights: Float64 | None = None,
) -> Float64:
    """Train ``p`` and the touched ``rows`` in place; return mean losses.

    With a ``target`` table, -weight cos(target, rows) is added to the loss of each client whose
    weight is not 0. The returned losses do not include it.
    """
    no_target = np.empty((0, rows.shape[1]), np.float32)
    arrays = (
        p,
        rows,
        no_target if target is None else target,
        np.zeros(len(p)) if weights is None else weights,
    )
    return run_clients(_kernel, cohort, samples, purpose, schedule, *arrays, user_rate, row_rate)
