"""PFedRec: dual personalisation, of the score function and of the items.

Zhang, Long, Zhou, Yan, Zhang, Zhang & Yang, "Dual Personalization on Federated Recommendation",
IJCAI 2023. There is no user embedding; a device has its own affine score function,

    r_ui = s(theta_u . q_i + b_u)    (q_i: item embedding, s: sigmoid),

which never leaves it. Per batch it first fits that function to the items, then, after a second
forward pass, the items to the function, both by SGD on the batch's mean binary cross-entropy,

    (theta_u, b_u) <- (theta_u, b_u) - eta_1 dL/d(theta_u, b_u),    Q_u <- Q_u - eta_2 dL/dQ_u,

with learning rates eta_1 and eta_2 = eta_1 x n_items x ``item_rate_factor``. The server averages
the uploaded items Q_u with equal weights (rows that a client did not train count as downloaded). A
device scores with the items that it fine-tuned itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels import score_items
from unskew.kernels.pfedrec import train_score_function
from unskew.methods import training
from unskew.methods.training import AveragedItems, ItemServer, ItemTraining
from unskew.types import Cohort, Float32, Float64, Rows, Upload


class Private(NamedTuple):
    """State of a device, which never leaves it: its score function with bias, and the item rows it
    fine-tuned last (all other rows are as downloaded)."""

    theta: Float32
    bias: Float32
    Q: Rows


@dataclass(frozen=True)
class Config(training.SGDConfig):
    learning_rate: float = 0.1
    """SGD's rate for the score function (eta_1)."""
    item_rate_factor: float = 80.0
    """SGD's rate for the items is this times ``learning_rate`` times the number of items."""


class PFedRec(AveragedItems):
    config = Config()
    name = "pfedrec"
    summary = "private score function, items fine-tuned on the device"
    citation = "Zhang et al., IJCAI 2023"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Private]:
        """Initial state; score functions as in torch's Linear, the same on every device."""
        d = self.config.dim
        affine = training.initial_layers([(d, 1)], seed)
        theta, bias = np.tile(affine[:d], (n_users, 1)), np.full(n_users, affine[d])
        server = ItemServer(training.initial_items(n_items, d, seed))
        return server, Private(theta, bias, Rows.empty(n_users, d))

    def local(
        self, download: ItemServer, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c = self.config
        theta, bias = private.theta.copy(), private.bias.copy()
        item_rate = c.learning_rate * cohort.n_items * c.item_rate_factor
        step = ItemTraining(c, download.Q, private.Q, cohort)
        losses = step.run(train_score_function, theta, bias, step.rows, c.learning_rate, item_rate)
        held, upload = step.finish()
        one_each = upload._replace(weight=np.sign(upload.weight))
        return Private(theta, bias, held), one_each, losses

    def score(self, download: ItemServer, private: Private) -> Float32:
        return score_items(private.theta, download.Q, private.Q) + private.bias[:, None]

    def fold_in(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        theta, bias = private.theta.copy(), private.bias.copy()
        for step, rows in training.fold_in_passes(self.config, download.Q, cohort):
            step.run(train_score_function, theta, bias, rows, self.config.learning_rate, 0.0)
        return private._replace(theta=theta, bias=bias)
