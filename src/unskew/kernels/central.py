"""Matrix factorisation in one place, and what the central baselines share: all samples in one
shuffled list, and Adam on whole tables.

An epoch runs in one fixed order on one thread, so a batch may mix users and the bits still depend
on the seed alone. The work of an epoch is small next to a federated round's.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._sampling import Samples, draw_samples
from unskew.kernels.adam import adam_step, corrections
from unskew.kernels.arithmetic import add_scaled, logistic_batch
from unskew.kernels.batches import shuffle
from unskew.kernels.parallel import for_each_block
from unskew.kernels.vectors import inner
from unskew.rng import Purpose, stream
from unskew.types import Cohort, Float32, Int32, Int64


class Table(NamedTuple):
    """An embedding table with Adam's two moments."""

    x: Float32
    m: Float32
    v: Float32

    @staticmethod
    def fresh(x: Float32) -> Table:
        """The table with moments of zero."""
        return Table(x, np.zeros_like(x), np.zeros_like(x))

    def copy(self) -> Table:
        """Contiguous copies of all three arrays."""
        return Table(*(np.array(part, np.float32, order="C") for part in self))


@jit
def adam(x: Float32, m: Float32, v: Float32, g: Float32, lr: float, t: int) -> None:
    """One step of Adam on a whole table; ``g`` is set to zero."""
    scale, unbias = corrections(t)
    entries = x.reshape(-1), m.reshape(-1), v.reshape(-1), g.reshape(-1)
    adam_step(*entries, 1.0, x.size, lr * scale, unbias)
    g[:] = 0.0


@jit
def _order(n: int, seed: int, round: int, purpose: int) -> Int32:
    order = np.empty(n, np.int32)
    for i in range(n):
        order[i] = i
    shuffle(order, n, stream(seed, round, 0, purpose), 0)
    return order


def epoch_order(n: int, cohort: Cohort) -> Int32:
    """A random order of an epoch's ``n`` samples, across all users."""
    order: Int32 = _order(n, cohort.seed, cohort.round, int(Purpose.SHUFFLE_LOCAL))
    return order


def sample_items(samples: Samples) -> Int32:
    """The item of every sample."""
    first = np.repeat(samples.touched.indptr[:-1], samples.counts())
    items: Int32 = samples.touched.items[first + samples.row]
    return items


def sample_users(samples: Samples) -> Int32:
    """The position in the cohort of every sample's user."""
    return np.repeat(np.arange(len(samples.indptr) - 1, dtype=np.int32), samples.counts())


@jit
def _mf_epoch(
    order: Int32,
    user: Int32,
    item: Int32,
    label: Float32,
    P: Float32,
    mP: Float32,
    vP: Float32,
    Q: Float32,
    mQ: Float32,
    vQ: Float32,
    batch: int,
    lr: float,
    decay: float,
    t: int,
) -> float:
    D = P.shape[1]
    gP = np.zeros(P.shape, np.float32)
    gQ = np.zeros(Q.shape, np.float32)
    z = np.empty(batch, np.float32)
    y = np.empty(batch, np.float32)
    s = np.empty(batch, np.float32)
    bits = np.empty(batch, np.int32)
    total = 0.0
    for low in range(0, len(order), batch):
        b = min(batch, len(order) - low)
        for j in range(b):
            n = order[low + j]
            z[j] = inner(P[user[n]], Q[item[n]], D)
            y[j] = label[n]
        total += logistic_batch(z, y, s, bits, b)
        shrink = np.float32(decay / b)
        for j in range(b):
            n = order[low + j]
            u, i = user[n], item[n]
            for k in range(D):
                gP[u, k] += s[j] * Q[i, k] + shrink * P[u, k]
                gQ[i, k] += s[j] * P[u, k] + shrink * Q[i, k]
        t += 1
        adam(P, mP, vP, gP, lr, t)
        adam(Q, mQ, vQ, gQ, lr, t)
    return total / max(len(order), 1)


def train_factors(
    cohort: Cohort,
    negatives: int,
    users: Table,
    items: Table,
    batch: int,
    rate: float,
    decay: float,
    t: int,
) -> tuple[float, int]:
    """One epoch of matrix factorisation in place; returns the mean loss and the next step count.

    Minimises, over each batch of samples (u, i, y), the mean of
    BCE(p_u.q_i, y) + decay / 2 (|p_u|^2 + |q_i|^2).
    """
    samples = draw_samples(cohort, negatives)
    order = epoch_order(len(samples.row), cohort)
    user, item = sample_users(samples), sample_items(samples)
    loss = _mf_epoch(order, user, item, samples.label, *users, *items, batch, rate, decay, t)
    return float(loss), t + -(-len(order) // batch)


@jit
def _user_gradient(
    block: Int64,
    max_samples: int,
    indptr: Int64,
    item: Int32,
    label: Float32,
    P: Float32,
    Q: Float32,
    g: Float32,
) -> None:
    D = P.shape[1]
    z = np.empty(max_samples, np.float32)
    y = np.empty(max_samples, np.float32)
    s = np.empty(max_samples, np.float32)
    bits = np.empty(max_samples, np.int32)
    for c in block:
        start, n = indptr[c], indptr[c + 1] - indptr[c]
        for j in range(n):
            z[j] = inner(P[c], Q[item[start + j]], D)
            y[j] = label[start + j]
        logistic_batch(z, y, s, bits, n)
        for j in range(n):
            add_scaled(g[c], Q[item[start + j]], s[j], D)


def factor_gradient(samples: Samples, P: Float32, Q: Float32) -> Float32:
    """dL/dp of each user for the mean loss over its own samples, with the items frozen."""
    g, counts = np.zeros_like(P), samples.counts()
    data = (int(counts.max(initial=0)), samples.indptr, sample_items(samples), samples.label)
    for_each_block(counts, _user_gradient, *data, P, Q, g)
    return g
