"""The network with which FedNext reads a history: forward and backward pass of one client.

Each position t of a history i_1 ... i_T gets a vector h_t. With one row per position, LN for layer
normalisation with its own gain and shift, and D for dropout masks:

    x0 = D E[i],    a = average(LN(x0) Wv),    x1 = x0 + D ((a * sigmoid(LN(x0) Wg)) Wo),
    x2 = x1 + D (relu(LN(x1) W1 + b1) W2 + b2),    h = LN(x2).

average() is, in each of several groups of channels, the mean of the rows up to t with weights that
decay per item, by a factor that each group learns. Products of matrices are BLAS calls with one
client's arrays, so results do not depend on which clients are computed together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.types import Float32

GROUPS = 8
"""Groups of channels, each with its own decay of past items."""
EPSILON = np.float32(1e-5)
"""Added to the variance in layer normalisation."""


class Weights(NamedTuple):
    """Views of the network's weights in one flat array; or of their gradients."""

    Wv: Float32
    Wg: Float32
    Wo: Float32
    W1: Float32
    b1: Float32
    W2: Float32
    b2: Float32
    norms: Float32
    """Gains and shifts of the three layer normalisations, alternating."""
    decay_logits: Float32
    """Logits of the decay factors of past items, one per group of channels."""
    tau: Float32
    """Weight of FedRefit's logit."""


@jit
def count_weights(d: int) -> int:
    """Number of entries of the network's weights for vectors of size ``d``."""
    return 11 * d * d + 11 * d + GROUPS + 1


@jit
def unpack(flat: Float32, d: int) -> Weights:
    """Views of the network's weights in ``flat``."""
    m, at = d * d, 11 * d * d
    return Weights(
        flat[:m].reshape((d, d)),
        flat[m : 2 * m].reshape((d, d)),
        flat[2 * m : 3 * m].reshape((d, d)),
        flat[3 * m : 7 * m].reshape((d, 4 * d)),
        flat[at : at + 4 * d],
        flat[7 * m : 11 * m].reshape((4 * d, d)),
        flat[at + 4 * d : at + 5 * d],
        flat[at + 5 * d : at + 11 * d].reshape((6, d)),
        flat[at + 11 * d : at + 11 * d + GROUPS],
        flat[at + 11 * d + GROUPS : at + 11 * d + GROUPS + 1],
    )


class Positions(NamedTuple):
    """Values of the network for the positions of one client, kept for the backward pass."""

    x0: Float32
    n1: Float32
    """Normalised x0, before gain and shift; ``n2`` and ``n3`` likewise."""
    y1: Float32
    """LN(x0), after gain and shift; ``y2`` likewise."""
    v: Float32
    sums: Float32
    """Decayed sums of v."""
    gate: Float32
    """Sigmoid of LN(x0) Wg."""
    q: Float32
    """Decayed means of v, times the gate."""
    x1: Float32
    n2: Float32
    y2: Float32
    m: Float32
    """Hidden units of the perceptron, after relu."""
    x2: Float32
    n3: Float32
    h: Float32
    inverse: Float32
    """One over the standard deviation, for the three layer normalisations."""
    counts: Float32
    """Decayed number of items, per group."""


@jit
def allocate(T: int, d: int) -> Positions:
    return Positions(
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, 4 * d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((T, d), np.float32),
        np.empty((3, T), np.float32),
        np.empty((T, GROUPS), np.float32),
    )


@jit
def _normalise(
    x: Float32, gain: Float32, shift: Float32, n: Float32, y: Float32, inverse: Float32
) -> None:
    """Layer normalisation of each row of ``x``: ``y`` = ``n`` gain + shift."""
    d = x.shape[1]
    for t in range(len(x)):
        mean, square = np.float32(0.0), np.float32(0.0)
        for k in range(d):
            mean += x[t, k]
        mean /= np.float32(d)
        for k in range(d):
            n[t, k] = x[t, k] - mean
            square += n[t, k] * n[t, k]
        inverse[t] = np.float32(1.0) / np.sqrt(square / np.float32(d) + EPSILON)
        for k in range(d):
            n[t, k] *= inverse[t]
            y[t, k] = n[t, k] * gain[k] + shift[k]


@jit
def _normalise_back(
    dy: Float32, n: Float32, inverse: Float32, gain: Float32, dgain: Float32, dshift: Float32
) -> None:
    """Backward pass of :func:`_normalise`; overwrites ``dy`` with the gradient of its input."""
    T, d = dy.shape
    for t in range(T):
        mean, along = np.float32(0.0), np.float32(0.0)
        for k in range(d):
            dgain[k] += dy[t, k] * n[t, k]
            dshift[k] += dy[t, k]
            dy[t, k] *= gain[k]
            mean += dy[t, k]
            along += dy[t, k] * n[t, k]
        mean /= np.float32(d)
        along /= np.float32(d)
        for k in range(d):
            dy[t, k] = (dy[t, k] - mean - n[t, k] * along) * inverse[t]


@jit
def _sigmoid(x: Float32) -> None:
    """Replace each entry by its logistic sigmoid."""
    for t in range(x.shape[0]):
        for k in range(x.shape[1]):
            x[t, k] = np.float32(1.0) / (np.float32(1.0) + np.exp(-x[t, k]))


@jit
def decay_factors(logits: Float32) -> Float32:
    """The groups' decay factors, from their logits."""
    one = np.float32(1.0)
    return one / (one + np.exp(-logits))


