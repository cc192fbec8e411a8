"""Sums of uploads that bound what a few hostile nodes can do, for deployments and for audits.

A node is one user or many. It sends its mean update (item rows and a dense part) and its weight,
which counts up to a bound, by default the median node's weight. The rules:

``rows``     shortens each item row, each dense part and each whole update to one and a half times
             what is usual among the round's nodes.
``clip``     shortens whole updates to the median norm.
``median``   the median of the nodes in every coordinate; a missing row counts as zeros.
``trimmed``  the mean without the extremes in every coordinate (both: Yin et al., ICML 2018).

``clip`` lets a node put all that it may send into one row. ``median`` and ``trimmed`` lose a row
that few nodes send (:func:`lost_rows`), so they need nodes of many users. Under ``rows`` an update
of a hostile node is about as large as others on every row, but all of its length may go into the
direction that suits the attacker, and on a rare item's row there may be few honest nodes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import numpy as np

from unskew.kernels import add_weighted, empty_sum
from unskew.privacy import Shape
from unskew.ragged import indptr_from_counts, owners, select
from unskew.types import Float32, Float64, Int64, Rows, UnskewError, Upload, UploadSum

Robust = Literal["none", "rows", "clip", "median", "trimmed"]
MAX_BLOCK_BYTES = 64 * 2**20
"""Maximum bytes of the dense rows of all nodes that are in memory at a time."""
SLACK = 1.5
"""How many times the usual norm a norm may be before ``rows`` shortens it."""
MAX_UNITS = 2.0
"""How many times the usual size of its column a value may have before ``rows`` cuts it."""
MAX_LOST_ROWS = 0.2
"""Largest share of the sent rows that a rule may remove without a warning."""
_LEAST = 1e-30
"""Smallest divisor, in place of zero."""


def robust_sum(
    nodes: Upload, shape: Shape, rule: Robust, trim: float, max_weight: float = 0.0
) -> UploadSum:
    """Sum of the nodes' mean updates times their weights, by a rule. ``trimmed`` leaves out the
    share ``trim`` of the nodes at either end, one at least if there are three. Weights count up to
    ``max_weight`` (0: the median)."""
    weights: Float64 = nodes.weight
    if rule != "none" and (weights > 0).any():
        nodes = _select(nodes, np.flatnonzero(weights > 0))
        weights = np.minimum(nodes.weight, max_weight or _median(nodes.weight))
        if rule in ("median", "trimmed"):
            return _middle(nodes, shape, weights, nodes_cut(len(weights), rule, trim))
        nodes = bound_rows(nodes) if rule == "rows" else shorten(nodes, _median(norms(nodes)))
    return add_weighted(empty_sum(*shape), nodes.rows, nodes.dense, weights, weights).result()


def bound_rows(nodes: Upload) -> Upload:
    """Shorten rows, dense parts and whole updates to ``SLACK`` times their usual norm.

    The length of a row is measured in units of what is usual in each column: otherwise a hostile
    node could put it all into a column where honest values are small, and a little moves the model
    far. What is usual is the median over nodes of a node's own root mean square or median norm, so
    that a node with many rows has no more say in it than others."""
    nodes = nodes._replace(rows=nodes.rows._replace(values=_bounded(nodes.rows)))
    of_dense = _sizes(nodes.dense)
    if of_dense.any():
        factors = _factors(of_dense, SLACK * _median(of_dense[of_dense > 0]))
        nodes = nodes._replace(dense=nodes.dense * factors[:, None])
    lengths = norms(nodes)
    return shorten(nodes, SLACK * _median(lengths[lengths > 0])) if lengths.any() else nodes


def _bounded(rows: Rows) -> Float32:
    """Bound every value to ``MAX_UNITS`` and every row to ``SLACK`` times the usual norm, both in
    units of the usual size of the values in the same column."""
    counts = np.diff(rows.indptr)
    sent = np.flatnonzero(counts)
    if not len(sent):
        return rows.values
    values = rows.values.astype(np.float64)
    each = np.add.reduceat(np.square(values), rows.indptr[sent], axis=0) / counts[sent][:, None]
    usual = np.maximum(np.median(np.sqrt(each), axis=0), _LEAST)
    units = np.clip(values / usual, -MAX_UNITS, MAX_UNITS)
    sizes = _sizes(units)
    norm = _median(np.array([np.median(sizes[a:b]) for a, b in pairwise(rows.indptr) if a < b]))
    return np.asarray(units * usual * _factors(sizes, SLACK * norm)[:, None], np.float32)


def shorten_rows(nodes: Upload, bound: float) -> Upload:
    """Scale down item rows whose norm is above ``bound``."""
    factors = _factors(_sizes(nodes.rows.values), bound)
    return nodes._replace(rows=nodes.rows._replace(values=nodes.rows.values * factors[:, None]))


def shorten(nodes: Upload, bound: float) -> Upload:
    """Scale down updates whose norm, over rows and dense part together, is above ``bound``."""
    factors = _factors(norms(nodes), bound)
    values = nodes.rows.values * factors[owners(nodes.rows.indptr)][:, None]
    return nodes._replace(
        rows=nodes.rows._replace(values=values), dense=nodes.dense * factors[:, None]
    )


def norms(nodes: Upload) -> Float64:
    """Euclidean norm of each node's update, over item rows and dense part together."""
    squares = np.square(_sizes(nodes.dense))
    of_rows = np.square(_sizes(nodes.rows.values))
    squares += np.bincount(owners(nodes.rows.indptr), of_rows, len(squares))
    return np.asarray(np.sqrt(squares), np.float64)


