"""What local trainers are made of: Adam's steps, batches, shuffles, and the walk over clients.

Inside a trainer a client's rows lie as columns, one contiguous run per embedding dimension: every
inner loop runs over rows and becomes full vectors whatever the dimension. Logits and gradients are
kept per row, so a sample costs two look-ups and one logistic function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit, logistic_batch, sqrt32
from unskew.kernels._parallel import for_each_block
from unskew.kernels._sampling import Samples
from unskew.kernels._vectors import move_rows
from unskew.rng import below, value
from unskew.types import Cohort, Float32, Float64, Int32, Int64

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults."""

_b1, _b2, EPS = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON)
_c1, _c2 = np.float32(1 - BETA_1), np.float32(1 - BETA_2)
_NEAR = 1024
"""Columns worked on together: what every dimension needs of them stays in the nearest cache."""
HIGHEST_FLOOR = np.float32(1e8)
"""Stands for eps / 0: large enough that the row does not move, small enough to be squared."""


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
        x[i] -= step * m[i] / (sqrt32(v[i]) * unbias + EPS)
        g[i] = np.float32(0.0)


@jit
def frozen_user_step(
    Q: Float32,
    z: Float32,
    g: Float32,
    mu: Float32,
    nu: Float32,
    pull: Float32,
    size: Float32,
    floor: Float32,
    n: int,
    lr: float,
    t: int,
) -> None:
    """Adam on the rows when each row's gradient is g_i p with p constant.

    The first moment is then mu_i p and the second nu_i p^2, two scalars per row instead of two
    vectors, and a row moves by

        lr mu p_k / (|p_k| sqrt(nu) + eps) = sign(p_k) lr mu / (sqrt(nu) + eps / |p_k|).

    ``Q`` holds sign(p_k) q_ik, so that signs drop out; ``floor`` is eps / |p_k|, ``size`` |p_k|;
    the logit z_i = p.q_i follows its row without a new product. ``g`` is consumed (left at zero).
    """
    step = np.float32(lr / (1.0 - BETA_1**t))
    unbias = np.float32(1.0 / np.sqrt(1.0 - BETA_2**t))
    for i in range(n):
        mu[i] = _b1 * mu[i] + _c1 * g[i]
        nu[i] = _b2 * nu[i] + _c2 * g[i] * g[i]
        pull[i] = step * mu[i]
        g[i] = sqrt32(nu[i]) * unbias
    for first in range(0, n, _NEAR):
        move_rows(Q, z, pull, g, size, floor, first, min(_NEAR, n - first))
    for i in range(n):
        g[i] = np.float32(0.0)


@jit
def flip_columns(Q: Float32, p: Float32, n: int) -> None:
    """Multiply the columns of each dimension by the sign of p_k; twice is nothing."""
    for k in range(len(p)):
        if p[k] < 0:
            q = Q[k]
            for i in range(n):
                q[i] = -q[i]


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
        u[i] = step * mi / (sqrt32(vi) * unbias + EPS)


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
def pack(order: Int32, row: Int32, label: Float32, n: int) -> None:
    """A client's samples as one number each, row and label together: what is shuffled."""
    for i in range(n):
        order[i] = (row[i] << 1) | np.int32(label[i])


@jit
def batch_gradient(
    packed: Int32,
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
        zb[j] = z[packed[j] >> 1]
        yb[j] = packed[j] & 1
    loss = logistic_batch(zb, yb, sb, bits, b)
    for j in range(b):
        g[packed[j] >> 1] += sb[j]
    return loss


def largest(indptr: Int64, block: Int64) -> int:
    return int((indptr[block + 1] - indptr[block]).max())


def run_clients(
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
