"""FedNCF: neural collaborative filtering whose items and network are averaged by the server.

Perifanis & Efraimidis, "Federated Neural Collaborative Filtering", Knowledge-Based Systems 2022
(without its secure aggregation), in the form the PFedCLR paper compares with. A multi-layer
perceptron scores the user vector p_u with the item embedding q_i, both of size d (s: sigmoid),

    r_ui = s(W3 ReLU(W2 ReLU(W1 [p_u; q_i] + b1) + b2) + b3),    2d -> d -> d/2 -> 1.

Each client trains p_u, the items Q and the network W together on binary cross-entropy and uploads
Q and W; the server averages both, weighted by the clients' sample counts n_u,

    Q_g <- sum_u n_u Q_u / sum_u n_u,    W_g <- sum_u n_u W_u / sum_u n_u.

p_u stays on the device. A client is evaluated with the network it trained, not with the average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels.perceptron import mlp_layers, score_mlp, train_mlp
from unskew.methods import training
from unskew.methods.training import ItemTraining, TrainingConfig
from unskew.settings import setting
from unskew.types import Cohort, Float32, Float64, Method, Rows, Upload, UploadSum


class Server(NamedTuple):
    """The item embeddings, and the network's weights as one flat vector."""

    Q: Float32
    mlp: Float32


class Private(NamedTuple):
    """State of a device: its user vector, the network it trained last, and the item rows it trained
    last (all other rows are as downloaded)."""

    p: Float32
    mlp: Float32
    Q: Rows


@dataclass(frozen=True)
class Config(TrainingConfig):
    dim: int = setting(16, at_least=2)
    """Embedding size d; the second layer has d / 2 units."""
    learning_rate: float = 0.01
    """Adam's rate for embeddings and network alike (eta)."""


def initial_mlp(dim: int, seed: int) -> Float32:
    return training.initial_layers(mlp_layers(dim), seed)


class FedNCF(Method):
    config = Config()
    name = "fedncf"
    summary = "MLP on both embeddings, items and MLP averaged by the server"
    citation = "Perifanis & Efraimidis, Knowledge-Based Systems 2022"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        d = self.config.dim
        mlp = initial_mlp(d, seed)
        p = training.initial_users(n_users, d, seed)
        private = Private(p, np.tile(mlp, (n_users, 1)), Rows.empty(n_users, d))
        return Server(training.initial_items(n_items, d, seed), mlp), private

    def local(
        self, download: Server, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c, rate = self.config, self.config.learning_rate
        p, mlp = private.p.copy(), private.mlp.copy()
        if not c.trains_alone(cohort.round):
            mlp[:] = download.mlp
        step = ItemTraining(c, download.Q, private.Q, cohort)
        losses = step.run(train_mlp, p, step.rows, mlp, rate, rate, rate)
        held, upload = step.finish()
        if not c.sends_nothing(cohort.round):
            upload = upload._replace(dense=mlp - download.mlp)
        return Private(p, mlp, held), upload, losses

    def aggregate(self, server: Server, total: UploadSum) -> Server:
        return Server(
            training.fedavg(server.Q, total.rows, total.weight),
            training.fedavg(server.mlp, total.dense, total.weight),
        )

    def score(self, download: Server, private: Private) -> Float32:
        return score_mlp(download.Q, private.p, private.mlp, private.Q)

    def score_dense(self, download: Server, private: Private, dense: Float32) -> Float32:
        return self.score(download, private._replace(mlp=download.mlp + dense))

    def fold_in(self, download: Server, private: Private, cohort: Cohort) -> Private:
        p = private.p.copy()
        mlp = np.tile(download.mlp, (len(p), 1))
        for step, rows in training.fold_in_passes(self.config, download.Q, cohort):
            step.run(train_mlp, p, rows, mlp, self.config.learning_rate, 0.0, 0.0)
        return private._replace(p=p, mlp=mlp)
