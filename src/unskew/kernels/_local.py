"""Local training: Adam on the rows a client touches, nothing else.

torch's dense Adam moves a row only once it has had a gradient, so a client's round concerns its
touched rows alone; within the round they keep moving by momentum even in batches they are not in,
and so they do here. All moments start afresh each round. Three kernels cover every variant:

* :func:`train_rows`: item rows against a frozen user vector (PFedCLR's Step 1, AF's fine-tuning);
* :func:`train_joint`: item rows and user vector together (FedMF; PFedCLR's Step 2 with a full
  buffer, where training W is training Q + W from where it stands);
* :func:`train_low_rank`: the user vector and the buffer A B over frozen item rows.

Inside a kernel a client's rows lie as columns, one contiguous run per embedding dimension: every
inner loop runs over rows and becomes full vectors whatever the dimension. Logits and gradients are
kept per row, so a sample costs two look-ups and one logistic function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unskew.kernels._arithmetic import inner, jit, logistic_batch, sqrt32
from unskew.kernels._parallel import for_each_block
from unskew.kernels._sampling import Samples
from unskew.rng import below, stream, value
from unskew.types import Cohort, Float32, Float64, Int32, Int64

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults."""

_b1, _b2, _eps = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON)
_c1, _c2 = np.float32(1 - BETA_1), np.float32(1 - BETA_2)


class Schedule(NamedTuple):
    """How long and in what portions a client trains in one round."""

    epochs: int
    batch: int
    tolerance: float
    """Stop once the running mean loss changes by less than this share between epochs (0: never)."""


@jit
def shuffle(order: Int32, n: int, key: np.uint64, counter: int) -> int:
    """Fisher-Yates on the first ``n`` entries; returns the stream's next counter."""
    for i in range(n - 1, 0, -1):
        j = below(value(key, counter), i + 1)
        counter += 1
        order[i], order[j] = order[j], order[i]
    return counter


@jit
def converged(epoch: int, mean: float, previous: float, tolerance: float) -> bool:
    return epoch > 0 and abs(mean - previous) / abs(previous + 1e-5) < tolerance


@jit
def adam_step(x: Float32, m: Float32, v: Float32, g: Float32, n: int, lr: float, t: int) -> None:
    """One step of torch's Adam on the first ``n`` entries; ``g`` is consumed (left at zero)."""
    step = np.float32(lr / (1.0 - BETA_1**t))
    unbias = np.float32(1.0 / np.sqrt(1.0 - BETA_2**t))
    for i in range(n):
        m[i] = _b1 * m[i] + _c1 * g[i]
        v[i] = _b2 * v[i] + _c2 * g[i] * g[i]
        x[i] -= step * m[i] / (sqrt32(v[i]) * unbias + _eps)
        g[i] = np.float32(0.0)


@jit
def frozen_user_step(
    Q: Float32,
    z: Float32,
    g: Float32,
    mu: Float32,
    nu: Float32,
    p: Float32,
    n: int,
    lr: float,
    t: int,
) -> None:
    """Adam on the rows when each row's gradient is g_i p with p constant.

    The first moment is then mu_i p and the second nu_i p^2: two scalars per row instead of two
    vectors, and the logit z_i = p.q_i follows the row without a new product.
    """
    step = np.float32(lr / (1.0 - BETA_1**t))
    unbias = np.float32(1.0 / np.sqrt(1.0 - BETA_2**t))
    for i in range(n):
        mu[i] = _b1 * mu[i] + _c1 * g[i]
        nu[i] = _b2 * nu[i] + _c2 * g[i] * g[i]
        g[i] = sqrt32(nu[i]) * unbias
    for k in range(Q.shape[0]):
        q = Q[k]
        pk = p[k]
        size = abs(pk)
        rate = step * pk
        for i in range(n):
            move = rate * mu[i] / (size * g[i] + _eps)
            q[i] -= move
            z[i] -= pk * move
    for i in range(n):
        g[i] = np.float32(0.0)


@jit
def moments_step(
    u: Float32, m: Float32, v: Float32, g: Float32, gk: float, n: int, lr: float, t: int
) -> None:
    """Adam's moments for the gradient g gk, and the step they ask for into ``u``."""
    step = np.float32(lr / (1.0 - BETA_1**t))
    unbias = np.float32(1.0 / np.sqrt(1.0 - BETA_2**t))
    for i in range(n):
        gi = g[i] * gk
        mi = _b1 * m[i] + _c1 * gi
        vi = _b2 * v[i] + _c2 * gi * gi
        m[i] = mi
        v[i] = vi
        u[i] = step * mi / (sqrt32(vi) * unbias + _eps)


@jit
def move_and_score(q: Float32, u: Float32, z: Float32, pk: float, n: int) -> None:
    for i in range(n):
        q[i] -= u[i]
        z[i] += pk * q[i]


