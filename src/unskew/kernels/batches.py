"""Loops of local training: clients in parallel blocks, and a client's samples in shuffled batches.

A sample is packed into one integer, 2 x row + label, where ``row`` is the index of its item among
the client's items. Logits and gradients are stored per item, not per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import Batch, logistic_batch
from unskew.kernels.parallel import for_each_block
from unskew.rng import below, stream, value
from unskew.types import Cohort, Float32, Float64, Int32, Int64, Samples

ENDLESS = 2**62
"""End of a loop over a client's batches, which ends when there are no more."""
_DRAWS_AHEAD = 256
"""Number of random numbers that :func:`shuffle` draws before it makes the swaps."""


class Schedule(NamedTuple):
    """Number of epochs, batch size and stopping rule of a client's training in one round."""

    epochs: int
    batch: int
    """Samples per batch."""
    tolerance: float
    """Stop once the running mean loss changes by less than this share between epochs (0: never)."""


class Clients(NamedTuple):
    """Arguments of every training kernel: which clients to train, and the whole cohort's samples,
    schedule, random stream and losses."""

    block: Int64
    """Positions in the cohort of the clients to train."""
    users: Int64
    seed: int
    round: int
    purpose: int
    samples: Samples
    schedule: Schedule
    losses: Float64
    """Output per client: summed loss while a kernel trains, mean loss per sample afterwards."""
    means: Float64
    """Scratch per client: mean loss per sample after the epoch before."""


class Training(NamedTuple):
    """One step of a cohort's local training: clients, samples, schedule, and the purpose number of
    the random streams that shuffle the samples."""

    cohort: Cohort
    samples: Samples
    schedule: Schedule
    purpose: int

    def run(self, kernel: Callable[..., Any], *arrays_and_rates: object) -> Float64:
        """Train all clients of the cohort with ``kernel``, which changes the arrays in place, and
        return each client's mean loss."""
        users, seed, round = self.cohort.users, self.cohort.seed, self.cohort.round
        name = users, seed, round, int(self.purpose)
        losses, means = np.zeros((2, len(users)))
        # Kernels have arrays of this size, and a batch has no more samples than its client.
        largest = max(1, int(self.samples.counts().max(initial=0)))
        schedule = self.schedule._replace(batch=min(self.schedule.batch, largest))

        def train(block: Int64) -> None:
            clients = Clients(block, *name, self.samples, schedule, losses, means)
            kernel(clients, *arrays_and_rates)

        for_each_block(self.samples.counts() * self.samples.touched.counts(), train)
        return losses


@jit
def shuffle(order: Int32, n: int, key: np.uint64, counter: int) -> int:
    """Shuffle the first ``n`` entries of ``order`` (Fisher-Yates); return the next counter, which
    is n - 1 more.

    Random numbers come from the stream ``key``, from ``counter`` on. They are drawn ahead of the
    swaps, so that hashing does not wait for memory.
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


@jit
def packed_samples(clients: Clients, c: int) -> Int32:
    """Samples of client ``c`` as integers 2 x row + label; `next_batch` shuffles them in place."""
    samples = clients.samples
    low, high = samples.indptr[c], samples.indptr[c + 1]
    order = np.empty(high - low, np.int32)
    for i in range(high - low):
        order[i] = (samples.row[low + i] << 1) | np.int32(samples.label[low + i])
    return order


@jit
def next_batch(clients: Clients, c: int, order: Int32, t: int) -> Int32:
    """Batch number ``t`` (from 1) of client ``c``, whose samples are in ``order``; empty when
    training ends: after the last epoch, or when the mean loss changes less than the tolerance.

    A function, because a compiled generator never frees its arrays (numba, issue 1807)."""
    n, (epochs, batch, tolerance) = len(order), clients.schedule
    per_epoch = (n + batch - 1) // batch
    epoch, first = (t - 1) // max(per_epoch, 1), (t - 1) % max(per_epoch, 1) * batch
    if first == 0:
        previous, mean = clients.means[c], clients.losses[c] / (n * epoch)
        clients.means[c] = mean
        settled = epoch > 1 and abs(mean - previous) / abs(previous + 1e-5) < tolerance
        if n == 0 or epoch == epochs or settled:
            clients.losses[c] = mean
            return order[:0]
        key = stream(clients.seed, clients.round, clients.users[c], clients.purpose)
        shuffle(order, n, key, epoch * (n - 1))
    return order[first : first + batch]


@jit
def client_rows(clients: Clients, c: int, rows: Float32) -> Float32:
    """Client ``c``'s part of ``rows``, which has a row per item in each client's samples."""
    indptr = clients.samples.touched.indptr
    return rows[indptr[c] : indptr[c + 1]]


@jit
def sample_row(packed: int) -> np.uint32:
    """Row of sample 2 x row + label; unsigned, so that numba skips a check for negative ones."""
    return np.uint32(packed) >> np.uint32(1)


@jit
def packed_loss(packed: Int32, batch: Batch) -> float:
    """Total loss of samples, each the integer 2 x row + label, with logits ``batch.z``. Writes the
    loss's gradients by the logits to ``batch.s``."""
    for j in range(len(packed)):
        batch.y[j] = packed[j] & 1
    return logistic_batch(batch, len(packed))


@jit
def batch_gradient(packed: Int32, z: Float32, g: Float32, batch: Batch) -> float:
    """Summed loss of a batch, given item logits ``z``; adds the mean loss's gradients to ``g``."""
    for j in range(len(packed)):
        batch.z[j] = z[sample_row(packed[j])]
    loss = packed_loss(packed, batch)
    for j in range(len(packed)):
        g[sample_row(packed[j])] += batch.s[j]
    return loss
