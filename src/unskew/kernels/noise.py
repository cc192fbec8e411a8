"""Clip uploads and add noise to a whole item table per client.

A client's noise depends on its own stream (seed, round, user, NOISE) alone: value number j comes
from a fixed half of a fixed 64-bit word of it, so threads, chunks and the rows a client has touched
cannot change it. Logarithm and sine are short polynomials, exact to float32 rounding, because a
call into libm would keep the loops from being vectorised.

32 bits per value reach 22 scales into Laplace's tails and 6.7 into the Gaussian's; values beyond
have probability below 1e-9 and 1e-10.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import sqrt32
from unskew.kernels.parallel import for_each_block
from unskew.rng import Purpose, stream
from unskew.types import Bool, Float32, Float64, Int32, Int64, Rows, Upload

LAPLACE, GAUSSIAN = 0, 1
NO_CLIP, CLIP_L1, CLIP_L2, CLIP_ROWS = 0, 1, 2, 3
TILE = 1024
"""Values computed together: the first half of a tile from the lower halves of its words."""
_NOISE = int(Purpose.NOISE)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LN2 = np.float32(0.6931471805599453)
_BELOW_ONE = 1.0 - 2.0**-22
"""Keeps a clipped norm below its bound however its float32 entries are rounded."""


@jit
def _words(key: Any, first: int, low: Any, high: Any, n: int) -> None:
    """Halves of the stream's words ``first`` to ``first + n`` (see :func:`unskew.rng.value`)."""
    for i in range(n):
        x = key + np.uint64(first + i + 1) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        x = x ^ (x >> np.uint64(31))
        low[i] = np.int32(x & np.uint64(0xFFFFFFFF))
        high[i] = np.int32(x >> np.uint64(32))


