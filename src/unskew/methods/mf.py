"""MF: matrix factorisation trained in one place, the baseline federated methods are measured by.

Koren, Bell & Volinsky, "Matrix Factorization Techniques for Recommender Systems", Computer 2009,
with the loss that the federated methods use: over batches of samples (u, i, y), a positive and its
fresh negatives,

    L = mean of -y log s(p_u.q_i) - (1 - y) log(1 - s(p_u.q_i)) + decay / 2 (|p_u|^2 + |q_i|^2).

The penalty is counted per sample, so a row is held back in proportion to how often it is used. One
Adam runs through the whole training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from unskew.kernels import Samples, score_table
from unskew.kernels.central import Table, factor_gradient, train_factors
from unskew.methods._central import BatchConfig, fold_in_vectors, initial_tables
from unskew.methods._training import ItemServer
from unskew.types import CentralMethod, Cohort, Float32, Int64


class Server(NamedTuple):
    """The items with Adam's moments, and its number of steps."""

    Q: Float32
    mQ: Float32
    vQ: Float32
    steps: Int64


class Private(NamedTuple):
    """The users with Adam's moments."""

    p: Float32
    mp: Float32
    vp: Float32


@dataclass(frozen=True)
class MF(CentralMethod):
    config: BatchConfig = field(default_factory=BatchConfig)

    Config: ClassVar = BatchConfig
    name = "mf"
    aggregation = "central"
    summary = "matrix factorisation on all interactions in one place"
    citation = "Koren et al., Computer 2009"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        users, items = initial_tables(self.config, n_users, n_items, seed)
        return Server(*items, np.zeros(1, np.int64)), Private(*users)

    def download(self, server: Server) -> ItemServer:
        return ItemServer(server.Q)

    def epoch(
        self, server: Server, private: Private, everyone: Cohort
    ) -> tuple[Server, Private, float]:
        c = self.config
        users, items = Table(*private).copy(), Table(*server[:3]).copy()
        how = (c.batch, c.learning_rate, c.decay, int(server.steps[0]))
        loss, steps = train_factors(everyone, c.negatives, users, items, *how)
        return Server(*items, np.array([steps])), Private(*users), loss

    def score(self, download: ItemServer, private: Private) -> Float32:
        return score_table(private.p, download.Q)

    def fold_in(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        def gradient(samples: Samples, p: Float32) -> Float32:
            return factor_gradient(samples, p, download.Q)

        return private._replace(p=fold_in_vectors(self.config, cohort, gradient))
