"""Arithmetic shared by all local trainers, in loops that LLVM vectorises.

Trainers hold a client's item rows transposed: one contiguous array per embedding dimension. So
every inner loop runs over items and is vectorised whatever the embedding size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numba
import numpy as np
from numba.extending import intrinsic

from unskew.jit import jit
from unskew.types import Float32, Int32


@intrinsic
def _sqrt32(typing_context: object, x: object) -> object:
    """LLVM's float32 square root. np.sqrt calls libm, which may set errno; that would keep LLVM
    from vectorising the loop around it."""
    del typing_context, x

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [args[0].type]), args)

    return numba.float32(numba.float32), codegen


@intrinsic
def _fma(typing_context: object, a: Any, b: Any, c: Any) -> object:
    """Fused multiply-add: a * b + c with a single rounding."""
    del typing_context, a, b, c

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.fma(*args)

    return numba.float32(numba.float32, numba.float32, numba.float32), codegen


sqrt32: Callable[[float], float] = cast(Any, _sqrt32)
fma: Callable[..., Any] = cast(Any, _fma)

_LOG2E = np.float32(1.4426950408889634)
"""Base-2 logarithm of e."""
_LN2_HIGH = np.float32(0.693359375)
"""Leading digits of ln 2, so few that the product with a small integer is exact in float32."""
_LN2_LOW = np.float32(-2.12194440e-4)
"""ln 2 minus :data:`_LN2_HIGH`."""
_MAX_EXPONENT = np.float32(87.0)
"""Larger |logits| are clipped to this, so that exp(-|logit|) is a normal float32."""


@jit
def total(x: Float32, n: int) -> float:
    """Sum of the first ``n`` entries of ``x`` in float64, by four independent partial sums."""
    a, b, c, d = 0.0, 0.0, 0.0, 0.0
    whole = n - n % 4
    for i in range(0, whole, 4):
        a += x[i]
        b += x[i + 1]
        c += x[i + 2]
        d += x[i + 3]
    for i in range(whole, n):
        a += x[i]
    return (a + b) + (c + d)


class Batch(NamedTuple):
    """Arrays with one entry per sample of a batch: logits, labels, gradients, scratch space."""

    z: Float32
    """Logits."""
    y: Float32
    """Labels."""
    s: Float32
    """Gradient of the batch's mean loss by each logit."""
    bits: Int32
    """Scratch of :func:`logistic_batch`."""


@jit
def batch_arrays(n: int) -> Batch:
    """Uninitialised :class:`Batch` arrays for ``n`` samples."""
    z, y, s = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    return Batch(z, y, s, np.empty(n, np.int32))


@jit
def logistic_batch(batch: Batch, n: int) -> float:
    """Return the summed logistic loss of the batch's first ``n`` logits z and labels y.

    Writes the mean loss's gradient by each logit, (sigmoid(z) - y) / n, to s, and overwrites z with
    the samples' losses. exp(-|z|) is computed as 2**-k exp(-r) with |r| <= ln(2) / 2 and a
    polynomial of degree 6; log(1 + e) as 2 artanh(e / (2 + e)) by its series. Both are exact to
    float32 rounding, without a library call that would keep the loop from being vectorised.
    """
    z, y, s, bits = batch
    one = np.float32(1.0)
    half = np.float32(0.5)
    for j in range(n):
        a = min(abs(z[j]), _MAX_EXPONENT)
        k = np.int32(a * _LOG2E + half)
        kf = np.float32(k)
        r = (kf * _LN2_HIGH - a) + kf * _LN2_LOW
        e = np.float32(1.0 / 720.0)
        e = e * r + np.float32(1.0 / 120.0)
        e = e * r + np.float32(1.0 / 24.0)
        e = e * r + np.float32(1.0 / 6.0)
        e = e * r + half
        e = e * r + one
        e = e * r + one
        s[j] = e
        bits[j] = (np.int32(127) - k) << np.int32(23)
    power = bits.view(np.float32)
    scale = one / np.float32(n)
    for j in range(n):
        e = s[j] * power[j]
        above = one / (one + e)
        sigmoid = above if z[j] >= 0 else e * above
        t = e / (np.float32(2.0) + e)
        t2 = t * t
        log1p = np.float32(1.0 / 13.0)
        log1p = log1p * t2 + np.float32(1.0 / 11.0)
        log1p = log1p * t2 + np.float32(1.0 / 9.0)
        log1p = log1p * t2 + np.float32(1.0 / 7.0)
        log1p = log1p * t2 + np.float32(1.0 / 5.0)
        log1p = log1p * t2 + np.float32(1.0 / 3.0)
        log1p = log1p * t2 + one
        log1p = log1p * t * np.float32(2.0)
        s[j] = (sigmoid - y[j]) * scale
        z[j] = max(z[j], np.float32(0.0)) - z[j] * y[j] + log1p
    return total(z, n)


@jit
def add_scaled(z: Float32, q: Float32, factor: float, n: int) -> None:
    """Add ``factor`` times ``q`` to ``z`` in place, for the first ``n`` entries."""
    for i in range(n):
        z[i] += factor * q[i]


@jit
def score_columns(z: Float32, Q: Float32, p: Float32, n: int, low: int = 0) -> None:
    """Write to ``z`` the inner products of ``p`` with ``n`` columns of ``Q``, from ``low`` on."""
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
def columns_of(rows: Float32) -> Float32:
    """Transposed, contiguous copy of ``rows``."""
    columns = np.empty((rows.shape[1], rows.shape[0]), np.float32)
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            columns[k, i] = rows[i, k]
    return columns


@jit
def store_columns(columns: Float32, rows: Float32) -> None:
    """Copy the transpose of ``columns`` into ``rows``."""
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            rows[i, k] = columns[k, i]