@jit
def subtract(x: Float32, u: Float32, n: int) -> None:
    for i in range(n):
        x[i] -= u[i]


@jit
def add_scaled(z: Float32, q: Float32, pk: float, n: int) -> None:
    for i in range(n):
        z[i] += pk * q[i]


@jit
def score_columns(z: Float32, Q: Float32, p: Float32, n: int) -> None:
    """z_i = p.q_i for the first ``n`` columns, four dimensions at a time: z is passed over less."""
    whole = Q.shape[0] - Q.shape[0] % 4
    for i in range(n):
        z[i] = 0.0
    for k in range(0, whole, 4):
        q0, q1, q2, q3 = Q[k], Q[k + 1], Q[k + 2], Q[k + 3]
        p0, p1, p2, p3 = p[k], p[k + 1], p[k + 2], p[k + 3]
        for i in range(n):
            z[i] = z[i] + p0 * q0[i] + p1 * q1[i] + p2 * q2[i] + p3 * q3[i]
    for k in range(whole, Q.shape[0]):
        add_scaled(z, Q[k], p[k], n)


@jit
def columns_of(rows: Float32, first: int, n: int, Q: Float32) -> None:
    """The client's ``n`` rows as columns: one contiguous run per embedding dimension."""
    for i in range(n):
        for k in range(Q.shape[0]):
            Q[k, i] = rows[first + i, k]


@jit
def rows_of(Q: Float32, rows: Float32, first: int, n: int) -> None:
    for i in range(n):
        for k in range(Q.shape[0]):
            rows[first + i, k] = Q[k, i]


@jit
def batch_gradient(
    order: Int32,
    row: Int32,
    label: Float32,
    z: Float32,
    g: Float32,
    zb: Float32,
    yb: Float32,
    sb: Float32,
    bits: Int32,
    b: int,
) -> float:
    """Add each sample's share of dL/dz to its row's ``g``; return the summed loss of the batch."""
    for j in range(b):
        zb[j] = z[row[order[j]]]
        yb[j] = label[order[j]]
    loss = logistic_batch(zb, yb, sb, bits, b)
    for j in range(b):
        g[row[order[j]]] += sb[j]
    return loss


def largest(indptr: Int64, block: Int64) -> int:
    return int((indptr[block + 1] - indptr[block]).max())


@jit
def _rows_kernel(
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
    lr: float,
) -> None:
    D = P.shape[1]
    order = np.empty(most, np.int32)
    zb = np.empty(batch, np.float32)
    yb = np.empty(batch, np.float32)
    sb = np.empty(batch, np.float32)
    bits = np.empty(batch, np.int32)
    z = np.empty(most_rows, np.float32)
    g = np.empty(most_rows, np.float32)
    mu = np.empty(most_rows, np.float32)
    nu = np.empty(most_rows, np.float32)
    Q = np.empty((D, most_rows), np.float32)
    for c in block:
        start, n = s_indptr[c], s_indptr[c + 1] - s_indptr[c]
        first, n_rows = t_indptr[c], t_indptr[c + 1] - t_indptr[c]
        row, label = s_row[start : start + n], s_label[start : start + n]
        key = stream(seed, round, users[c], purpose)
        p = P[c]
        columns_of(rows, first, n_rows, Q)
        score_columns(z, Q, p, n_rows)
        g[:n_rows] = 0.0
        mu[:n_rows] = 0.0
        nu[:n_rows] = 0.0
        for i in range(n):
            order[i] = i
        counter, t, total, previous = 0, 0, 0.0, 0.0
        for epoch in range(epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], row, label, z, g, zb, yb, sb, bits, b)
                t += 1
                frozen_user_step(Q, z, g, mu, nu, p, n_rows, lr, t)
            mean = total / (n * (epoch + 1))
            losses[c] = mean
            if converged(epoch, mean, previous, tolerance):
                break
            previous = mean
        rows_of(Q, rows, first, n_rows)


