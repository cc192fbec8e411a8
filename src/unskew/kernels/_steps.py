"""What local trainers are made of: Adam's steps, batches, shuffles, and the walk over clients.

Inside a trainer a client's rows lie as columns, one contiguous run per embedding dimension: every
inner loop runs over rows and becomes full vectors whatever the dimension. Logits and gradients are
kept per row, so a sample costs two look-ups and one logistic function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._arithmetic import logistic_batch, sqrt32
from unskew.kernels._parallel import for_each_block
from unskew.kernels._sampling import Samples
from unskew.kernels._vectors import fused
from unskew.rng import below, stream, value
from unskew.types import Cohort, Float32, Float64, Int32, Int64

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults."""

_b1, _b2, EPS = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON)
_c1, _c2 = np.float32(1 - BETA_1), np.float32(1 - BETA_2)
_AHEAD = 256
"""Draws made ahead of the exchanges they decide."""


class Schedule(NamedTuple):
    """How long and in what portions a client trains in one round."""

    epochs: int
    batch: int
    tolerance: float
    """Stop once the running mean loss changes by less than this share between epochs (0: never)."""


@jit
def shuffle(order: Int32, n: int, key: np.uint64, counter: int) -> int:
    """Fisher-Yates on the first ``n`` entries; returns the stream's next counter.

    Some draws are made ahead of their exchanges, so that hashing does not wait for memory, and
    places are unsigned, so that none is tested for counting from the end.
    """
    ahead = np.empty(min(n, _AHEAD), np.uint32)
    left = n
    while left > 1:
        draws = min(left - 1, _AHEAD)
        for d in range(draws):
            ahead[d] = below(value(key, counter + d), left - d)
        for d in range(draws):
            i, j = np.uint64(left - 1 - d), np.uint64(ahead[d])
            order[i], order[j] = order[j], order[i]
        counter += draws
        left -= draws
    return counter


class Clients(NamedTuple):
    """What every trainer is told: whom to train, on which samples, for how long."""

    block: Int64
    """The places of the clients to train, in the arrays below."""
    most: int
    """Samples of the one with most."""
    most_rows: int
    """Rows of the one with most."""
    users: Int64
    seed: int
    round: int
    purpose: int
    indptr: Int64
    row: Int32
    label: Float32
    touched: Int64
    epochs: int
    batch: int
    tolerance: float
    losses: Float64


@jit
def batch_buffers(clients: Clients) -> tuple[Int32, Float32, Float32, Float32, Int32]:
    """Room for the order of the samples, and for a batch's logits, labels, slopes and bits."""
    order, bits = np.empty(clients.most, np.int32), np.empty(clients.batch, np.int32)
    zb = np.empty(clients.batch, np.float32)
    yb = np.empty(clients.batch, np.float32)
    return order, zb, yb, np.empty(clients.batch, np.float32), bits


@jit
def samples_of(clients: Clients, c: int) -> tuple[Int32, Float32, int, np.uint64]:
    """Client c's rows and labels, how many, and the key of its random numbers."""
    low, high = clients.indptr[c], clients.indptr[c + 1]
    key = stream(clients.seed, clients.round, clients.users[c], clients.purpose)
    return clients.row[low:high], clients.label[low:high], high - low, key


@jit
def rows_held(clients: Clients, c: int) -> tuple[int, int]:
    """Where client c's touched rows begin, and how many there are."""
    return clients.touched[c], clients.touched[c + 1] - clients.touched[c]


@jit
def settled(clients: Clients, c: int, epoch: int, mean: float) -> bool:
    """Note the mean loss so far; whether it has stopped changing."""
    previous = clients.losses[c]
    clients.losses[c] = mean
    return epoch > 0 and abs(mean - previous) / abs(previous + 1e-5) < clients.tolerance


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
def corrections(t: int) -> tuple[float, float]:
    """What Adam's two moments are multiplied by at step t, so that their start at zero is undone:
    1 / (1 - beta_1^t) and 1 / sqrt(1 - beta_2^t)."""
    return 1.0 / (1.0 - BETA_1**t), 1.0 / np.sqrt(1.0 - BETA_2**t)


@jit
def descend(
    x: Float32, m: Float32, v: Float32, g: Float32, gk: float, n: int, rate: float, unbias: float
) -> None:
    """One step of Adam on the first ``n`` entries of x for the gradient g gk; ``rate`` has the
    first of the :func:`corrections` in it, ``unbias`` is the second."""
    factor, step, unbiased = np.float32(gk), np.float32(rate), np.float32(unbias)
    for i in range(n):
        gi = g[i] * factor
        mi = fused(_b1, m[i], _c1 * gi)
        vi = fused(_b2, v[i], _c2 * gi * gi)
        m[i] = mi
        v[i] = vi
        x[i] -= step * mi / fused(sqrt32(vi), unbiased, EPS)


@jit
def add_scaled(z: Float32, q: Float32, pk: float, n: int) -> None:
    for i in range(n):
        z[i] += pk * q[i]


@jit
def score_columns(z: Float32, Q: Float32, p: Float32, n: int, low: int = 0) -> None:
    """z_i = p.q_i for ``n`` columns from ``low`` on, four dimensions at a time: z is passed over
    less."""
    whole = Q.shape[0] - Q.shape[0] % 4
    for i in range(n):
        z[i] = 0.0
    for k in range(0, whole, 4):
        q0, q1, q2, q3 = Q[k, low:], Q[k + 1, low:], Q[k + 2, low:], Q[k + 3, low:]
        p0, p1, p2, p3 = p[k], p[k + 1], p[k + 2], p[k + 3]
        for i in range(n):
            z[i] = z[i] + p0 * q0[i] + p1 * q1[i] + p2 * q2[i] + p3 * q3[i]
    for k in range(whole, Q.shape[0]):
        add_scaled(z, Q[k, low:], p[k], n)


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
def row_of(packed: int) -> np.uint32:
    """The row of a packed sample; unsigned, so that it is not tested for counting from the end."""
    return np.uint32(packed) >> np.uint32(1)


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
        zb[j] = z[row_of(packed[j])]
    for j in range(b):
        yb[j] = packed[j] & 1
    loss = logistic_batch(zb, yb, sb, bits, b)
    for j in range(b):
        g[row_of(packed[j])] += sb[j]
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
    """Run the kernel on blocks of clients; what it noted as their mean losses."""
    touched = samples.touched.indptr
    clients = Clients(
        np.arange(len(cohort.users)),
        0,
        0,
        cohort.users,
        cohort.seed,
        cohort.round,
        purpose,
        samples.indptr,
        samples.row,
        samples.label,
        touched,
        *schedule,
        np.zeros(len(cohort.users)),
    )

    def run(block: Int64) -> None:
        sizes = largest(samples.indptr, block), largest(touched, block)
        kernel(clients._replace(block=block, most=sizes[0], most_rows=sizes[1]), *arrays_and_rates)

    for_each_block(samples.counts() * np.diff(touched), run)
    return clients.losses