@jit
def _exponential(bits: Int32, scratch: Int32, out: Float32, n: int) -> None:
    """-ln(u), with u = (m + 1/2) / 2**31 for the upper 31 bits m of each word.

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
    """``scale[i]`` times sin(2 pi (bits / 2**32 + quarter)), bits as a signed number."""
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
def _fill(key: Any, kind: int, scale: float, out: Float32) -> None:
    """Fill ``out`` with a client's noise. Gaussian values come in pairs (Box & Muller, 1958)."""
    half = TILE // 2
    low, high = np.empty(half, np.int32), np.empty(half, np.int32)
    scratch, size = np.empty(half, np.int32), np.empty(half, np.float32)
    for start in range(0, len(out), TILE):
        n = min(TILE, len(out) - start)
        a = (n + 1) // 2
        b = n - a
        _words(key, start // 2, low, high, a)
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
def _norms(
    block: Int64, indptr: Int64, values: Float32, dense: Float32, l1: Float64, l2: Float64
) -> None:
    """L1 and L2 norm of each client's upload as one vector; non-finite entries count as 0."""
    for c in block:
        absolute, square = 0.0, 0.0
        for j in range(indptr[c], indptr[c + 1]):
            for k in range(values.shape[1]):
                v = float(values[j, k])
                v = v if np.isfinite(v) else 0.0
                absolute += abs(v)
                square += v * v
        for k in range(dense.shape[1]):
            v = float(dense[c, k])
            v = v if np.isfinite(v) else 0.0
            absolute += abs(v)
            square += v * v
        l1[c], l2[c] = absolute, np.sqrt(square)


@jit
def _row_factor(row: Float32, bound: float) -> float:
    square = 0.0
    for k in range(len(row)):
        v = np.float64(row[k])
        square += v * v if np.isfinite(v) else 0.0
    norm = np.sqrt(square)
    return bound * _BELOW_ONE / norm if norm > bound * _BELOW_ONE else 1.0


@jit
def _send(
    block: Int64,
    users: Int64,
    seed: int,
    round: int,
    kind: int,
    scale: float,
    clip: int,
    bound: float,
    factor: Float64,
    sent: Bool,
    indptr: Int64,
    items: Int32,
    values: Float32,
    dense: Float32,
    out_indptr: Int64,
    out_items: Int32,
    out_values: Float32,
    out_dense: Float32,
) -> None:
    """Add each client's clipped upload to a whole table and a whole dense part of noise."""
    width, n_dense = values.shape[1], dense.shape[1]
    for c in block:
        if not sent[c]:
            out_dense[c] = dense[c]
            continue
        low, high = out_indptr[c], out_indptr[c + 1]
        n_items = high - low
        noise = np.zeros(n_dense, np.float32)
        table = out_values[low:high]
        if scale > 0:
            key = stream(seed, round, users[c], _NOISE)
            _fill(key, kind, scale, table.reshape(n_items * width))
            # The dense part continues the stream after the table's last tile.
            after = (n_items * width + TILE - 1) // TILE * (TILE // 2)
            _fill(key + np.uint64(after) * _GOLDEN, kind, scale, noise)
            for i in range(n_items):
                out_items[low + i] = i
        else:
            for i in range(n_items):
                out_items[low + i] = items[indptr[c] + i]
                table[i] = 0.0
        for j in range(indptr[c], indptr[c + 1]):
            at = items[j] if scale > 0 else j - indptr[c]
            f = _row_factor(values[j], bound) if clip == CLIP_ROWS else factor[c]
            for k in range(width):
                v = values[j, k]
                table[at, k] += np.float32(v * f) if np.isfinite(v) else np.float32(0.0)
        f = _row_factor(dense[c], bound) if clip == CLIP_ROWS else factor[c]
        for k in range(n_dense):
            v = dense[c, k]
            out_dense[c, k] = noise[k] + (np.float32(v * f) if np.isfinite(v) else np.float32(0.0))


def upload_norms(upload: Upload) -> tuple[Float64, Float64]:
    """L1 and L2 norms of every client's upload, its rows and dense part taken as one vector."""
    n = len(upload.weight)
    l1, l2 = np.zeros(n), np.zeros(n)
    indptr, _, values = upload.rows
    for_each_block(np.diff(indptr), _norms, indptr, values, upload.dense, l1, l2)
    return l1, l2


def send_privately(
    upload: Upload,
    users: Int64,
    n_items: int,
    seed: int,
    round: int,
    kind: int,
    scale: float,
    clip: int,
    bound: float,
    norms: Float64 | None,
) -> Upload:
    """Clip uploads and add noise of this scale to every entry of the table and the dense part.

    ``norms`` are the L1 or L2 norms that ``bound`` limits. Clients of weight zero send nothing and
    get no noise. With ``scale`` 0 an upload keeps the rows the client touched.
    """
    n = len(upload.weight)
    sent = upload.weight > 0
    factor = np.ones(n)
    if clip in (CLIP_L1, CLIP_L2):
        assert norms is not None
        least = bound * _BELOW_ONE
        factor = np.where(norms > least, least / np.maximum(norms, least), 1.0)
    counts = np.where(sent, n_items, 0) if scale > 0 else np.diff(upload.rows.indptr) * sent
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    items = np.empty(indptr[-1], np.int32)
    values = np.empty((indptr[-1], upload.rows.values.shape[1]), np.float32)
    dense = np.empty_like(upload.dense)
    for_each_block(
        counts,
        _send,
        users,
        seed,
        round,
        kind,
        float(scale),
        clip,
        float(bound),
        factor,
        sent,
        *upload.rows,
        upload.dense,
        indptr,
        items,
        values,
        dense,
    )
    return Upload(Rows(indptr, items, values), dense, upload.weight)


def noise_vector(seed: int, round: int, user: int, kind: int, scale: float, n: int) -> Float32:
    """The first ``n`` values of a client's noise, for tests and audits."""
    out = np.empty(n, np.float32)
    _noise_vector(seed, round, user, kind, float(scale), out)
    return out


@jit
def _noise_vector(seed: int, round: int, user: int, kind: int, scale: float, out: Float32) -> None:
    _fill(stream(seed, round, user, _NOISE), kind, scale, out)
