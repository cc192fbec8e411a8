"""MF: matrix factorisation trained centrally, the non-federated counterpart of FedMF.

Koren, Bell & Volinsky, "Matrix Factorization Techniques for Recommender Systems", Computer 2009,
with the loss of the federated methods: for samples (user u, item i, label y), which are positives
and fresh negatives, with embeddings p_u and q_i and the sigmoid s,

    L = mean of -y log s(p_u.q_i) - (1 - y) log(1 - s(p_u.q_i)) + decay / 2 (|p_u|^2 + |q_i|^2).

The penalty is counted per sample, so an embedding shrinks in proportion to how often it is used.
Adam's moments are carried through all epochs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.kernels import score_table
from unskew.kernels.central import (
    Table,
    epoch_order,
    epoch_samples,
    factor_gradient,
    train_factors,
)
from unskew.methods._central import BatchConfig, GradientMethod, Users, initial_tables
from unskew.methods.training import ItemServer
from unskew.types import Cohort, Float32, Int64, Samples


class Server(NamedTuple):
    """Item embeddings with Adam's first and second moments, and the number of Adam steps."""

    Q: Float32
    mQ: Float32
    vQ: Float32
    steps: Int64


class MF(GradientMethod):
    config = BatchConfig()
    name = "mf"
    summary = "matrix factorisation on all interactions in one place"
    citation = "Koren et al., Computer 2009"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Users]:
        users, items = initial_tables(self.config, n_users, n_items, seed)
        return Server(*items, np.zeros(1, np.int64)), Users(*users)

    def download(self, server: Server) -> ItemServer:
        return ItemServer(server.Q)

    def epoch(
        self, server: Server, private: Users, everyone: Cohort
    ) -> tuple[Server, Users, float]:
        c, samples = self.config, epoch_samples(everyone, self.config.negatives)
        order = epoch_order(len(samples.item), everyone)
        users, items = Table(*private).copy(), Table(*server[:3]).copy()
        batch = min(c.batch, max(1, len(order)))  # the kernel has arrays of this size
        how = (batch, c.learning_rate, c.decay, int(server.steps[0]))
        loss, steps = train_factors(order, samples, users, items, *how)
        return Server(*items, np.array([steps])), Users(*users), loss

    def score(self, download: ItemServer, private: Users) -> Float32:
        return score_table(private.p, download.Q)

    def user_gradient(self, download: ItemServer, samples: Samples, p: Float32) -> Float32:
        return factor_gradient(samples, p, download.Q)
