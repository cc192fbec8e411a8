"""FedNext on a device: the gradient of its loss, a user's vector, and a user's logits.

The logit of item i after position t of a history is

    z_ti = h_t . E_i + b_i + tau g(V_i . f_t),    g(y) = log(softplus(y / scale) + 1e-4),

with h_t from ``kernels/history_network.py``, FedRefit's rows V and its features f_t from
``kernels/refit.py``. The loss of a position is the softmax cross-entropy of the next item against
negatives that all clients of a round share; their logits are raised by log(items / negatives).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.history_network import allocate, backward, forward, unpack
from unskew.kernels.parallel import for_each_block, in_parallel, one_blas_thread
from unskew.kernels.refit import add_item
from unskew.ragged import indptr_from_counts
from unskew.rng import Purpose, below, stream, value
from unskew.types import Cohort, Float32, Int32, Int64, Ragged

_WINDOW, _DROPOUT = int(Purpose.WINDOW), int(Purpose.DROPOUT)
"""Identifiers of the random streams, as plain ints for compiled code."""
FLOOR = np.float32(1e-4)
"""Added to softplus(y) before its logarithm, so that hopeless items get a finite logit."""


@jit
def _exp(x: Float32, bits: Int32) -> None:
    """Replace each entry x <= 0 by exp(x), for x below -87 by about 0. ``bits`` is scratch. The
    polynomial is that of ``arithmetic.logistic_batch``; library calls would not be vectorised."""
    for j in range(len(x)):
        a = min(-x[j], np.float32(87.0))
        k = np.int32(a * np.float32(1.4426950408889634) + np.float32(0.5))
        kf = np.float32(k)
        r = (kf * np.float32(0.693359375) - a) + kf * np.float32(-2.12194440e-4)
        e = np.float32(1.0 / 720.0)
        e = e * r + np.float32(1.0 / 120.0)
        e = e * r + np.float32(1.0 / 24.0)
        e = e * r + np.float32(1.0 / 6.0)
        e = e * r + np.float32(0.5)
        e = e * r + np.float32(1.0)
        x[j] = e * r + np.float32(1.0)
        bits[j] = (np.int32(127) - k) << np.int32(23)
    power = bits.view(np.float32)
    for j in range(len(x)):
        x[j] *= power[j]


@jit
def _log(x: Float32, bits: Int32) -> None:
    """Replace each entry by its natural logarithm; entries are positive normal numbers. With
    x = 2^k m and m between 1/sqrt(2) and sqrt(2), log m = 2 artanh((m - 1) / (m + 1))."""
    whole, scaled = x.view(np.int32), bits.view(np.float32)
    root = np.int32(0x3F3504F3)
    for j in range(len(x)):
        k = (whole[j] - root) >> np.int32(23)
        bits[j] = whole[j] - (k << np.int32(23))
        whole[j] = k
    for j in range(len(x)):
        k = np.float32(whole[j])
        m = scaled[j]
        t = (m - np.float32(1.0)) / (m + np.float32(1.0))
        t2 = t * t
        series = np.float32(1.0 / 9.0)
        series = series * t2 + np.float32(1.0 / 7.0)
        series = series * t2 + np.float32(1.0 / 5.0)
        series = series * t2 + np.float32(1.0 / 3.0)
        series = series * t2 + np.float32(1.0)
        x[j] = np.float32(2.0) * t * series + k * np.float32(0.6931471805599453)


@jit
def _refit_logits(y: Float32, scale: float, work: Float32, bits: Int32) -> None:
    """Replace each entry of ``y`` by g(y) = log(softplus(y / scale) + 1e-4)."""
    inverse = np.float32(1.0 / scale)
    n = len(y)
    for j in range(n):
        y[j] *= inverse
        work[j] = -abs(y[j])
    _exp(work[:n], bits[:n])
    for j in range(n):
        t = work[j] / (np.float32(2.0) + work[j])
        t2 = t * t
        series = np.float32(1.0 / 11.0)
        series = series * t2 + np.float32(1.0 / 9.0)
        series = series * t2 + np.float32(1.0 / 7.0)
        series = series * t2 + np.float32(1.0 / 5.0)
        series = series * t2 + np.float32(1.0 / 3.0)
        series = series * t2 + np.float32(1.0)
        y[j] = max(y[j], np.float32(0.0)) + np.float32(2.0) * t * series + FLOOR
    _log(y, bits[:n])


class Shared(NamedTuple):
    """The part of a download that training reads, with the rows of the round's negatives."""

    flat: Float32
    """The network's weights, see :func:`unpack`."""
    negatives: Int32
    """Numbers of the items that all clients of the round use as negatives."""
    E: Float32
    """Vectors of the negatives (d x negatives)."""
    b: Float32
    """Biases of the negatives."""
    V: Float32
    """FedRefit's next-item rows of the negatives (features x negatives)."""
    log_share: float
    """Added to the logits of negatives, each of which stands for several items:
    log(items / negatives)."""
    scale: float
    """The number by which g divides FedRefit's scores."""
    decays: Float32
    """FedRefit's decays of past items."""


