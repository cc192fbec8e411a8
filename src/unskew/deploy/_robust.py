"""Sums that a few hostile nodes cannot steer far.

Each works on the nodes' mean updates m_n = (sum of a node's weighted uploads) / (its weight), zero
where a node touched nothing, and gives back a sum, so that the method's ``aggregate`` sees nothing
new. ``clip`` bounds how far a node can pull, by the median of the nodes' lengths; ``median`` and
``trimmed`` (Yin et al., ICML 2018) look at every coordinate by itself and leave out the extremes.
All three give up exactness for it: an honest node with unusual users is toned down too.
"""

from __future__ import annotations

import numpy as np

from unskew.deploy._task import Robust
from unskew.deploy._wire import NodeSum, Shape, add, no_sum
from unskew.types import Float64, UploadSum

_ITEMS_AT_A_TIME = 4096


def robust_sum(parts: list[NodeSum], shape: Shape, how: Robust, trim: float) -> UploadSum:
    """The nodes' sums as one, with at least two of them; how says against what."""
    present = [part for part in parts if part.weight > 0]
    if how == "none" or len(present) < 2:
        present, how = parts, "none"
    if how == "clip":
        present = _clipped(present)
    if how in ("none", "clip"):
        total = no_sum(shape)
        for part in present:
            total = add(total, part)
        return total
    weight = sum(part.weight for part in present)
    cut = int(trim * len(present)) if how == "trimmed" else (len(present) - 1) // 2
    total = no_sum(shape)
    for low in range(0, shape.n_items, _ITEMS_AT_A_TIME):
        high = min(low + _ITEMS_AT_A_TIME, shape.n_items)
        stacked = np.stack([_mean_rows(part, low, high, shape.width) for part in present])
        total.rows[low:high] = weight * _middle(stacked, cut)
    stacked = np.stack([part.dense / part.weight for part in present])
    total.dense[:] = weight * _middle(stacked, cut)
    return UploadSum(total.rows, total.dense, weight, len(present))


def _middle(stacked: Float64, cut: int) -> Float64:
    """The mean over nodes without the ``cut`` smallest and largest values of each coordinate."""
    ordered = np.sort(stacked, axis=0)
    middle: Float64 = ordered[cut : len(ordered) - cut].mean(axis=0)
    return middle


def _mean_rows(part: NodeSum, low: int, high: int, width: int) -> Float64:
    rows = np.zeros((high - low, width))
    first, last = np.searchsorted(part.items, (low, high))
    rows[part.items[first:last] - low] = part.values[first:last] / part.weight
    return rows


def _clipped(parts: list[NodeSum]) -> list[NodeSum]:
    """No node's mean update longer than the median node's."""
    lengths = np.array([_length(part) / part.weight for part in parts])
    bound = float(np.median(lengths))
    scales = np.minimum(1.0, bound / np.maximum(lengths, 1e-30)).astype(np.float32)
    return [
        part._replace(values=part.values * scale, dense=part.dense * scale)
        for part, scale in zip(parts, scales, strict=True)
    ]


def _length(part: NodeSum) -> float:
    squares = (np.square(array, dtype=np.float64).sum() for array in (part.values, part.dense))
    return float(np.sqrt(sum(squares)))