def nodes_cut(n_nodes: int, rule: Robust, trim: float) -> int:
    """Number of nodes that ``median`` or ``trimmed`` leaves out at either end; 0: the rule is a
    plain mean of so few nodes."""
    most = (n_nodes - 1) // 2
    return most if rule == "median" else min(most, max(1, int(trim * n_nodes)))


def lost_rows(nodes: Upload, rule: Robust, trim: float) -> float:
    """Share of the sent rows that ``median`` or ``trimmed`` sets to zero or nearly so, because too
    few nodes sent a row of the same item: no more than the rule leaves out at either end."""
    if rule not in ("median", "trimmed") or not len(nodes.rows.items):
        return 0.0
    senders = np.bincount(nodes.rows.items)[nodes.rows.items]
    return float((senders <= nodes_cut(int((nodes.weight > 0).sum()), rule, trim)).mean())


def check_rule(rule: Robust, trim: float, n_nodes: int, n_users: int, where: str) -> None:
    """Raise an UnskewError if a rule cannot protect ``n_nodes`` nodes, which have ``n_users`` users
    together. ``where`` says how to get other nodes."""
    if rule not in ("median", "trimmed"):
        return
    if n_nodes < 3 or (rule == "trimmed" and int(trim * n_nodes) < 1):
        least = 3 if rule == "median" else max(3, int(np.ceil(1 / max(trim, 0.01))))
        share = "" if rule == "median" else f" with trim = {trim:g}"
        raise UnskewError(
            f'robust = "{rule}"{share} leaves no node out among {n_nodes}, so it protects from '
            f'nothing; {where} at least {least} nodes, or take robust = "rows".'
        )
    if n_nodes >= n_users:
        raise UnskewError(
            f'robust = "{rule}" removes nearly every item row if each node has one user, because '
            f'few nodes send a row of the same item; take robust = "rows".'
        )


def mean_updates(uploads: Upload, node: Int64, n_nodes: int, n_items: int) -> Upload:
    """The nodes' mean updates, from uploads of users and the node of each."""
    from scipy.sparse import csr_array  # slow to import: only when needed

    weight: Float64 = np.bincount(node, uploads.weight, n_nodes).astype(np.float64)
    share = uploads.weight / np.maximum(weight[node], _LEAST)
    owner, everyone = owners(uploads.rows.indptr), np.arange(len(node))
    keys, place = np.unique(node[owner] * n_items + uploads.rows.items, return_inverse=True)
    at = place.ravel(), np.arange(len(owner))
    values = csr_array((share[owner], at), shape=(len(keys), len(owner))) @ uploads.rows.values
    dense = csr_array((share, (node, everyone)), shape=(n_nodes, len(node))) @ uploads.dense
    indptr = indptr_from_counts(np.bincount(keys // n_items, minlength=n_nodes))
    rows = Rows(indptr, (keys % n_items).astype(np.int32), values.astype(np.float32))
    return Upload(rows, dense.astype(np.float32), weight)


def _select(nodes: Upload, chosen: Int64) -> Upload:
    if len(chosen) == len(nodes.weight):
        return nodes
    return Upload(select(nodes.rows, chosen), nodes.dense[chosen], nodes.weight[chosen])


def _sizes(values: Float32) -> Float64:
    """Euclidean norm of each row."""
    return np.asarray(np.sqrt(np.square(values, dtype=np.float64).sum(axis=1)), np.float64)


def _factors(sizes: Float64, bound: float) -> Float32:
    """Factors that bring norms above ``bound`` down to it."""
    return np.minimum(1.0, bound / np.maximum(sizes, _LEAST)).astype(np.float32)


def _median(values: Float64) -> float:
    """Lower median: no more than an honest value, even if half of the nodes report too much."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _middle(nodes: Upload, shape: Shape, weights: Float64, cut: int) -> UploadSum:
    """The sum of the weights times the nodes' mean without the ``cut`` smallest and largest values
    of every coordinate."""
    n, weight, node = len(weights), float(weights.sum()), owners(nodes.rows.indptr)
    rows = np.empty((shape.n_items, shape.width))
    step = max(1, MAX_BLOCK_BYTES // (8 * n * max(shape.width, 1)))
    for low in range(0, shape.n_items, step):
        high = min(low + step, shape.n_items)
        here = np.flatnonzero((nodes.rows.items >= low) & (nodes.rows.items < high))
        stacked = np.zeros((n, high - low, shape.width))
        stacked[node[here], nodes.rows.items[here] - low] = nodes.rows.values[here]
        rows[low:high] = weight * _trimmed_mean(stacked, cut)
    return UploadSum(rows, weight * _trimmed_mean(nodes.dense.astype(float), cut), weight, n)


def _trimmed_mean(stacked: Float64, cut: int) -> Float64:
    """The mean over nodes without the ``cut`` smallest and largest values of each coordinate."""
    ordered = np.sort(stacked, axis=0)
    middle: Float64 = ordered[cut : len(ordered) - cut].mean(axis=0)
    return middle
