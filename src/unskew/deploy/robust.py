"""Robust aggregation: bounds the influence of hostile nodes on sums and metrics.

The rules work on the nodes' mean updates, and are those of the simulator's audit
(:mod:`unskew.engine.robust`): the sum of a node's weighted uploads, divided by its weight. A node's
stated weight counts for at most ``max-weight`` or, where none is set, the median node's weight. The
result is a sum again, so the method's ``aggregate`` stays the same. Sums stay bounded while most
nodes are honest, but an honest node that is large or has unusual users counts for less.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from unskew.deploy.messages import METRICS, MetricSums, NodeSum, add_node
from unskew.engine import robust as engine_robust
from unskew.engine.robust import MAX_LOST_ROWS, Robust, lost_rows, nodes_cut
from unskew.kernels import empty_sum
from unskew.privacy import Shape
from unskew.ragged import indptr_from_counts
from unskew.types import Rows, Upload, UploadSum

log = logging.getLogger("flwr")


def robust_sum(
    parts: list[NodeSum], shape: Shape, how: Robust, trim: float, max_weight: float = 0.0
) -> UploadSum:
    """Sum of the nodes' sums by the robust rule ``how``. ``trimmed`` leaves out the share ``trim``
    of nodes at either end. A node's weight counts up to ``max_weight`` (0: the median weight). Logs
    a warning if the rule does not work with these nodes."""
    present = [part for part in parts if part.weight > 0]
    if how == "none" or not present:
        return _add_all(parts, shape)
    nodes = _mean_updates(present)
    if how in ("median", "trimmed") and nodes_cut(len(present), how, trim) == 0:
        log.warning('robust = "%s" is a plain mean of only %d nodes', how, len(present))
    elif (lost := lost_rows(nodes, how, trim)) > MAX_LOST_ROWS:
        log.warning(
            'robust = "%s" removes %.0f %% of the item rows that nodes have sent, because few '
            'nodes sent rows of the same items; take robust = "rows", or nodes of more users',
            how,
            100 * lost,
        )
    return engine_robust.robust_sum(nodes, shape, how, trim, max_weight)


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


def _mean_updates(parts: list[NodeSum]) -> Upload:
    """The sums of nodes, each divided by its weight, as one value."""
    indptr = indptr_from_counts([len(part.items) for part in parts])
    items = np.concatenate([part.items for part in parts])
    values = np.concatenate([part.values / np.float32(part.weight) for part in parts])
    dense = np.stack([part.dense / np.float32(part.weight) for part in parts])
    return Upload(Rows(indptr, items, values), dense, np.array([part.weight for part in parts]))
