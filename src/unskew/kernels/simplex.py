"""The Euclidean projection onto the probability simplex, exact, one client a row."""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._parallel import for_each_block
from unskew.types import Float64, Int64


@jit
def _project(block: Int64, points: Float64, out: Float64) -> None:
    n = points.shape[1]
    for c in block:
        v = points[c]
        kept, threshold = n + 1, -np.inf
        while True:
            total, above = 0.0, 0
            for j in range(n):
                if v[j] > threshold:
                    total += v[j]
                    above += 1
            if above == kept or above == 0:
                break
            kept, threshold = above, (total - 1.0) / above
        for j in range(n):
            out[c, j] = max(v[j] - threshold, 0.0)


def project_on_simplex(points: Float64) -> Float64:
    """The nearest x >= 0 with sum x = 1 to each row (Michelot 1986).

    x = max(v - t, 0) with the one threshold t that makes the sum 1. Starting from all entries, t is
    what would make those above it sum to 1; it only rises, and stops once nobody drops out.
    """
    out = np.empty_like(points)
    work = np.full(len(points), points.shape[1], np.int64)
    for_each_block(work, lambda block: _project(block, points, out))
    return out
