"""Central training of MF and NCF: all users' samples in one shuffled list, Adam on whole tables.

A batch mixes users. An epoch runs in a fixed order on one thread, so that its result depends on the
seed alone; it is little work compared with a federated round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.adam import adam_step, corrections
from unskew.kernels.arithmetic import add_scaled, batch_arrays, logistic_batch
from unskew.kernels.batches import shuffle
from unskew.kernels.parallel import for_each_block
from unskew.kernels.perceptron import layer_buffers, mlp_gradients
from unskew.kernels.sampling import draw_samples
from unskew.kernels.vectors import inner
from unskew.rng import Purpose, stream
from unskew.types import Cohort, Float32, Int32, Int64, Samples

_SAMPLES_PER_PASS = 256
"""Number of samples in one forward and backward pass of the network."""


class Table(NamedTuple):
    """A table of parameters ``x`` with Adam's first moments ``m`` and second moments ``v``."""

    x: Float32
    m: Float32
    v: Float32

    @staticmethod
    def start(x: Float32) -> Table:
        """Start of training: the table ``x`` with zero moments."""
        return Table(x, np.zeros_like(x), np.zeros_like(x))

    def copy(self) -> Table:
        """Contiguous copies of the parameters and both moments."""
        return Table(*(np.array(part, np.float32, order="C") for part in self))


class EpochSamples(NamedTuple):
    """All samples of an epoch, user after user."""

    user: Int32
    """Position of each sample's user in the cohort."""
    item: Int32
    label: Float32


@jit
def adam(table: Table, g: Float32, lr: float, t: int) -> None:
    """One step of Adam on a whole table with gradient ``g``, which is then reset to zero."""
    scale, unbias = corrections(t)
    x, m, v = table
    entries = x.reshape(-1), m.reshape(-1), v.reshape(-1), g.reshape(-1)
    adam_step(*entries, 1.0, x.size, lr * scale, unbias)
    g[:] = 0.0


def epoch_order(n: int, cohort: Cohort) -> Int32:
    """Random permutation of the ``n`` samples of an epoch, across all users."""
    order = np.arange(n, dtype=np.int32)
    key = stream(cohort.seed, cohort.round, 0, int(Purpose.SHUFFLE_LOCAL))
    shuffle(order, n, np.uint64(key), 0)
    return order


def _sample_items(samples: Samples) -> Int32:
    """Item number of each sample."""
    first = np.repeat(samples.touched.indptr[:-1], samples.counts())
    items: Int32 = samples.touched.items[first + samples.row]
    return items


def epoch_samples(cohort: Cohort, negatives: int) -> EpochSamples:
    """Positives of all users and, per positive, ``negatives`` items drawn for this round."""
    samples = draw_samples(cohort, negatives)
    user = np.repeat(np.arange(len(cohort.users), dtype=np.int32), samples.counts())
    return EpochSamples(user, _sample_items(samples), samples.label)


@jit
def train_factors(
    order: Int32,
    samples: EpochSamples,
    users: Table,
    items: Table,
    batch: int,
    lr: float,
    decay: float,
    t: int,
) -> tuple[float, int]:
    """Train MF for one epoch in place; return the mean loss and number of Adam steps so far.

    Minimises, over each batch of samples (user u, item i, label y), the mean of BCE(p_u.q_i, y) +
    decay / 2 (|p_u|^2 + |q_i|^2), with embeddings p_u and q_i.
    """
    user, item, label = samples
    P, Q, D = users.x, items.x, users.x.shape[1]
    gP, gQ = np.zeros_like(P), np.zeros_like(Q)
    arrays = batch_arrays(batch)
    total = 0.0
    for low in range(0, len(order), batch):
        here = order[low : low + batch]
        for j, n in enumerate(here):
            arrays.z[j] = inner(P[user[n]], Q[item[n]], D)
            arrays.y[j] = label[n]
        total += logistic_batch(arrays, len(here))
        shrink = np.float32(decay / len(here))
        for j, n in enumerate(here):
            u, i, s = user[n], item[n], arrays.s[j]
            for k in range(D):
                gP[u, k] += s * Q[i, k] + shrink * P[u, k]
                gQ[i, k] += s * P[u, k] + shrink * Q[i, k]
        t += 1
        adam(users, gP, lr, t)
        adam(items, gQ, lr, t)
    return total / max(len(order), 1), t