class Own(NamedTuple):
    """Rows of the clients' own items, one per distinct item of each client, client after client."""

    indptr: Int64
    items: Int32
    R: Float32
    """Item vectors E, and in the last column the biases b."""
    U: Float32
    """FedRefit's item vectors, for the features f."""
    V: Float32
    """FedRefit's next-item rows."""


class Gradients(NamedTuple):
    """Gradients of each client's mean loss: ``R`` of the rows ``Own.R``, and ``dense`` of the
    negatives' vectors, their biases and the network's weights, one after another."""

    R: Float32
    dense: Float32
    losses: Float32


@jit
def _draw_windows(cohort: Cohort, size: int, first: Int64, counts: Int64) -> None:
    indptr = cohort.positives.indptr
    for c in range(len(counts)):
        n = indptr[c + 1] - indptr[c]
        counts[c] = min(n, size) if n > 1 else 0
        first[c] = indptr[c]
        if n > size:
            state = stream(cohort.seed, cohort.round, cohort.users[c], _WINDOW)
            first[c] += below(value(state, 0), n - size + 1)


def draw_windows(cohort: Cohort, size: int) -> Ragged:
    """A random run of ``size`` items of each client's history, or the whole history if it is
    shorter; nothing of histories with fewer than two items."""
    first, counts = np.empty((2, len(cohort.users)), np.int64)
    _draw_windows(
        cohort._replace(samples=None, ratings=None, timestamps=None, ages=None), size, first, counts
    )
    indptr = indptr_from_counts(counts)
    place = np.arange(indptr[-1]) + np.repeat(first - indptr[:-1], counts)
    return Ragged(indptr, cohort.positives.items[place])


