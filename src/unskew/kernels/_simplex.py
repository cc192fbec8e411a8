"""The Euclidean projection onto the probability simplex, exact, one client a row."""

from __future__ import annotations

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import for_each_block
from unskew.types import Float64, Int64


@jit
def _project(block: Int64, points: Float64, out: Float64) -> None:
    n = points.shape[1]
    for c in block:
        falling = np.sort(points[c])[::-1]
        total, threshold = 0.0, 0.0
        for k in range(n):
            total += falling[k]
            candidate = (total - 1.0) / (k + 1)
            if falling[k] <= candidate:
                break
            threshold = candidate
        for j in range(n):
            out[c, j] = max(points[c, j] - threshold, 0.0)


def project_on_simplex(points: Float64) -> Float64:
    """The nearest x >= 0 with sum x = 1 to each row, in O(n log n) (Held, Wolfe & Crowder 1974).

    x = max(v - t, 0) with the one threshold t that makes the sum 1: with the entries in falling
    order it is (v_1 + ... + v_k - 1) / k for the largest k whose v_k still lies above it.
    """
    out = np.empty_like(points)
    work = np.full(len(points), points.shape[1], np.int64)
    for_each_block(work, lambda block: _project(block, points, out))
    return out