@jit
def train_perceptron(
    order: Int32,
    samples: EpochSamples,
    users: Table,
    items: Table,
    weights: Table,
    batch: int,
    lr: float,
    decay: float,
    t: int,
) -> tuple[float, int]:
    """Train NCF for one epoch in place; return the mean loss and number of Adam steps so far."""
    user, item, label = samples
    P, Q, w, D = users.x, items.x, weights.x, users.x.shape[1]
    gP, gQ, gw = np.zeros_like(P), np.zeros_like(Q), np.zeros_like(w)
    layers = layer_buffers(D, 2 * D, len(w), _SAMPLES_PER_PASS)
    x, dx, no_user = layers.x, layers.dx, np.empty(0, np.float32)
    total = 0.0
    for low in range(0, len(order), batch):
        b = min(batch, len(order) - low)
        shrink = np.float32(decay / b)
        for part in range(low, low + b, _SAMPLES_PER_PASS):
            here = order[part : min(part + _SAMPLES_PER_PASS, low + b)]
            for j, n in enumerate(here):
                layers.batch.y[j] = label[n]
                for k in range(D):
                    x[k, j] = P[user[n], k]
                    x[D + k, j] = Q[item[n], k]
            total += mlp_gradients(w, no_user, layers, len(here), len(here) / b)
            add_scaled(gw, layers.gw, 1.0, len(w))
            for j, n in enumerate(here):
                u, i = user[n], item[n]
                for k in range(D):
                    gP[u, k] += dx[k, j] + shrink * P[u, k]
                    gQ[i, k] += dx[D + k, j] + shrink * Q[i, k]
        t += 1
        adam(users, gP, lr, t)
        adam(items, gQ, lr, t)
        adam(weights, gw, lr, t)
    return total / max(len(order), 1), t


@jit
def _factor_gradient(
    block: Int64, samples: Samples, item: Int32, P: Float32, Q: Float32, g: Float32
) -> None:
    D = P.shape[1]
    for c in block:
        start, n = samples.indptr[c], samples.indptr[c + 1] - samples.indptr[c]
        batch = batch_arrays(n)
        for j in range(n):
            batch.z[j] = inner(P[c], Q[item[start + j]], D)
            batch.y[j] = samples.label[start + j]
        logistic_batch(batch, n)
        for j in range(n):
            add_scaled(g[c], Q[item[start + j]], batch.s[j], D)


def factor_gradient(samples: Samples, P: Float32, Q: Float32) -> Float32:
    """Gradient of each user's mean loss by its MF user vector, with the item table frozen."""
    g, item = np.zeros_like(P), _sample_items(samples)
    for_each_block(samples.counts(), _factor_gradient, samples, item, P, Q, g)
    return g


@jit
def _perceptron_gradient(
    block: Int64, samples: Samples, item: Int32, P: Float32, Q: Float32, w: Float32, g: Float32
) -> None:
    D = P.shape[1]
    layers = layer_buffers(D, D, len(w), _SAMPLES_PER_PASS)
    for c in block:
        start, end = samples.indptr[c], samples.indptr[c + 1]
        for part in range(start, end, _SAMPLES_PER_PASS):
            n = min(_SAMPLES_PER_PASS, end - part)
            for j in range(n):
                layers.batch.y[j] = samples.label[part + j]
                for k in range(D):
                    layers.x[k, j] = Q[item[part + j], k]
            mlp_gradients(w, P[c], layers, n, n / (end - start))
            add_scaled(g[c], layers.gp, 1.0, D)


def perceptron_gradient(samples: Samples, P: Float32, Q: Float32, w: Float32) -> Float32:
    """Gradient of each user's mean loss by its NCF user vector, with items and network frozen."""
    g, item = np.zeros_like(P), _sample_items(samples)
    for_each_block(samples.counts(), _perceptron_gradient, samples, item, P, Q, w, g)
    return g