@jit
def _fill_keep(state: np.uint64, dropout: float, keep: Float32) -> None:
    """Fill ``keep`` with dropout factors: 0 with probability ``dropout``, else 1 / (1 - it). Each
    64-bit random value decides four entries."""
    flat = keep.reshape(keep.size)
    limit = np.uint64(dropout * 65536.0)
    factor = np.float32(1.0 / (1.0 - dropout))
    for i in range(0, len(flat), 4):
        bits = value(state, i // 4)
        for j in range(i, min(i + 4, len(flat))):
            flat[j] = factor if (bits & np.uint64(65535)) >= limit else np.float32(0.0)
            bits >>= np.uint64(16)


@jit
def _train(
    block: Int64,
    cohort: Cohort,
    window: Ragged,
    own: Own,
    shared: Shared,
    dropout: float,
    out: Gradients,
) -> None:
    """Gradients of the clients in ``block``. ``window.items`` are row numbers within a client's
    rows of ``own``, in order of time."""
    d, n, K = own.R.shape[1] - 1, len(shared.negatives), own.V.shape[1]
    w, flat_start = unpack(shared.flat, d), n * (d + 1)
    negative_rows = np.ascontiguousarray(shared.E.T)
    tau = w.tau[0]
    for c in block:
        mine = window.items[window.indptr[c] : window.indptr[c + 1]]
        low, high = own.indptr[c], own.indptr[c + 1]
        T = len(mine) - 1
        if T < 1:
            continue
        R, dR, items, dense = own.R[low:high], out.R[low:high], own.items[low:high], out.dense[c]
        g = unpack(dense[flat_start:], d)
        keep = np.empty((3, T, d), np.float32)
        state = stream(cohort.seed, cohort.round, cohort.users[c], _DROPOUT)
        _fill_keep(state, dropout, keep)
        p = allocate(T, d)
        for t in range(T):
            p.x0[t] = R[mine[t], :d] * keep[2, t]
        forward(w, p, keep, 0)

        f = np.empty((T, K), np.float32)
        _features(mine[:T], own.U[low:high], shared.decays, f)
        # Logits of the negatives: FedRefit's part G, and the network's part Z, later the whole.
        G, Z = np.empty((T, n), np.float32), np.empty((T, n), np.float32)
        np.dot(f, shared.V, G)
        np.dot(p.h, shared.E, Z)
        work, bits = np.empty(n, np.float32), np.empty(n, np.int32)
        errors, target_g = np.empty(T, np.float32), np.empty(T, np.float32)
        for t in range(T):
            y = mine[t + 1]
            target_g[t] = np.dot(f[t], own.V[low + y])
        _refit_logits(target_g, shared.scale, np.empty(T, np.float32), np.empty(T, np.int32))

        dtau, loss, share = np.float32(0.0), 0.0, np.float32(1.0 / T)
        db = dense[n * d : flat_start]
        for t in range(T):
            y, z, z_refit = mine[t + 1], Z[t], G[t]
            _refit_logits(z_refit, shared.scale, work, bits)
            target = np.dot(p.h[t], R[y, :d]) + R[y, d] + tau * target_g[t]
            best = target
            for j in range(n):
                z[j] += shared.b[j] + tau * z_refit[j] + np.float32(shared.log_share)
                z[j] = z[j] if shared.negatives[j] != items[y] else np.float32(-1e30)
                best = max(best, z[j])
            for j in range(n):
                z[j] -= best
            _exp(z, bits)
            target_exp = np.exp(target - best)
            total = target_exp
            for j in range(n):
                total += z[j]
            loss += np.log(total) + best - target
            # From here on z and error are the loss's gradients of the logits: (p - 1 or 0) / T.
            factor = share / total
            error = target_exp * factor - share
            for j in range(n):
                z[j] *= factor
                db[j] += z[j]
                dtau += z[j] * z_refit[j]
            dtau += error * target_g[t]
            errors[t] = error
        g.tau[0] += dtau
        dense[: n * d].reshape((n, d))[:] = np.dot(Z.T, p.h)
        dh = np.dot(Z, negative_rows)
        for t in range(T):
            y, error = mine[t + 1], errors[t]
            dR[y, d] += error
            for k in range(d):
                dh[t, k] += error * R[y, k]
                dR[y, k] += error * p.h[t, k]
        backward(w, g, p, keep, dh)
        for t in range(T):
            for k in range(d):
                dR[mine[t], k] += dh[t, k] * keep[2, t, k]
        out.losses[c] = loss / T


@jit
def _features(row: Int32, U: Float32, decays: Float32, f: Float32) -> None:
    """FedRefit's features after each item of a history; ``row`` are row numbers of ``U``."""
    state = np.zeros((len(decays), U.shape[1]), np.float32)
    weights, now = np.zeros(len(decays), np.float32), np.ones(f.shape[1], np.float32)
    for t in range(len(row)):
        add_item(U[row[t]], decays, state, weights, now)
        f[t] = now


def gradients(
    cohort: Cohort, window: Ragged, own: Own, shared: Shared, dropout: float
) -> Gradients:
    """Each client's gradient of its mean loss over the positions of its window. ``window.items``
    are row numbers within the client's rows of ``own``."""
    cohort = cohort._replace(samples=None, ratings=None, timestamps=None, ages=None)
    n, size = len(window.indptr) - 1, len(shared.negatives) * own.R.shape[1] + len(shared.flat)
    out = Gradients(
        np.zeros_like(own.R),
        np.zeros((n, size), np.float32),
        np.zeros(n, np.float32),
    )
    with one_blas_thread():
        for_each_block(window.counts(), _train, cohort, window, own, shared, dropout, out)
    return out


@jit
def _encode(block: Int64, history: Ragged, R: Float32, flat: Float32, h: Float32) -> None:
    d = R.shape[1] - 1
    w, keep = unpack(flat, d), np.empty((0, 0, 0), np.float32)
    for c in block:
        mine = history.items[history.indptr[c] : history.indptr[c + 1]]
        if len(mine) == 0:
            continue
        p = allocate(len(mine), d)
        for t in range(len(mine)):
            p.x0[t] = R[mine[t], :d]
        forward(w, p, keep, len(mine) - 1)
        h[c] = p.h[len(mine) - 1]


def encode_histories(history: Ragged, R: Float32, flat: Float32) -> Float32:
    """The network's vector after each user's whole history; zero for users without one. ``R`` has a
    row per item: its vector and its bias."""
    h = np.zeros((len(history.indptr) - 1, R.shape[1] - 1), np.float32)
    with one_blas_thread():
        for_each_block(history.counts(), _encode, history, R, flat, h)
    return h


@jit
def _add_refit(
    block: Int64, refit: Float32, b: Float32, tau: float, scale: float, z: Float32
) -> None:
    work, bits = np.empty(len(b), np.float32), np.empty(len(b), np.int32)
    for c in block:
        _refit_logits(refit[c], scale, work, bits)
        for j in range(len(b)):
            z[c, j] += b[j] + np.float32(tau) * refit[c, j]


def add_refit(z: Float32, refit: Float32, b: Float32, tau: float, scale: float) -> Float32:
    """Add biases and FedRefit's logits to the logits ``z`` (users x items), in place. ``refit`` are
    FedRefit's scores, which are overwritten."""
    in_parallel(len(z), _add_refit, refit, b, tau, scale, z)
    return z