@jit
def _joint_kernel(
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
    lr_user: float,
    lr_rows: float,
) -> None:
    D = P.shape[1]
    order = np.empty(most, np.int32)
    zb = np.empty(batch, np.float32)
    yb = np.empty(batch, np.float32)
    sb = np.empty(batch, np.float32)
    bits = np.empty(batch, np.int32)
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
    for c in block:
        start, n = s_indptr[c], s_indptr[c + 1] - s_indptr[c]
        first, n_rows = t_indptr[c], t_indptr[c + 1] - t_indptr[c]
        row, label = s_row[start : start + n], s_label[start : start + n]
        key = stream(seed, round, users[c], purpose)
        p = P[c]
        mp[:] = 0.0
        vp[:] = 0.0
        columns_of(rows, first, n_rows, Q)
        m[:, :n_rows] = 0.0
        v[:, :n_rows] = 0.0
        score_columns(z, Q, p, n_rows)
        g[:n_rows] = 0.0
        for i in range(n):
            order[i] = i
        counter, t, total, previous = 0, 0, 0.0, 0.0
        for epoch in range(epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                total += batch_gradient(order[low:], row, label, z, g, zb, yb, sb, bits, b)
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
            mean = total / (n * (epoch + 1))
            losses[c] = mean
            if converged(epoch, mean, previous, tolerance):
                break
            previous = mean
        rows_of(Q, rows, first, n_rows)


@jit
def _low_rank_kernel(
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
    A_rows: Float32,
    Bs: Float32,
    lr_user: float,
    lr_buffer: float,
) -> None:
    D, R = P.shape[1], A_rows.shape[1]
    order = np.empty(most, np.int32)
    zb = np.empty(batch, np.float32)
    yb = np.empty(batch, np.float32)
    sb = np.empty(batch, np.float32)
    bits = np.empty(batch, np.int32)
    z = np.empty(most_rows, np.float32)
    g = np.empty(most_rows, np.float32)
    u = np.empty(most_rows, np.float32)
    Q = np.empty((D, most_rows), np.float32)
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
    ga = np.zeros(R, np.float32)
    for c in block:
        start, n = s_indptr[c], s_indptr[c + 1] - s_indptr[c]
        first, n_rows = t_indptr[c], t_indptr[c + 1] - t_indptr[c]
        row, label = s_row[start : start + n], s_label[start : start + n]
        key = stream(seed, round, users[c], purpose)
        p, B = P[c], Bs[c]
        flat_B = B.reshape(R * D)
        columns_of(rows, first, n_rows, Q)
        columns_of(A_rows, first, n_rows, A)
        mA[:, :n_rows] = 0.0
        vA[:, :n_rows] = 0.0
        mp[:] = 0.0
        vp[:] = 0.0
        mB[:] = 0.0
        vB[:] = 0.0
        g[:n_rows] = 0.0
        for i in range(n):
            order[i] = i
        counter, t, total, previous = 0, 0, 0.0, 0.0
        for epoch in range(epochs):
            counter = shuffle(order, n, key, counter)
            for low in range(0, n, batch):
                b = min(batch, n - low)
                # p.(q + a B) = p.q + a.(B p): the product A B is never formed.
                score_columns(z, Q, p, n_rows)
                for r in range(R):
                    Bp[r] = inner(B[r], p, D)
                    add_scaled(z, A[r], Bp[r], n_rows)
                total += batch_gradient(order[low:], row, label, z, g, zb, yb, sb, bits, b)
                t += 1
                # dL/dp = sum_i g_i (q_i + a_i B), dL/da_i = g_i B p, dL/dB = (sum_i g_i a_i) p^T
                for k in range(D):
                    gp[k] = inner(g, Q[k], n_rows)
                for r in range(R):
                    ga[r] = inner(g, A[r], n_rows)
                    for k in range(D):
                        gp[k] += ga[r] * B[r, k]
                        gB[r * D + k] = ga[r] * p[k]
                for r in range(R):
                    moments_step(u, mA[r], vA[r], g, Bp[r], n_rows, lr_buffer, t)
                    subtract(A[r], u, n_rows)
                adam_step(flat_B, mB, vB, gB, R * D, lr_buffer, t)
                adam_step(p, mp, vp, gp, D, lr_user, t)
                g[:n_rows] = 0.0
            mean = total / (n * (epoch + 1))
            losses[c] = mean
            if converged(epoch, mean, previous, tolerance):
                break
            previous = mean
        rows_of(A, A_rows, first, n_rows)


def _run(
    kernel: Callable[..., Any],
    cohort: Cohort,
    samples: Samples,
    purpose: int,
    schedule: Schedule,
    *arrays_and_rates: object,
) -> Float64:
    losses = np.zeros(len(cohort.users))
    touched = samples.touched.indptr
    work = samples.counts() * np.diff(touched)
    for_each_block(
        work,
        lambda block: kernel(
            block,
            largest(samples.indptr, block),
            largest(touched, block),
            cohort.users,
            cohort.seed,
            cohort.round,
            purpose,
            samples.indptr,
            samples.row,
            samples.label,
            touched,
            schedule.epochs,
            schedule.batch,
            schedule.tolerance,
            losses,
            *arrays_and_rates,
        ),
    )
    return losses


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
    return _run(kernel, cohort, samples, purpose, schedule, p, rows, rate)


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
    return _run(kernel, cohort, samples, purpose, schedule, p, rows, user_rate, row_rate)


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
    return _run(kernel, cohort, samples, purpose, schedule, p, rows, A, B, user_rate, buffer_rate)
