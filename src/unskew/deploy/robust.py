"""Robust aggregation: bounds the influence of hostile nodes on sums, user ownership and metrics.

Each robust sum works on the nodes' mean updates: the sum of a node's weighted uploads, divided by
its weight, with zeros for items that no user of the node changed. The result is a sum again, so the
method's ``aggregate`` stays the same. A node's stated weight is bounded: it counts for at most
``max-weight`` or, where none is set, the median node's weight. ``clip`` also bounds the norm of a
node's mean update by the median norm. ``median`` and ``trimmed`` (Yin et al., ICML 2018) leave out
the extremes of every coordinate and give all nodes the same weight. The sums stay bounded while
most nodes are honest, but an honest node that is large or has unusual users counts for less.

A user belongs to the first node that claims it uncontested, and stays with it; the server saves
the owners with its checkpoint. If two nodes claim a user that has no owner yet, neither upload of
that user is used: only the operator can know which node is right.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from unskew.deploy.messages import METRICS, MetricSums, NodeSum, add_node
from unskew.deploy.task import Robust
from unskew.kernels import empty_sum
from unskew.privacy import Shape
from unskew.types import Bool, Float64, Int64, UploadSum

_BLOCK_ITEMS = 4096
"""Number of items whose rows, from all nodes, are in memory at a time."""


def robust_sum(
    parts: list[NodeSum], shape: Shape, how: Robust, trim: float, max_weight: float = 0.0
) -> UploadSum:
    """Sum of the nodes' sums by the robust rule ``how``. ``trimmed`` leaves out the share ``trim``
    of nodes at either end. A node's weight counts up to ``max_weight`` (0: the median weight)."""
    present = [part for part in parts if part.weight > 0]
    if how == "none" or not present:
        return _add_all(parts, shape)
    weights = np.array([part.weight for part in present])
    weights = np.minimum(weights, max_weight or _median(weights))
    if how == "clip":
        return _add_all(_clip(present, weights), shape)
    weight = float(weights.sum())
    cut = int(trim * len(present)) if how == "trimmed" else (len(present) - 1) // 2
    rows = np.empty((shape.n_items, shape.width))
    for low in range(0, shape.n_items, _BLOCK_ITEMS):
        high = min(low + _BLOCK_ITEMS, shape.n_items)
        stacked = np.stack([_mean_rows(part, low, high, shape.width) for part in present])
        rows[low:high] = weight * _trimmed_mean(stacked, cut)
    stacked = np.stack([part.dense / part.weight for part in present])
    dense = weight * _trimmed_mean(stacked, cut)
    return UploadSum(rows, dense, weight, len(present))


def settle_owners(owners: Int64, claims: Mapping[int, Int64]) -> tuple[Int64, dict[int, Bool]]:
    """Update which node owns each user, after a round in which each node sent uploads of the users
    in its ``claims``. Returns the owners, and for each node a mask of the claims that hold."""
    claimed = np.zeros(len(owners), np.int64)
    for users in claims.values():
        claimed[users] += 1
    owners = owners.copy()
    for node, users in claims.items():
        owners[users[(owners[users] == 0) & (claimed[users] == 1)]] = _signed(node)
    return owners, {node: owners[users] == _signed(node) for node, users in claims.items()}


def mean_metrics(
    answers: Mapping[int, MetricSums], n_users: int
) -> tuple[dict[str, float], list[int]]:
    """Mean of each metric over the users of all nodes, and the nodes left out. If nodes together
    report more users than the federation has, those that report most are left out."""
    size = {node: max((n for _, n in sums.values()), default=0) for node, sums in answers.items()}
    order = sorted(answers, key=lambda node: (size[node], node))
    users = np.cumsum([size[node] for node in order])
    n_heard = int(np.sum(users <= n_users))
    means = {}
    for name in sorted(METRICS):
        pairs = [answers[node][name] for node in order[:n_heard] if name in answers[node]]
        count = sum(n for _, n in pairs)
        if count:
            means[name] = sum(total for total, _ in pairs) / count
    return means, order[n_heard:]


def _add_all(parts: list[NodeSum], shape: Shape) -> UploadSum:
    total = empty_sum(*shape)
    for part in parts:
        total = add_node(total, part)
    return total.result()


def _median(values: Float64) -> float:
    """Lower median: no more than an honest value, even if half of the nodes report too much."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _trimmed_mean(stacked: Float64, cut: int) -> Float64:
    """The mean over nodes without the ``cut`` smallest and largest values of each coordinate."""
    ordered = np.sort(stacked, axis=0)
    middle: Float64 = ordered[cut : len(ordered) - cut].mean(axis=0)
    return middle


def _mean_rows(part: NodeSum, low: int, high: int, width: int) -> Float64:
    rows = np.zeros((high - low, width))
    first, last = np.searchsorted(part.items, (low, high))
    rows[part.items[first:last] - low] = part.values[first:last] / part.weight
    return rows


def _clip(parts: list[NodeSum], weights: Float64) -> list[NodeSum]:
    """Rescale the nodes' sums to ``weights``, with mean updates clipped to the median norm."""
    norms = np.array([_norm(part) / part.weight for part in parts])
    shorter = np.minimum(1.0, _median(norms) / np.maximum(norms, 1e-30))
    scales = shorter * weights / [part.weight for part in parts]
    return [
        NodeSum(part.items, part.values * np.float32(scale), part.dense * np.float32(scale), weight)
        for part, scale, weight in zip(parts, scales, weights.tolist(), strict=True)
    ]


def _norm(part: NodeSum) -> float:
    squares = (np.square(array, dtype=np.float64).sum() for array in (part.values, part.dense))
    return float(np.sqrt(sum(squares)))


def _signed(node: int) -> int:
    """A Flower node id (unsigned 64-bit) as the signed 64-bit integer that files store."""
    return int(np.uint64(node).astype(np.int64))