@jit
def forward(w: Weights, p: Positions, keep: Float32, first: int) -> None:
    """Compute ``p.h`` from ``p.x0`` for positions ``first`` and later, and whatever it needs of
    earlier ones. ``keep`` has dropout factors (branch x position x channel) of the two residual
    branches; empty: no dropout."""
    T, d = p.x0.shape
    norms, width = w.norms, d // GROUPS
    _normalise(p.x0, norms[0], norms[1], p.n1, p.y1, p.inverse[0])
    np.dot(p.y1, w.Wv, p.v)
    np.dot(p.y1[first:], w.Wg, p.gate[first:])
    _sigmoid(p.gate[first:])
    factors = decay_factors(w.decay_logits)
    for t in range(T):
        for j in range(GROUPS):
            old = p.counts[t - 1, j] if t > 0 else np.float32(0.0)
            p.counts[t, j] = factors[j] * old + np.float32(1.0)
            scale = np.float32(1.0) / p.counts[t, j]
            for k in range(j * width, (j + 1) * width):
                past = factors[j] * p.sums[t - 1, k] if t > 0 else np.float32(0.0)
                p.sums[t, k] = past + p.v[t, k]
                if t >= first:
                    p.q[t, k] = p.sums[t, k] * scale * p.gate[t, k]
    np.dot(p.q[first:], w.Wo, p.x1[first:])
    _add_residual(p.x1[first:], p.x0[first:], keep, 0)
    inverse = p.inverse[:, first:]
    _normalise(p.x1[first:], norms[2], norms[3], p.n2[first:], p.y2[first:], inverse[1])
    np.dot(p.y2[first:], w.W1, p.m[first:])
    for t in range(first, T):
        for k in range(4 * d):
            p.m[t, k] = max(p.m[t, k] + w.b1[k], np.float32(0.0))
    np.dot(p.m[first:], w.W2, p.x2[first:])
    for t in range(first, T):
        for k in range(d):
            p.x2[t, k] += w.b2[k]
    _add_residual(p.x2[first:], p.x1[first:], keep, 1)
    _normalise(p.x2[first:], norms[4], norms[5], p.n3[first:], p.h[first:], inverse[2])


@jit
def _add_residual(x: Float32, before: Float32, keep: Float32, branch: int) -> None:
    """Replace ``x`` by ``before`` + ``x`` times its dropout factors."""
    T, d = x.shape
    for t in range(T):
        for k in range(d):
            factor = keep[branch, t, k] if len(keep) else np.float32(1.0)
            x[t, k] = before[t, k] + x[t, k] * factor


@jit
def backward(w: Weights, g: Weights, p: Positions, keep: Float32, dh: Float32) -> None:
    """Write the gradients of the weights to ``g``, which is zero on entry. ``dh`` is the gradient
    of ``p.h`` and is overwritten with that of ``p.x0``."""
    T, d = p.x0.shape
    norms, dnorms, width = w.norms, g.norms, d // GROUPS
    part, hidden = np.empty((T, d), np.float32), np.empty((T, 4 * d), np.float32)
    _normalise_back(dh, p.n3, p.inverse[2], norms[4], dnorms[4], dnorms[5])
    part[:] = dh * keep[1, :T]
    for t in range(T):
        for k in range(d):
            g.b2[k] += part[t, k]
    g.W2[:] = np.dot(p.m.T, part)
    np.dot(part, w.W2.T, hidden)
    for t in range(T):
        for k in range(4 * d):
            hidden[t, k] = hidden[t, k] if p.m[t, k] > 0 else np.float32(0.0)
            g.b1[k] += hidden[t, k]
    g.W1[:] = np.dot(p.y2.T, hidden)
    np.dot(hidden, w.W1.T, part)
    _normalise_back(part, p.n2, p.inverse[1], norms[2], dnorms[2], dnorms[3])
    dh += part
    part[:] = dh * keep[0, :T]
    g.Wo[:] = np.dot(p.q.T, part)
    dq = np.dot(part, w.Wo.T)
    dv, dgate = np.empty((T, d), np.float32), part
    factors = decay_factors(w.decay_logits)
    for j in range(GROUPS):
        factor, change, back_count = factors[j], np.float32(0.0), np.float32(0.0)
        for t in range(T - 1, -1, -1):
            scale, dcount = np.float32(1.0) / p.counts[t, j], np.float32(0.0)
            for k in range(j * width, (j + 1) * width):
                mean = p.sums[t, k] * scale
                gate = p.gate[t, k]
                dgate[t, k] = dq[t, k] * mean * gate * (np.float32(1.0) - gate)
                dmean = dq[t, k] * gate
                later = factor * dv[t + 1, k] if t + 1 < T else np.float32(0.0)
                dv[t, k] = dmean * scale + later
                dcount -= dmean * mean * scale
                if t > 0:
                    change += dv[t, k] * p.sums[t - 1, k]
            back_count = dcount + factor * back_count
            if t > 0:
                change += back_count * p.counts[t - 1, j]
        g.decay_logits[j] += change * factor * (np.float32(1.0) - factor)
    g.Wv[:] = np.dot(p.y1.T, dv)
    g.Wg[:] = np.dot(p.y1.T, dgate)
    dy = np.dot(dv, w.Wv.T)
    dy += np.dot(dgate, w.Wg.T)
    _normalise_back(dy, p.n1, p.inverse[0], norms[0], dnorms[0], dnorms[1])
    dh += dy
