"""Local training of a cohort: the clients of a block, and a client's samples in shuffled batches.

A client's samples are packed into one number each, row and label together, and shuffled as such.
Logits and gradients are kept per row, so a sample costs two look-ups and one logistic function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numba
import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import Batch, logistic_batch
from unskew.kernels.parallel import for_each_block
from unskew.rng import below, stream, value
from unskew.types import Cohort, Float32, Float64, Int32, Int64, Samples

_DRAWS_AHEAD = 256
"""Random numbers that :func:`shuffle` computes at a time."""


class Schedule(NamedTuple):
    """Number of epochs, batch size and stopping rule of a client's training in one round."""

    epochs: int
    batch: int
    """Samples per batch."""
    tolerance: float
    """Stop once the running mean loss changes by less than this share between epochs (0: never)."""


class Clients(NamedTuple):
    """The clients that one call of a kernel trains, with the samples of the whole cohort."""

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


class Training(NamedTuple):
    """A step of local training: the clients, their samples, the schedule, and the random stream
    that shuffles the samples."""

    cohort: Cohort
    samples: Samples
    schedule: Schedule
    purpose: int

    def run(self, kernel: Callable[..., Any], *arrays_and_rates: object) -> Float64:
        """Run a kernel, which changes the arrays in place, on blocks of the cohort's clients and
        return the clients' mean losses."""
        users, seed, round = self.cohort.users, self.cohort.seed, self.cohort.round
        name, losses = (users, seed, round, int(self.purpose)), np.zeros(len(users))

        def train(block: Int64) -> None:
            clients = Clients(block, *name, self.samples, self.schedule, losses)
            kernel(clients, *arrays_and_rates)

        for_each_block(self.samples.counts() * self.samples.touched.counts(), train)
        return losses


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


@numba.njit(nogil=True, error_model="numpy")
def shuffled_batches(clients: Clients, c: int) -> Iterator[tuple[int, Int32]]:
    """Yield client c's packed samples in batches numbered from 1, reshuffled in each epoch, until
    the mean loss changes by less than the tolerance. Compiled into each kernel."""
    samples, (epochs, batch, tolerance) = clients.samples, clients.schedule
    low, high = samples.indptr[c], samples.indptr[c + 1]
    n = high - low
    order = np.empty(n, np.int32)
    for i in range(n):
        order[i] = (samples.row[low + i] << 1) | np.int32(samples.label[low + i])
    key = stream(clients.seed, clients.round, clients.users[c], clients.purpose)
    counter, t, mean = 0, 0, 0.0
    for epoch in range(epochs):
        counter = shuffle(order, n, key, counter)
        for first in range(0, n, batch):
            t += 1
            yield t, order[first : first + batch]
        previous, mean = mean, clients.losses[c] / (n * (epoch + 1))
        if epoch > 0 and abs(mean - previous) / abs(previous + 1e-5) < tolerance:
            break
    clients.losses[c] = mean


@jit
def client_rows(clients: Clients, c: int, rows: Float32) -> Float32:
    """The part of ``rows`` that belongs to client c's touched items."""
    indptr = clients.samples.touched.indptr
    return rows[indptr[c] : indptr[c + 1]]


@jit
def sample_row(packed: int) -> np.uint32:
    """The row of a packed sample, unsigned so that it is not tested for counting from the end."""
    return np.uint32(packed) >> np.uint32(1)


@jit
def packed_loss(packed: Int32, batch: Batch) -> float:
    """Summed loss of packed samples with logits ``batch.z``; dL/dz of the mean into ``batch.s``."""
    for j in range(len(packed)):
        batch.y[j] = packed[j] & 1
    return logistic_batch(batch, len(packed))


@jit
def batch_gradient(packed: Int32, z: Float32, g: Float32, batch: Batch) -> float:
    """Add dL/dz of packed samples to their rows' ``g``; return the batch's summed loss."""
    for j in range(len(packed)):
        batch.z[j] = z[sample_row(packed[j])]
    loss = packed_loss(packed, batch)
    for j in range(len(packed)):
        g[sample_row(packed[j])] += batch.s[j]
    return loss
