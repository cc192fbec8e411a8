"""FedMF: matrix factorisation whose item embeddings are averaged by the server.

Chai, Wang, Chen & Yang, "Secure Federated Matrix Factorization", IEEE Intelligent Systems 2021
(without its encryption), as used in the PFedCLR paper. Each client trains its user vector p_u and
the item embeddings q_i together (s: sigmoid; r: 1 for the user's items, 0 for negatives) on

    L_u = - sum r log s(p_u.q_i) + (1 - r) log(1 - s(p_u.q_i))            (Eq. 2)

and uploads the items; the server averages them by sample count (Eq. 11). p_u stays on the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from unskew.kernels import no_pull, train_joint
from unskew.methods import training
from unskew.methods.training import AveragedItems, ItemServer, ItemTraining, TrainingConfig
from unskew.types import Cohort, Float32, Float64, Rows, Upload


class Private(NamedTuple):
    """State of a device: user vector, and the item rows trained last (others are as downloaded)."""

    p: Float32
    Q: Rows


class FedMF(AveragedItems):
    config = TrainingConfig()
    name = "fedmf"
    summary = "matrix factorisation, items averaged by the server"
    citation = "Chai et al., IEEE Intelligent Systems 2021"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Any]:
        d = self.config.dim
        private = Private(training.initial_users(n_users, d, seed), Rows.empty(n_users, d))
        return ItemServer(training.initial_items(n_items, d, seed)), private

    def local(
        self, download: ItemServer, private: Any, cohort: Cohort
    ) -> tuple[Any, Upload, Float64]:
        p, rate = private.p.copy(), self.config.learning_rate
        step = ItemTraining(self.config, download.Q, private.Q, cohort)
        losses = step.run(train_joint, p, step.rows, rate, rate, *no_pull(p))
        held, upload = step.finish()
        return private._replace(p=p, Q=held), upload, losses
