"""Arithmetic that every local trainer shares, in loops that LLVM vectorises.

Trainers hold a client's rows as columns, one contiguous run per embedding dimension, so that every
inner loop runs over rows and is vectorised whatever the dimension.
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
    """LLVM's float32 square root. The libm call behind np.sqrt may set errno, which would keep LLVM
    from vectorising the loop around it."""
    del typing_context, x

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [args[0].type]), args)

    return numba.float32(numba.float32), codegen


@intrinsic
def _fma(typing_context: object, a: Any, b: Any, c: Any) -> object:
    """a b + c with one rounding."""
    del typing_context, a, b, c

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.fma(*args)

    return numba.float32(numba.float32, numba.float32, numba.float32), codegen


sqrt32: Callable[[float], float] = cast(Any, _sqrt32)
fma: Callable[..., Any] = cast(Any, _fma)

_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
"""ln 2 is the sum of the two; a small integer times the first is exact in float32."""
_MAX_EXPONENT = np.float32(87.0)
"""Largest |z| that is not clipped: exp(-88) is not a normal float32."""


@jit
def total(x: Float32, n: int) -> float:
    """The sum of the first ``n`` entries in float64, in four independent partial sums."""
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
    """Arrays for the samples of a batch."""

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
    """Empty arrays for ``n`` samples."""
    z, y, s = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    return Batch(z, y, s, np.empty(n, np.int32))


@jit
def logistic_batch(batch: Batch, n: int) -> float:
    """For the first ``n`` logits z and labels y: (sigmoid(z) - y) / n into s; returns the summed
    loss.

    z is overwritten with the losses. exp(-|z|) is 2**-k exp(-r) with |r| <= ln(2) / 2 and a
    polynomial of degree 6; log(1 + e) is 2 artanh(e / (2 + e)) by its series (argument at most
    1/3). Both are exact to float32 rounding, without a call that would keep the loop from being
    vectorised.
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
    """z += factor q for the first ``n`` entries."""
    for i in range(n):
        z[i] += factor * q[i]


@jit
def score_columns(z: Float32, Q: Float32, p: Float32, n: int, low: int = 0) -> None:
    """z_i = p.q_i for ``n`` columns of Q from ``low`` on, four dimensions per pass over z."""
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
    """The transposed copy of ``rows``: column i is row i."""
    columns = np.empty((rows.shape[1], rows.shape[0]), np.float32)
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            columns[k, i] = rows[i, k]
    return columns


@jit
def store_columns(columns: Float32, rows: Float32) -> None:
    """Copy column i of ``columns`` into row i of ``rows``, for all i."""
    for i in range(rows.shape[0]):
        for k in range(rows.shape[1]):
            rows[i, k] = columns[k, i]
