"""The arithmetic every local trainer shares, in loops LLVM turns into full vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from numba.extending import intrinsic

from unskew.jit import jit
from unskew.types import Float32, Int32


@intrinsic
def _sqrt32(typing_context: object, x: object) -> object:
    """LLVM's own float32 square root. The libm call behind np.sqrt may set errno, which keeps LLVM
    from vectorising every loop it stands in."""
    del typing_context, x

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        del context, signature
        return builder.call(builder.module.declare_intrinsic("llvm.sqrt", [args[0].type]), args)

    return numba.float32(numba.float32), codegen


_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_LARGEST = np.float32(87.0)


sqrt32: Callable[[float], float] = cast(Any, _sqrt32)


@jit
def total(x: Float32, n: int) -> float:
    """The sum of the first ``n`` entries in float64, in four chains so that none waits long."""
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


@jit
def logistic_batch(z: Float32, y: Float32, s: Float32, bits: Int32, n: int) -> float:
    """For logits ``z`` and labels ``y``: (sigmoid(z) - y) / n into ``s``; returns the summed loss.

    ``z`` is left holding the losses; ``bits`` is scratch. exp(-|z|) is 2**-k exp(-r) with
    |r| <= ln(2) / 2 and a polynomial of degree 6, log(1 + e) is 2 artanh(e / (2 + e)) by its series
    (argument at most 1/3): both exact to float32 rounding, without a call that would break the
    vector loop.
    """
    one = np.float32(1.0)
    half = np.float32(0.5)
    for j in range(n):
        a = min(abs(z[j]), _LARGEST)
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
