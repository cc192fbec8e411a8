"""What every local trainer shares: the clients of a block, and their samples in shuffled batches.

A client's samples are packed into one number each, row and label together, and shuffled as such.
Logits and gradients are kept per row, so a sample costs two look-ups and one logistic function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples
from unskew.kernels.arithmetic import logistic_batch
from unskew.kernels.parallel import for_each_block
from unskew.rng import below, stream, value
from unskew.types import Cohort, Float32, Float64, Int32, Int64

_DRAWS_AHEAD = 256
"""Random numbers a shuffle computes before it uses them."""


class Schedule(NamedTuple):
    """How long a client trains in one round."""

    epochs: int
    batch: int
    """Samples per batch."""
    tolerance: float
    """Stop once the running mean loss changes by less than this share between epochs (0: never)."""


@jit
def shuffle(order: Int32, n: int, key: np.uint64, counter: int) -> int:
    """Fisher-Yates on the first ``n`` entries; returns the stream's next counter.

    Draws are made ahead of their exchanges, so that hashing does not wait for memory. Indices are
    unsigned, so that numba does not test them for counting from the end.
    """
    ahead = np.empty(min(n, _DRAWS_AHEAD), np.uint32)
    left = n
    while left > 1:
        draws = min(left - 1, _DRAWS_AHEAD)
        for d in range(draws):
            ahead[d] = below(value(key, counter + d), left - d)
        for d in range(draws):
            i, j = np.uint64(left - 1 - d), np.uint64(ahead[d])
            order[i], order[j] = order[j], order[i]
        counter += draws
        left -= draws
    return counter


class Clients(NamedTuple):
    """The clients a kernel trains, their samples, and the schedule."""

    block: Int64
    """Positions of the clients to train in the arrays below."""
    max_samples: int
    """Largest number of samples of any client in the block."""
    max_rows: int
    """Largest number of touched rows of any client in the block."""
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
    """Mean loss of each client, written by the kernel."""


@jit
def batch_buffers(clients: Clients) -> tuple[Int32, Float32, Float32, Float32, Int32]:
    """Arrays for the order of the samples, and a batch's logits, labels, gradients and scratch."""
    order, bits = np.empty(clients.max_samples, np.int32), np.empty(clients.batch, np.int32)
    zb = np.empty(clients.batch, np.float32)
    yb = np.empty(clients.batch, np.float32)
    return order, zb, yb, np.empty(clients.batch, np.float32), bits


@jit
def client_samples(clients: Clients, c: int) -> tuple[Int32, Float32, int, np.uint64]:
    """Rows and labels of client c's samples, their number, and the key of its random stream."""
    low, high = clients.indptr[c], clients.indptr[c + 1]
    key = stream(clients.seed, clients.round, clients.users[c], clients.purpose)
    return clients.row[low:high], clients.label[low:high], high - low, key


@jit
def client_rows(clients: Clients, c: int) -> tuple[int, int]:
    """Index of client c's first touched row, and the number of its touched rows."""
    return clients.touched[c], clients.touched[c + 1] - clients.touched[c]


@jit
def has_converged(clients: Clients, c: int, epoch: int, mean: float) -> bool:
    """Store the mean loss so far; tell whether it changed by less than the tolerance."""
    previous = clients.losses[c]
    clients.losses[c] = mean
    return epoch > 0 and abs(mean - previous) / abs(previous + 1e-5) < clients.tolerance


@jit
def pack_samples(order: Int32, row: Int32, label: Float32, n: int) -> None:
    """Pack the row and the label of each sample into one number."""
    for i in range(n):
        order[i] = (row[i] << 1) | np.int32(label[i])


@jit
def sample_row(packed: int) -> np.uint32:
    """The row of a packed sample, unsigned so that it is not tested for counting from the end."""
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
    """Add dL/dz of ``b`` packed samples to their rows' ``g``; return the batch's summed loss."""
    for j in range(b):
        zb[j] = z[sample_row(packed[j])]
    for j in range(b):
        yb[j] = packed[j] & 1
    loss = logistic_batch(zb, yb, sb, bits, b)
    for j in range(b):
        g[sample_row(packed[j])] += sb[j]
    return loss


def _largest(indptr: Int64, block: Int64) -> int:
    return int((indptr[block + 1] - indptr[block]).max())


def run_clients(
    kernel: Callable[..., Any],
    cohort: Cohort,
    samples: Samples,
    purpose: int,
    schedule: Schedule,
    *arrays_and_rates: object,
) -> Float64:
    """Run a trainer on blocks of the cohort's clients and return their mean losses."""
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
        max_samples, max_rows = _largest(samples.indptr, block), _largest(touched, block)
        here = clients._replace(block=block, max_samples=max_samples, max_rows=max_rows)
        kernel(here, *arrays_and_rates)

    for_each_block(samples.counts() * np.diff(touched), run)
    return clients.losses
