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
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from unskew.kernels import draw_samples, gather, replace_scores, score_table
from unskew.kernels.pfedrec import train_score_function
from unskew.methods._training import (
    ItemServer,
    TrainingConfig,
    fedavg,
    initial_items,
    starting_rows,
    trained_items,
)
from unskew.rng import Purpose, generator
from unskew.types import Cohort, Float32, Float64, Method, Rows, Upload, UploadSum

_FOLD_IN_PASSES = 20
"""Number of passes in which a new user fits its score function, each on fresh negatives, to the
frozen global items."""


class Private(NamedTuple):
    """The state of a device, which never leaves it: its score function, bias included, and the item
    rows it fine-tuned last (all other rows are as downloaded)."""

    theta: Float32
    bias: Float32
    Q: Rows


@dataclass(frozen=True)
class Config(TrainingConfig):
    participation: float = 1.0
    """Share of the clients that take part in a round."""
    local_epochs: int = 1
    """Local epochs E per round."""
    learning_rate: float = 0.1
    """SGD's rate for the score function (eta_1)."""
    item_rate_factor: float = 80.0
    """SGD's rate for the items is this times ``learning_rate`` times the number of items."""
    tolerance: float = 0.0
    """Local training stops once its mean loss changes by less than this share (0: never)."""


@dataclass(frozen=True)
class PFedRec(Method):
    config: Config = field(default_factory=Config)

    Config: ClassVar = Config
    name: ClassVar[str] = "pfedrec"
    aggregation: ClassVar[Literal["sum"]] = "sum"
    summary: ClassVar[str] = "private score function, items fine-tuned on the device"
    citation: ClassVar[str] = "Zhang et al., IJCAI 2023"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Private]:
        """theta and b as torch's Linear draws them, the same on every device."""
        d = self.config.dim
        draw = generator(seed, Purpose.INIT_DENSE)
        affine = (draw.uniform(-1, 1, d + 1) / np.sqrt(d)).astype(np.float32)
        private = Private(
            np.tile(affine[:d], (n_users, 1)),
            np.full(n_users, affine[d]),
            Rows.empty(n_users, d),
        )
        return ItemServer(initial_items(n_items, d, seed)), private

    def local(
        self, download: ItemServer, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c = self.config
        samples = draw_samples(cohort, c.negatives)
        rows = starting_rows(c, download, private.Q, samples, cohort)
        theta, bias = private.theta.copy(), private.bias.copy()
        rates = (c.learning_rate, c.learning_rate * cohort.n_items * c.item_rate_factor)
        shuffle = Purpose.SHUFFLE_LOCAL
        losses = train_score_function(
            cohort, samples, c.schedule, shuffle, theta, bias, rows, *rates
        )
        held, upload = trained_items(c, download, private.Q, samples, rows, cohort)
        one_each = upload._replace(weight=np.sign(upload.weight))
        return Private(theta, bias, held), one_each, losses

    def aggregate(self, server: ItemServer, total: UploadSum) -> ItemServer:
        return fedavg(server, total)

    def score(self, download: ItemServer, private: Private) -> Float32:
        scores = score_table(private.theta, download.Q)
        replace_scores(scores, private.theta, private.Q)
        scores += private.bias[:, None]
        return scores

    def fold_in(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        c = self.config
        theta, bias = private.theta.copy(), private.bias.copy()
        for passes in range(1, _FOLD_IN_PASSES + 1):
            alone = cohort.at_round(passes)
            samples = draw_samples(alone, c.negatives)
            rows = gather(download.Q, samples.touched)
            shuffle, rates = Purpose.SHUFFLE_PERSONAL, (c.learning_rate, 0.0)
            train_score_function(alone, samples, c.schedule, shuffle, theta, bias, rows, *rates)
        return private._replace(theta=theta, bias=bias)
