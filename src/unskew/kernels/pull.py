"""Local training under a pull towards the direction of another table.

The pull, -weight cos(A, Q) over the *whole* item tables, has a gradient on every row, and Adam
moves whatever has a gradient: clients that feel it train all their rows, the others, in the same
call, the rows they touch.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._arithmetic import sqrt32
from unskew.kernels._sampling import Samples
from unskew.kernels._steps import (
    BETA_1,
    BETA_2,
    EPSILON,
    Clients,
    Schedule,
    adam_step,
    add_scaled,
    batch_buffers,
    batch_gradient,
    columns_of,
    move_and_score,
    pack,
    rows_held,
    rows_of,
    run_clients,
    samples_of,
    settled,
    shuffle,
)
from unskew.kernels._vectors import inner
from unskew.types import Bool, Cohort, Float32, Float64, Ragged

_b1, _b2, _eps = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON)
_c1, _c2 = np.float32(1 - BETA_1), np.float32(1 - BETA_2)


@jit
def difference(out: Float32, a: Float32, b: Float32, n: int) -> None:
    for i in range(n):
        out[i] = a[i] - b[i]


@jit
def _pulled_step(
    u: Float32,
    m: Float32,
    v: Float32,
    g: Float32,
    gk: float,
    q: Float32,
    along: float,
    a: Float32,
    towards: float,
    n: int,
    lr: float,
    t: int,
) -> None:
    """Adam's moments for the gradient g gk + along q + towards (a - q), and its step into ``u``."""
    step = np.float32(lr / (1.0 - BETA_1**t))
    unbias = np.float32(1.0 / np.sqrt(1.0 - BETA_2**t))
    f, h = np.float32(along), np.float32(towards)
    for i in range(n):
        gi = g[i] * gk + (f * q[i] + h * (a[i] - q[i]))
        mi = _b1 * m[i] + _c1 * gi
        vi = _b2 * v[i] + _c2 * gi * gi
        m[i] = mi
        v[i] = vi
        u[i] = step * mi / (sqrt32(vi) * unbias + _eps)


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
    batch, most_rows = clients.batch, clients.most_rows
    order, zb, yb, sb, bits = batch_buffers(clients)
    z = np.empty(most_rows, np.float32)
    g = np.empty(most_rows, np.float32)
    u = np.empty(most_rows, np.float32)
    Q = np.empty((D, most_rows), np.float32)
    A = np.empty((D, most_rows), np.float32)
    m = np.empty((D, most_rows), np.float32)
    v = np.empty((D, most_rows), np.float32)
    old = np.zeros(D, np.float32)
    gp = np.zeros(D, np.float32)
    mp = np.zeros(D, np.float32)
    vp = np.zeros(D, np.float32)
    for c in clients.block:
        row, label, n, key = samples_of(clients, c)
        first, n_rows = rows_held(clients, c)
        p, weight = P[c], weights[c]
        mp[:] = 0.0
        vp[:] = 0.0
        columns_of(rows, first, n_rows, Q)
        columns_of(target, first, n_rows, A)
        m[:, :n_rows] = 0.0
        v[:, :n_rows] = 0.0
        z[:n_rows] = 0.0
        size = 0.0
        for k in range(D):
            add_scaled(z, Q[k], p[k], n_rows)
            size += inner(A[k], A[k], n_rows)
        g[:n_rows] = 0.0
        pack(order, row, label, n)
        counter, t, total = 0, 0, 0.0
        for epoch in range(clients.epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], z, g, zb, yb, sb, bits, b)
                t += 1
                along, towards = 0.0, 0.0
                if weight != 0.0:
                    # -d cos / dQ = -(A / (|A| |Q|) - cos Q / |Q|^2), in terms of Q and A - Q, for
                    # the two almost cancel as long as Q is near A.
                    own, apart = 0.0, 0.0
                    for k in range(D):
                        difference(u, A[k], Q[k], n_rows)
                        own += inner(Q[k], Q[k], n_rows)
                        apart += inner(u, Q[k], n_rows)
                    towards = -weight / np.sqrt(size * own)
                    along = -towards * apart / own
                for k in range(D):
                    gp[k] = inner(g, Q[k], n_rows)
                    old[k] = p[k]
                adam_step(p, mp, vp, gp, D, lr_user, t)
                z[:n_rows] = 0.0
                for k in range(D):
                    _pulled_step(
                        u, m[k], v[k], g, old[k], Q[k], along, A[k], towards, n_rows, lr_rows, t
                    )
                    move_and_score(Q[k], u, z, p[k], n_rows)
                g[:n_rows] = 0.0
            if settled(clients, c, epoch, total / (n * (epoch + 1))):
                break
        rows_of(Q, rows, first, n_rows)


def widen(samples: Samples, whole: Bool, n_items: int) -> Samples:
    """The same samples with every item counted as touched by the clients marked ``whole``."""
    every = np.arange(n_items, dtype=np.int32)
    row = samples.row.copy()
    touched = [every[:0]]
    for c, all_of_it in enumerate(whole.tolist()):
        own = samples.touched.of(c)
        touched.append(every if all_of_it else own)
        if all_of_it:
            run = slice(samples.indptr[c], samples.indptr[c + 1])
            row[run] = own[row[run]]
    indptr = np.cumsum([len(part) for part in touched]).astype(np.int64)
    return samples._replace(row=row, touched=Ragged(indptr, np.concatenate(touched)))


def train_pulled(
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
    p: Float32,
    rows: Float32,
    target: Float32,
    weights: Float64,
    user_rate: float,
    row_rate: float,
) -> Float64:
    """:func:`train_joint` with -weight cos(target, rows) added to each client's loss; the returned
    losses are without it."""
    arrays = (p, rows, target, weights)
    return run_clients(_kernel, cohort, samples, purpose, schedule, *arrays, user_rate, row_rate)
