"""Sums that a few hostile nodes cannot steer far: they stay bounded while most nodes are honest.

Each works on the nodes' mean updates m_n = (sum of a node's weighted uploads) / (its weight), zero
where a node touched nothing, and gives back a sum, so that the method's ``aggregate`` sees nothing
new. What a node says of its own weight is not believed either: it counts for no more than
``max-weight`` or, where none is set, than the median node's. ``clip`` also bounds how far a node
can pull, by the median of the nodes' lengths; ``median`` and ``trimmed`` (Yin et al., ICML 2018)
look at every coordinate by itself, all nodes alike, and leave out the extremes.
All three give up exactness for it: an honest node that is large or has unusual users is toned down
too.
"""

from __future__ import annotations

import numpy as np

from unskew.deploy._task import Robust
from unskew.deploy._wire import NodeSum, Shape, add, no_sum
from unskew.types import Float64, UploadSum

_ITEMS_AT_A_TIME = 4096


def robust_sum(
    parts: list[NodeSum], shape: Shape, how: Robust, trim: float, max_weight: float = 0.0
) -> UploadSum:
    """The nodes' sums as one; ``how`` says what makes it robust. ``max_weight`` 0: the median."""
    present = [part for part in parts if part.weight > 0]
    if how == "none" or not present:
        return _plain(parts, shape)
    weights = np.array([part.weight for part in present])
    weights = np.minimum(weights, max_weight or _median(weights))
    if how == "clip":
        return _plain(_clipped(present, weights), shape)
    weight = float(weights.sum())
    cut = int(trim * len(present)) if how == "trimmed" else (len(present) - 1) // 2
    total = no_sum(shape)
    for low in range(0, shape.n_items, _ITEMS_AT_A_TIME):
        high = min(low + _ITEMS_AT_A_TIME, shape.n_items)
        stacked = np.stack([_mean_rows(part, low, high, shape.width) for part in present])
        total.rows[low:high] = weight * _middle(stacked, cut)
    stacked = np.stack([part.dense / part.weight for part in present])
    total.dense[:] = weight * _middle(stacked, cut)
    return UploadSum(total.rows, total.dense, weight, len(present))


def _plain(parts: list[NodeSum], shape: Shape) -> UploadSum:
    total = no_sum(shape)
    for part in parts:
        total = add(total, part)
    return total


def _median(values: Float64) -> float:
    """The lower of two middle values: with as many liars as honest nodes, the bound is honest."""
    return float(np.sort(values)[(len(values) - 1) // 2])


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


def _clipped(parts: list[NodeSum], weights: Float64) -> list[NodeSum]:
    """No node's mean update longer than the median node's; each counts with its weight here."""
    lengths = np.array([_length(part) / part.weight for part in parts])
    shorter = np.minimum(1.0, _median(lengths) / np.maximum(lengths, 1e-30))
    scales = shorter * weights / [part.weight for part in parts]
    return [
        NodeSum(part.items, part.values * np.float32(scale), part.dense * np.float32(scale), weight)
        for part, scale, weight in zip(parts, scales, weights.tolist(), strict=True)
    ]


def _length(part: NodeSum) -> float:
    squares = (np.square(array, dtype=np.float64).sum() for array in (part.values, part.dense))
    return float(np.sqrt(sum(squares)))
