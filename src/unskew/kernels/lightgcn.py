"""LightGCN's propagation over the user-item graph, and the gradient of its pairwise loss.

A layer is one sparse product with the normalised adjacency matrix, summed in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import block_array, csr_array

from unskew.jit import jit
from unskew.kernels.arithmetic import batch_arrays, logistic_batch
from unskew.kernels.tables import binary_matrix
from unskew.kernels.vectors import inner
from unskew.types import Float32, Int32, Ragged


class Graph(NamedTuple):
    """User-item graph: users, then items, as nodes. ``scale`` is degree^(-1/2), 0 at degree 0."""

    edges: csr_array
    scale: Float32

    @staticmethod
    def of(seen: Ragged, n_items: int) -> Graph:
        """Build the graph from the distinct items of each user."""
        X = binary_matrix(seen, n_items)
        edges = block_array([[None, X], [X.T, None]], format="csr")
        edges.sort_indices()
        degree = np.diff(edges.indptr)
        scale = np.where(degree > 0, np.maximum(degree, 1) ** -0.5, 0.0).astype(np.float32)
        return Graph(edges, scale)


def propagate(graph: Graph, E: Float32) -> Float32:
    """One layer: embedding n becomes the sum over neighbours m of E_m / sqrt(degree_n degree_m)."""
    scale = graph.scale[:, None]
    layer: Float32 = scale * (graph.edges @ (scale * E))
    return layer


def mean_of_layers(graph: Graph, E: Float32, layers: int) -> Float32:
    """Mean of the embeddings E after 0 to K layers: (E + A E + ... + A^K E) / (K + 1).

    The normalised adjacency A is symmetric, so this also turns a gradient by the result into one by
    E.
    """
    total = E
    for _ in range(layers):
        E = propagate(graph, E)
        total = total + E
    return total / np.float32(layers + 1)


@jit
def _pairwise(
    chosen: Int32,
    triples: tuple[Int32, Int32, Int32],
    E: Float32,
    E0: Float32,
    decay: float,
    g: Float32,
    g0: Float32,
) -> float:
    D, n = E.shape[1], len(chosen)
    user, better, worse = triples
    batch = batch_arrays(n)
    batch.y[:] = 1.0
    for j in range(n):
        p = E[user[chosen[j]]]
        batch.z[j] = inner(p, E[better[chosen[j]]], D) - inner(p, E[worse[chosen[j]]], D)
    loss = logistic_batch(batch, n)
    shrink = np.float32(decay / n)
    for j in range(n):
        u, a, b, s = user[chosen[j]], better[chosen[j]], worse[chosen[j]], batch.s[j]
        for k in range(D):
            g[u, k] += s * (E[a, k] - E[b, k])
            g[a, k] += s * E[u, k]
            g[b, k] -= s * E[u, k]
            g0[u, k] += shrink * E0[u, k]
            g0[a, k] += shrink * E0[a, k]
            g0[b, k] += shrink * E0[b, k]
    return loss


def pairwise_gradient(
    chosen: Int32, triples: tuple[Int32, Int32, Int32], E: Float32, E0: Float32, decay: float
) -> tuple[float, Float32, Float32]:
    """Summed BPR loss of the ``chosen`` (user, better item, worse item) triples, the gradient of
    its mean by the propagated embeddings ``E``, and of the mean penalty by the initial ones ``E0``.

    loss = -log sigmoid(e_user.e_better - e_user.e_worse); penalty = decay / 2 |rows of E0|^2.
    """
    g, g0 = np.zeros_like(E), np.zeros_like(E)
    loss = _pairwise(chosen, triples, E, E0, decay, g, g0)
    return float(loss), g, g0
