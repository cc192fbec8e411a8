"""Clip uploads and add noise to a whole item table per client.

A client's noise depends only on its random stream (seed, round, user, NOISE): noise value number j
always comes from the same half of the same 64-bit word, so threads, chunks and the rows a client
has touched cannot change it. Logarithm and sine are short polynomials, exact to float32 rounding,
because a library call would keep the loops from being vectorised.

With 32 bits per value, Laplace noise ends at 22 times its scale and Gaussian noise at 6.7 standard
deviations; larger values have probability below 1e-9 and 1e-10.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import sqrt32
from unskew.kernels.parallel import for_each_block
from unskew.ragged import indptr_from_counts
from unskew.rng import Purpose, stream, value
from unskew.types import Float32, Float64, Int32, Int64, Rows, Upload

LAPLACE, GAUSSIAN = 0, 1
"""Kinds of noise."""
NO_CLIP, CLIP_L1, CLIP_L2, CLIP_ROWS = 0, 1, 2, 3
"""Clipping: none, by the L1 or L2 norm of the whole upload, or by the L2 norm of each row."""
VALUES_PER_TILE = 1024
"""Noise values drawn at a time: half from the lower bits of 64-bit words, half from the upper."""
_NOISE = int(Purpose.NOISE)
"""Purpose number of the random streams of the noise."""
_LN2 = np.float32(0.6931471805599453)
"""Natural logarithm of 2."""
_BELOW_ONE = 1.0 - 2.0**-22
"""Factor on a clipping bound, so that float32 rounding cannot lift a clipped norm above it."""


class Noise(NamedTuple):
    """Parameters of a round's clipping and noise, with the seed of the noise's random streams."""

    seed: int
    round: int
    kind: int
    """:data:`LAPLACE` or :data:`GAUSSIAN`."""
    scale: float
    """Laplace's scale, or the Gaussian's standard deviation; 0: no noise."""
    clip: int
    """:data:`NO_CLIP`, :data:`CLIP_L1`, :data:`CLIP_L2` or :data:`CLIP_ROWS`."""
    bound: float
    """Bound on the clipped norm."""


@jit
def _words(key: Any, first: int, low: Int32, high: Int32, n: int) -> None:
    """Write the lower and upper halves of a random stream's values ``first`` to ``first + n``."""
    for i in range(n):
        x = value(key, first + i)
        low[i] = np.int32(x & np.uint64(0xFFFFFFFF))
        high[i] = np.int32(x >> np.uint64(32))


@jit
def _exponential(bits: Int32, scratch: Int32, out: Float32, n: int) -> None:
    """Exponential random values -ln(u), u = (m + 1/2) / 2**31, m the upper 31 of 32 random bits.

    With u 2**31 = 2**e f and f in [2/3, 4/3), ln(f) is 2 artanh((f - 1) / (f + 1)) by its series.
    """
    floats = scratch.view(np.float32)
    for i in range(n):
        floats[i] = np.float32(np.int32((bits[i] >> 1) & np.int32(0x7FFFFFFF))) + np.float32(0.5)
    for i in range(n):
        word = scratch[i]
        e = np.int32((word - np.int32(0x3F2AAAAB)) >> np.int32(23))
        out[i] = np.float32(31 - e) * _LN2
        scratch[i] = word - (e << np.int32(23))
    for i in range(n):
        f = floats[i]
        t = (f - np.float32(1.0)) / (f + np.float32(1.0))
        t2 = t * t
        series = np.float32(2.0 / 11.0)
        series = series * t2 + np.float32(2.0 / 9.0)
        series = series * t2 + np.float32(2.0 / 7.0)
        series = series * t2 + np.float32(2.0 / 5.0)
        series = series * t2 + np.float32(2.0 / 3.0)
        series = series * t2 + np.float32(2.0)
        out[i] = max(out[i] - series * t, np.float32(0.0))


@jit
def _sine_of_turns(bits: Int32, quarter: int, scale: Float32, out: Float32, n: int) -> None:
    """``out`` = ``scale`` x sin(2 pi (bits + quarter) / 2**32), for the first ``n`` entries."""
    for i in range(n):
        word = np.int32(bits[i] + np.int32(quarter))
        a = np.float32(word) * np.float32(2.0**-32)
        a = (
            a
            if abs(a) <= np.float32(0.25)
            else (np.float32(0.5) if a > 0 else np.float32(-0.5)) - a
        )
        x = a * np.float32(6.283185307179586)
        x2 = x * x
        series = np.float32(-1.0 / 39916800.0)
        series = series * x2 + np.float32(1.0 / 362880.0)
        series = series * x2 - np.float32(1.0 / 5040.0)
        series = series * x2 + np.float32(1.0 / 120.0)
        series = series * x2 - np.float32(1.0 / 6.0)
        series = series * x2 + np.float32(1.0)
        out[i] = scale[i] * (series * x)


@jit
def _apply_sign(magnitude: Float32, bits: Int32, scale: float, out: Float32, n: int) -> None:
    for i in range(n):
        side = np.float32(1.0) - np.float32(2.0) * np.float32(bits[i] & np.int32(1))
        out[i] = side * magnitude[i] * np.float32(scale)


