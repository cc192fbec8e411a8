"""LightGCN's propagation over the user-item graph, and the gradient of its pairwise loss.

A layer is one sparse product with the symmetric normalised adjacency. Each node's sum runs over its
neighbours in a fixed order, so the number of threads does not change a bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import logistic_batch
from unskew.kernels.parallel import for_each_block
from unskew.kernels.vectors import inner
from unskew.types import Float32, Int32, Int64, Ragged


class Graph(NamedTuple):
    """Users and, after them, items as nodes; ``scale`` is degree^(-1/2), or 0 at degree 0."""

    indptr: Int64
    neighbours: Int32
    scale: Float32

    @staticmethod
    def of(seen: Ragged, n_items: int) -> Graph:
        """The graph of each user's distinct items."""
        n_users = len(seen.indptr) - 1
        user = np.repeat(np.arange(n_users, dtype=np.int32), seen.counts())
        by_item = np.argsort(seen.items, kind="stable")
        degree = np.concatenate((seen.counts(), np.bincount(seen.items, minlength=n_items)))
        indptr = np.concatenate(([0], np.cumsum(degree))).astype(np.int64)
        neighbours = np.concatenate((seen.items + np.int32(n_users), user[by_item]))
        scale = np.where(degree > 0, np.maximum(degree, 1) ** -0.5, 0.0)
        return Graph(indptr, neighbours.astype(np.int32), scale.astype(np.float32))


@jit
def _propagate(
    block: Int64,
    indptr: Int64,
    neighbours: Int32,
    scale: Float32,
    x: Float32,
    out: Float32,
) -> None:
    D = x.shape[1]
    for node in block:
        start, end, factor = indptr[node], indptr[node + 1], scale[node]
        # LLVM keeps eight sums in eight variables in one vector register, but not a row in memory.
        for k in range(0, D - 7, 8):
            a = b = c = d = e = f = g = h = np.float32(0.0)
            for j in range(start, end):
                n = neighbours[j]
                a += x[n, k]
                b += x[n, k + 1]
                c += x[n, k + 2]
                d += x[n, k + 3]
                e += x[n, k + 4]
                f += x[n, k + 5]
                g += x[n, k + 6]
                h += x[n, k + 7]
            out[node, k] = factor * a
            out[node, k + 1] = factor * b
            out[node, k + 2] = factor * c
            out[node, k + 3] = factor * d
            out[node, k + 4] = factor * e
            out[node, k + 5] = factor * f
            out[node, k + 6] = factor * g
            out[node, k + 7] = factor * h
        for k in range(D - D % 8, D):
            a = np.float32(0.0)
            for j in range(start, end):
                a += x[neighbours[j], k]
            out[node, k] = factor * a


def propagate(graph: Graph, E: Float32) -> Float32:
    """One layer: row n becomes the sum over neighbours m of E_m / sqrt(degree_n degree_m)."""
    scaled, out = graph.scale[:, None] * E, np.empty_like(E)
    for_each_block(np.diff(graph.indptr), _propagate, *graph, scaled, out)
    return out


def mean_of_layers(graph: Graph, E: Float32, layers: int) -> Float32:
    """(E + A E + ... + A^K E) / (K + 1).

    A is symmetric, so the same map takes the gradient by the result to the gradient by E.
    """
    total = E
    for _ in range(layers):
        E = propagate(graph, E)
        total = total + E
    return total / np.float32(layers + 1)


@jit
def _pairwise(
    chosen: Int32,
    user: Int32,
    better: Int32,
    worse: Int32,
    E: Float32,
    E0: Float32,
    decay: float,
    g: Float32,
    g0: Float32,
) -> float:
    D, n = E.shape[1], len(chosen)
    z = np.empty(n, np.float32)
    s = np.empty(n, np.float32)
    y = np.ones(n, np.float32)
    bits = np.empty(n, np.int32)
    for j in range(n):
        p = E[user[chosen[j]]]
        z[j] = inner(p, E[better[chosen[j]]], D) - inner(p, E[worse[chosen[j]]], D)
    loss = logistic_batch(z, y, s, bits, n)
    shrink = np.float32(decay / n)
    for j in range(n):
        u, a, b = user[chosen[j]], better[chosen[j]], worse[chosen[j]]
        for k in range(D):
            g[u, k] += s[j] * (E[a, k] - E[b, k])
            g[a, k] += s[j] * E[u, k]
            g[b, k] -= s[j] * E[u, k]
            g0[u, k] += shrink * E0[u, k]
            g0[a, k] += shrink * E0[a, k]
            g0[b, k] += shrink * E0[b, k]
    return loss


def pairwise_gradient(
    chosen: Int32, triples: tuple[Int32, Int32, Int32], E: Float32, E0: Float32, decay: float
) -> tuple[float, Float32, Float32]:
    """Summed loss of the ``chosen`` triples (user, better, worse) of nodes, the gradient of its
    mean by the propagated embeddings ``E``, and that of the penalty by ``E0``.

    loss = -log s(e_u.e_better - e_u.e_worse), penalty = decay / 2 |E0|^2 over the three rows.
    """
    g, g0 = np.zeros_like(E), np.zeros_like(E)
    loss = _pairwise(chosen, *triples, E, E0, decay, g, g0)
    return float(loss), g, g0
