"""FedMF: matrix factorisation whose item embeddings are averaged by the server.

Chai, Wang, Chen & Yang, "Secure Federated Matrix Factorization", IEEE Intelligent Systems 2021
(without its encryption), in the form the PFedCLR paper uses as its backbone: each client trains its
user vector p_u and the items together on

    L_u = - sum r log s(p_u.q_i) + (1 - r) log(1 - s(p_u.q_i))            (Eq. 2)

and uploads the items; the server averages them by sample count (Eq. 11). p_u stays on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from unskew.kernels import draw_samples, replace_scores, score_table, train_joint
from unskew.methods import _training
from unskew.methods._training import ItemServer, TrainingConfig
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Method, Rows, Upload, UploadSum


class Private(NamedTuple):
    """The state of a device: its vector, and the item rows it trained last (all other rows are as
    downloaded)."""

    p: Float32
    Q: Rows


@dataclass(frozen=True)
class FedMF(Method):
    config: TrainingConfig = field(default_factory=TrainingConfig)

    Config: ClassVar = TrainingConfig
    name = "fedmf"
    aggregation = "sum"
    summary = "matrix factorisation, items averaged by the server"
    citation = "Chai et al., IEEE Intelligent Systems 2021"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Private]:
        d = self.config.dim
        private = Private(_training.initial_users(n_users, d, seed), Rows.empty(n_users, d))
        return ItemServer(_training.initial_items(n_items, d, seed)), private

    def local(
        self, download: ItemServer, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c = self.config
        samples = draw_samples(cohort, c.negatives)
        rows = _training.starting_rows(c, download.Q, private.Q, samples, cohort)
        p = private.p.copy()
        shuffle, rates = Purpose.SHUFFLE_LOCAL, (c.learning_rate, c.learning_rate)
        losses = train_joint(cohort, samples, c.schedule, shuffle, p, rows, *rates)
        held, upload = _training.trained_items(c, download.Q, private.Q, samples, rows, cohort)
        return Private(p, held), upload, losses

    def aggregate(self, server: ItemServer, total: UploadSum) -> ItemServer:
        return ItemServer(_training.fedavg(server.Q, total.rows, total.weight))

    def score(self, download: ItemServer, private: Private) -> Float32:
        scores = score_table(private.p, download.Q)
        replace_scores(scores, private.p, private.Q)
        return scores

    def fold_in(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        return private._replace(p=_training.fold_in(self.config, download.Q, private.p, cohort))
