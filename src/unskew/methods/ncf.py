"""NCF: a neural network in place of the inner product, trained in one place.

He, Liao, Zhang, Nie, Hu & Chua, "Neural Collaborative Filtering", WWW 2017, its MLP model: the
embeddings side by side go through a tower that halves its width, d = 16 giving 32 - 16 - 8 - 1,

    z_ui = w3.relu(W2 relu(W1 [p_u, q_i] + b1) + b2) + b3,

and p, q, W and b are trained by Adam on the binary cross-entropy of a positive and its fresh
negatives, plus decay / 2 (|p_u|^2 + |q_i|^2) per sample. The negatives are drawn against the
training items only, wherever the evaluation protocol allows it, as in the original.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from unskew.kernels import Samples
from unskew.kernels.central import Table
from unskew.kernels.ncf import perceptron_user_gradient, train_perceptron
from unskew.kernels.perceptron import score_mlp
from unskew.methods._central import BatchConfig, fold_in_vectors, initial_tables
from unskew.methods.fedncf import initial_mlp
from unskew.types import CentralMethod, Cohort, Float32, Int64, Rows


class Server(NamedTuple):
    """Items and weights with Adam's moments, and its number of steps."""

    Q: Float32
    mQ: Float32
    vQ: Float32
    w: Float32
    mw: Float32
    vw: Float32
    steps: Int64


class Private(NamedTuple):
    """The users with Adam's moments."""

    p: Float32
    mp: Float32
    vp: Float32


class Download(NamedTuple):
    Q: Float32
    w: Float32


@dataclass(frozen=True)
class Config(BatchConfig):
    learning_rate: float = 0.003
    """Adam's rate."""


@dataclass(frozen=True)
class NCF(CentralMethod):
    config: Config = field(default_factory=Config)

    Config: ClassVar = Config
    name = "ncf"
    aggregation = "central"
    summary = "neural collaborative filtering (MLP) in one place"
    citation = "He et al., WWW 2017"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        users, items = initial_tables(self.config, n_users, n_items, seed)
        weights = Table.fresh(initial_mlp(self.config.dim, seed))
        return Server(*items, *weights, np.zeros(1, np.int64)), Private(*users)

    def download(self, server: Server) -> Download:
        return Download(server.Q, server.w)

    def epoch(
        self, server: Server, private: Private, everyone: Cohort
    ) -> tuple[Server, Private, float]:
        c = self.config
        users, items = Table(*private).copy(), Table(*server[:3]).copy()
        weights = Table(*server[3:6]).copy()
        tables, how = (users, items, weights), (c.batch, c.learning_rate, c.decay)
        loss, steps = train_perceptron(everyone, c.negatives, tables, *how, int(server.steps[0]))
        return Server(*items, *weights, np.array([steps])), Private(*users), loss

    def score(self, download: Download, private: Private) -> Float32:
        n = len(private.p)
        no_rows = Rows.empty(n, self.config.dim)
        return score_mlp(download.Q, private.p, np.tile(download.w, (n, 1)), no_rows)

    def fold_in(self, download: Download, private: Private, cohort: Cohort) -> Private:
        def gradient(samples: Samples, p: Float32) -> Float32:
            return perceptron_user_gradient(samples, p, download.Q, download.w)

        return private._replace(p=fold_in_vectors(self.config, cohort, gradient))
