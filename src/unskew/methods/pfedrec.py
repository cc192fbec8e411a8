"""PFedRec: dual personalisation, of the score function and of the items.

Zhang, Long, Zhou, Yan, Zhang, Zhang & Yang, "Dual Personalization on Federated Recommendation",
IJCAI 2023. There is no user embedding; a device has its own affine score function,

    r_ui = s(theta_u . q_i + b_u),

which never leaves it. Per batch it first fits that function to the items, then, after a second
forward pass, the items to the function, both by SGD on the batch's mean binary cross-entropy,

    (theta_u, b_u) <- (theta_u, b_u) - eta_1 dL/d(theta_u, b_u),    Q_u <- Q_u - eta_2 dL/dQ_u,

with eta_2 = eta_1 x n_items x factor. The uploaded items are averaged with equal weights (rows that
a client did not touch count in the average as they were downloaded); a device scores with the items
as it fine-tuned them itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from unskew.kernels import draw_samples, replace_scores, score_table
from unskew.kernels.pfedrec import train_score_function
from unskew.methods import _training
from unskew.methods._training import ItemServer
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Method, Rows, Upload, UploadSum


class Private(NamedTuple):
    """The state of a device, which never leaves it: its score function, bias included, and the item
    rows it fine-tuned last (all other rows are as downloaded)."""

    theta: Float32
    bias: Float32
    Q: Rows


@dataclass(frozen=True)
class Config(_training.SGDConfig):
    learning_rate: float = 0.1
    """SGD's rate for the score function (eta_1)."""
    item_rate_factor: float = 80.0
    """SGD's rate for the items is this times ``learning_rate`` times the number of items."""


@dataclass(frozen=True)
class PFedRec(Method):
    config: Config = field(default_factory=Config)

    Config: ClassVar = Config
    name = "pfedrec"
    aggregation = "sum"
    summary = "private score function, items fine-tuned on the device"
    citation = "Zhang et al., IJCAI 2023"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Private]:
        """theta and b as torch's Linear draws them, the same on every device."""
        d = self.config.dim
        affine = _training.initial_layers([(d, 1)], seed)
        theta, bias = np.tile(affine[:d], (n_users, 1)), np.full(n_users, affine[d])
        server = ItemServer(_training.initial_items(n_items, d, seed))
        return server, Private(theta, bias, Rows.empty(n_users, d))

    def local(
        self, download: ItemServer, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c = self.config
        samples = draw_samples(cohort, c.negatives)
        rows = _training.starting_rows(c, download.Q, private.Q, samples, cohort)
        theta, bias = private.theta.copy(), private.bias.copy()
        rates = (c.learning_rate, c.learning_rate * cohort.n_items * c.item_rate_factor)
        how = (cohort, samples, c.schedule, Purpose.SHUFFLE_LOCAL)
        losses = train_score_function(*how, theta, bias, rows, *rates)
        held, upload = _training.trained_items(c, download.Q, private.Q, samples, rows, cohort)
        one_each = upload._replace(weight=np.sign(upload.weight))
        return Private(theta, bias, held), one_each, losses

    def aggregate(self, server: ItemServer, total: UploadSum) -> ItemServer:
        return ItemServer(_training.fedavg(server.Q, total.rows, total.weight))

    def score(self, download: ItemServer, private: Private) -> Float32:
        scores = score_table(private.theta, download.Q)
        replace_scores(scores, private.theta, private.Q)
        scores += private.bias[:, None]
        return scores

    def fold_in(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        c = self.config
        theta, bias = private.theta.copy(), private.bias.copy()
        for alone, samples, rows in _training.fold_in_passes(c, download.Q, cohort):
            how = (alone, samples, c.schedule, Purpose.SHUFFLE_PERSONAL)
            train_score_function(*how, theta, bias, rows, c.learning_rate, 0.0)
        return private._replace(theta=theta, bias=bias)