@jit
def _fill(key: Any, word: int, kind: int, scale: float, out: Float32) -> None:
    """Fill ``out`` with noise from the random stream ``key``, from its value number ``word`` on.
    Gaussian values come in pairs (Box & Muller, 1958)."""
    half = VALUES_PER_TILE // 2
    low, high = np.empty(half, np.int32), np.empty(half, np.int32)
    scratch, size = np.empty(half, np.int32), np.empty(half, np.float32)
    for start in range(0, len(out), VALUES_PER_TILE):
        n = min(VALUES_PER_TILE, len(out) - start)
        a = (n + 1) // 2
        b = n - a
        _words(key, word + start // 2, low, high, a)
        first, second = out[start : start + a], out[start + a : start + n]
        if kind == LAPLACE:
            _exponential(low, scratch, size, a)
            _apply_sign(size, low, scale, first, a)
            _exponential(high, scratch, size, b)
            _apply_sign(size, high, scale, second, b)
        else:
            _exponential(high, scratch, size, a)
            for i in range(a):
                size[i] = sqrt32(np.float32(2.0) * size[i]) * np.float32(scale)
            _sine_of_turns(low, 0, size, first, a)
            _sine_of_turns(low, 1 << 30, size, second, b)


@jit
def _finite(v: float) -> float:
    """``v``, or 0 where it is infinite or not a number."""
    return v if np.isfinite(v) else 0.0


@jit
def _norms(row: Float32, absolute: float, square: float) -> tuple[float, float]:
    """Return ``absolute`` plus the row's absolute values, and ``square`` plus its squares."""
    for k in range(len(row)):
        v = _finite(float(row[k]))
        absolute += abs(v)
        square += v * v
    return absolute, square


@jit
def _upload_norms(block: Int64, upload: Upload, l1: Float64, l2: Float64) -> None:
    for c in block:
        absolute, square = 0.0, 0.0
        for j in range(upload.rows.indptr[c], upload.rows.indptr[c + 1]):
            absolute, square = _norms(upload.rows.values[j], absolute, square)
        absolute, square = _norms(upload.dense[c], absolute, square)
        l1[c], l2[c] = absolute, np.sqrt(square)


def upload_norms(upload: Upload) -> tuple[Float64, Float64]:
    """L1 and L2 norms of every client's upload, its item rows and dense part taken as one vector;
    entries that are not finite count as 0."""
    l1, l2 = np.zeros(len(upload.weight)), np.zeros(len(upload.weight))
    for_each_block(np.diff(upload.rows.indptr), _upload_norms, upload, l1, l2)
    return l1, l2


@jit
def _add_clipped(row: Float32, factor: float, noise: Noise, out: Float32) -> None:
    """Add ``row`` times ``factor`` to ``out``; if rows are clipped, add the clipped row instead."""
    if noise.clip == CLIP_ROWS:
        norm, least = np.sqrt(_norms(row, 0.0, 0.0)[1]), noise.bound * _BELOW_ONE
        factor = least / norm if norm > least else 1.0
    for k in range(len(row)):
        out[k] += np.float32(_finite(float(row[k])) * factor)


@jit
def _send(
    block: Int64, users: Int64, noise: Noise, factor: Float64, upload: Upload, sent: Upload
) -> None:
    """Write each client's clipped upload to ``sent``, plus noise on every entry of the whole table
    and of the dense part. Without noise, only the rows of the upload are written."""
    rows, width = upload.rows, upload.rows.values.shape[1]
    for c in block:
        low, high = sent.rows.indptr[c], sent.rows.indptr[c + 1]
        start, end = rows.indptr[c], rows.indptr[c + 1]
        table, items, dense = sent.rows.values[low:high], sent.rows.items[low:high], sent.dense[c]
        if upload.weight[c] <= 0.0:
            dense[:] = upload.dense[c]
            continue
        if noise.scale > 0:
            key = stream(noise.seed, noise.round, users[c], _NOISE)
            entries = len(table) * width
            _fill(key, 0, noise.kind, noise.scale, table.reshape(entries))
            # The dense part continues the stream after the table's last tile.
            after = (entries + VALUES_PER_TILE - 1) // VALUES_PER_TILE * (VALUES_PER_TILE // 2)
            _fill(key, after, noise.kind, noise.scale, dense)
            items[:] = np.arange(len(items))
        else:
            items[:] = rows.items[start:end]
        for j in range(start, end):
            at = rows.items[j] if noise.scale > 0 else j - start
            _add_clipped(rows.values[j], factor[c], noise, table[at])
        _add_clipped(upload.dense[c], factor[c], noise, dense)


def send_privately(
    upload: Upload, users: Int64, n_items: int, noise: Noise, norms: Float64
) -> Upload:
    """Clip uploads and add noise to every entry of the item table and the dense part.

    ``norms`` are the uploads' L1 or L2 norms, whichever ``noise.bound`` limits. Clients of weight
    zero send nothing and get no noise. Without noise an upload keeps the rows the client touched.
    """
    factor, sends = np.ones(len(users)), upload.weight > 0
    if noise.clip in (CLIP_L1, CLIP_L2):
        least = noise.bound * _BELOW_ONE
        factor = np.where(norms > least, least / np.maximum(norms, least), 1.0)
    counts = np.where(sends, n_items if noise.scale > 0 else np.diff(upload.rows.indptr), 0)
    indptr = indptr_from_counts(counts)
    values = np.zeros((indptr[-1], upload.rows.values.shape[1]), np.float32)
    rows = Rows(indptr, np.empty(indptr[-1], np.int32), values)
    sent = Upload(rows, np.zeros_like(upload.dense), upload.weight)
    for_each_block(counts, _send, users, noise, factor, upload, sent)
    return sent
