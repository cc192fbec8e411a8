"""NCF: a neural network in place of the inner product, trained centrally.

He, Liao, Zhang, Nie, Hu & Chua, "Neural Collaborative Filtering", WWW 2017, its MLP model: the
concatenated embeddings of user p_u and item q_i go through layers of widths 2d, d, d/2 and 1,

    z_ui = w3.relu(W2 relu(W1 [p_u, q_i] + b1) + b2) + b3,

and all are trained by Adam on the binary cross-entropy of positives and fresh negatives, plus
decay / 2 (|p_u|^2 + |q_i|^2) per sample. As in the original, any item outside a user's training
items may be a negative, unless the evaluation protocol excludes more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels.central import (
    Table,
    epoch_order,
    epoch_samples,
    perceptron_gradient,
    train_perceptron,
)
from unskew.kernels.perceptron import score_mlp
from unskew.methods._central import BatchConfig, GradientMethod, Users, initial_tables
from unskew.methods.fedncf import initial_mlp
from unskew.types import Cohort, Float32, Int64, Rows, Samples


class Server(NamedTuple):
    """Item embeddings and network weights with Adam's moments, and the number of Adam steps."""

    Q: Float32
    mQ: Float32
    vQ: Float32
    w: Float32
    mw: Float32
    vw: Float32
    steps: Int64


class Download(NamedTuple):
    Q: Float32
    w: Float32


@dataclass(frozen=True)
class Config(BatchConfig):
    learning_rate: float = 0.003
    """Adam's rate."""


class NCF(GradientMethod):
    config = Config()
    name = "ncf"
    summary = "neural collaborative filtering (MLP) in one place"
    citation = "He et al., WWW 2017"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Users]:
        users, items = initial_tables(self.config, n_users, n_items, seed)
        weights = Table.start(initial_mlp(self.config.dim, seed))
        return Server(*items, *weights, np.zeros(1, np.int64)), Users(*users)

    def download(self, server: Server) -> Download:
        return Download(server.Q, server.w)

    def epoch(
        self, server: Server, private: Users, everyone: Cohort
    ) -> tuple[Server, Users, float]:
        c, samples = self.config, epoch_samples(everyone, self.config.negatives)
        order = epoch_order(len(samples.item), everyone)
        parts = (private, server[:3], server[3:6])
        users, items, weights = (Table(*part).copy() for part in parts)
        how = (c.batch, c.learning_rate, c.decay, int(server.steps[0]))
        loss, steps = train_perceptron(order, samples, users, items, weights, *how)
        return Server(*items, *weights, np.array([steps])), Users(*users), loss

    def score(self, download: Download, private: Users) -> Float32:
        n = len(private.p)
        no_rows = Rows.empty(n, self.config.dim)
        return score_mlp(download.Q, private.p, download.w[None], no_rows)

    def user_gradient(self, download: Download, samples: Samples, p: Float32) -> Float32:
        return perceptron_gradient(samples, p, download.Q, download.w)
