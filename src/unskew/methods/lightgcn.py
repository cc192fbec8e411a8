"""LightGCN: embeddings smoothed over the user-item graph, trained centrally.

He, Deng, Wang, Li, Zhang & Wang, "LightGCN: Simplifying and Powering Graph Convolution Network for
Recommendation", SIGIR 2020. With A the adjacency normalised by 1 / sqrt(degree_u degree_i), E^(k)
the embeddings of all users and items after k of K layers, s the sigmoid, and (u, i, j) a user, one
of its items and a negative,

    E^(k+1) = A E^(k),   E = (E^(0) + ... + E^(K)) / (K + 1),
    L = mean over (u, i, j) of -log s(e_u.e_i - e_u.e_j) + decay / 2 |E^(0)|^2 of the three rows,

minimised over E^(0) by Adam. Propagation is linear and symmetric, so the gradient by E^(0) is the
gradient by E, propagated in the same way. A step costs 2 K products with the whole graph for any
batch size; therefore an epoch has few, large batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels import score_table
from unskew.kernels.central import Table, adam, epoch_order, epoch_samples
from unskew.kernels.lightgcn import Graph, mean_of_layers, pairwise_gradient, propagate
from unskew.methods._central import EmbeddingConfig, initial_tables
from unskew.ragged import distinct, owners
from unskew.settings import setting
from unskew.types import CentralMethod, Cohort, Float32, Int32, Int64


class Server(NamedTuple):
    """Initial item embeddings with Adam's moments and number of steps, item embeddings after
    propagation, and the sum of each item's messages to a user over all propagation steps."""

    E0: Float32
    m: Float32
    v: Float32
    steps: Int64
    Q: Float32
    sent: Float32


class Private(NamedTuple):
    """Initial user embeddings with Adam's moments, and user embeddings after propagation."""

    E0: Float32
    m: Float32
    v: Float32
    p: Float32


class Download(NamedTuple):
    Q: Float32
    sent: Float32


@dataclass(frozen=True)
class Config(EmbeddingConfig):
    learning_rate: float = 0.03
    """Learning rate of Adam."""
    negatives: int = 1
    """Negatives drawn per positive, anew in each epoch."""
    decay: float = 1e-3
    """Weight of the L2 penalty on the initial embeddings of each pair."""
    layers: int = setting(3, above=0)
    """Propagation layers K."""
    batches: int = setting(10, above=0)
    """Batches per epoch; each costs a propagation over the whole graph."""


class LightGCN(CentralMethod):
    config = Config()
    name = "lightgcn"
    summary = "graph convolution on all interactions in one place"
    citation = "He et al., SIGIR 2020"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        users, items = initial_tables(self.config, n_users, n_items, seed)
        server = Server(*items, np.zeros(1, np.int64), items.x, np.zeros_like(items.x))
        return server, Private(*users, users.x)

    def download(self, server: Server) -> Download:
        return Download(server.Q, server.sent)

    def epoch(
        self, server: Server, private: Private, everyone: Cohort
    ) -> tuple[Server, Private, float]:
        c, n_users = self.config, len(private.E0)
        graph = Graph.of(distinct(everyone.positives), everyone.n_items)
        both = zip(private[:3], server[:3], strict=True)
        table = Table(*(np.concatenate(parts) for parts in both))
        E0, m, v = table
        triples = _triples(everyone, c.negatives)
        order = epoch_order(len(triples[0]), everyone)
        steps, total = int(server.steps[0]), 0.0
        for chosen in np.array_split(order, c.batches):
            if len(chosen):
                E = mean_of_layers(graph, E0, c.layers)
                loss, g, g0 = pairwise_gradient(chosen, triples, E, E0, c.decay)
                total, steps = total + loss, steps + 1
                adam(table, mean_of_layers(graph, g, c.layers) + g0, c.learning_rate, steps)
        E = mean_of_layers(graph, E0, c.layers)
        sent = _sent(graph, E0, c.layers)
        users, items = (slice(None, n_users), slice(n_users, None))
        state = Server(E0[items], m[items], v[items], np.array([steps]), E[items], sent[items])
        mean = total / max(len(order), 1)
        return state, Private(E0[users], m[users], v[users], E[users]), mean

    def score(self, download: Download, private: Private) -> Float32:
        return score_table(private.p, download.Q)

    def fold_in(self, download: Download, private: Private, cohort: Cohort) -> Private:
        """Embed new users by propagation from their items, with zero initial embeddings: the sum of
        the items' messages / (sqrt(number of items) (layers + 1))."""
        seen = distinct(cohort.positives)
        p = np.zeros_like(private.p)
        np.add.at(p, owners(seen.indptr), download.sent[seen.items])
        p /= np.sqrt(np.maximum(seen.counts(), 1))[:, None] * (self.config.layers + 1)
        return private._replace(p=p.astype(np.float32))


def _triples(cohort: Cohort, negatives: int) -> tuple[Int32, Int32, Int32]:
    """Training triples, one per drawn negative: graph nodes of user, positive and negative."""
    user, item, label = epoch_samples(cohort, negatives)
    positive = np.maximum.accumulate(np.where(label == 1, np.arange(len(label)), 0))
    chosen = np.flatnonzero(label == 0)
    node = item + np.int32(len(cohort.users))
    return user[chosen], node[positive[chosen]], node[chosen]


def _sent(graph: Graph, E: Float32, layers: int) -> Float32:
    total = np.zeros_like(E)
    for _ in range(layers):
        total += graph.scale[:, None] * E
        E = propagate(graph, E)
    return total
