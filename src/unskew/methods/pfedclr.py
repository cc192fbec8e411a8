"""PFedCLR: personalised federated recommendation with calibration via low-rank decomposition.

Chen, Zhang, Li, Zhang, Li & Li, "Beyond Personalization: Federated Recommendation with Calibration
via Low-rank Decomposition", 2025. A round has three steps (p_u: user vector, Q_g: the server's item
embeddings, Q_u: the client's, L_u: binary cross-entropy on the client's data D_u):

1. the client trains the downloaded items against its frozen user vector and uploads them,
       Q_u <- min_Q L_u(p_u, Q_g; D_u)                                    (Eq. 6)
2. with Q_u frozen it calibrates p_u through a low-rank buffer A_u B_u added to the items,
       p_u, A_u, B_u <- min L_u(p_u, Q_u + A_u B_u; D_u)                  (Eq. 10)
   where A_u starts at zero and B_u ~ N(0, 1); the buffer persists from round to round;
3. the server averages the uploads by sample count (Eq. 11); Step 2 does not wait for this.

``buffer = "full"`` replaces A_u B_u by one full matrix W (Eq. 9): the paper's ablation CF.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from unskew.kernels import (
    add_scores,
    draw_samples,
    merge,
    no_pull,
    overlay,
    train_joint,
    train_low_rank,
    train_rows,
)
from unskew.methods import training
from unskew.methods.training import AveragedItems, ItemServer, ItemTraining, TrainingConfig
from unskew.ragged import owners
from unskew.rng import Purpose, generator
from unskew.settings import setting
from unskew.types import Cohort, Float32, Float64, Ragged, Rows, Upload


class Private(NamedTuple):
    """State of a device, which never leaves it: its user vector, its buffer (two low-rank factors,
    or one full matrix and an empty one), and the item rows it trained last."""

    p: Float32
    A: Rows
    B: Float32
    Q: Rows


@dataclass(frozen=True)
class Config(TrainingConfig):
    buffer: Literal["low-rank", "full"] = "low-rank"
    """Shape of the matrix added to the items: A B (CLR) or a full matrix W (CF)."""
    rank: int = setting(2, at_least=1)
    """Rank r of A B."""
    buffer_rate: float = 0.01
    """Adam's learning rate for the matrix added to the items (beta)."""


class PFedCLR(AveragedItems):
    config = Config()
    name = "pfedclr"
    summary = "user embedding calibrated by a private low-rank buffer"
    citation = "Chen et al., 2025"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Private]:
        c = self.config
        rank, width = (c.rank, c.rank) if self._low_rank else (0, c.dim)
        B = generator(seed, Purpose.INIT_BUFFER).standard_normal((rank, c.dim), np.float32)
        private = Private(
            training.initial_users(n_users, c.dim, seed),
            Rows.empty(n_users, width),
            np.tile(B, (n_users, 1, 1)),
            Rows.empty(n_users, c.dim),
        )
        return ItemServer(training.initial_items(n_items, c.dim, seed)), private

    @property
    def _low_rank(self) -> bool:
        return self.config.buffer == "low-rank"

    def unread_fields(self, round: int) -> tuple[str, ...]:
        """Private fields that a round does not read: the item rows, once the server aggregates."""
        return () if self.config.trains_alone(round) else ("Q",)

    def draw(self, cohort: Cohort) -> Cohort:
        return cohort._replace(samples=draw_samples(cohort, self.config.negatives))

    def local(
        self, download: ItemServer, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        step = ItemTraining(self.config, download.Q, private.Q, cohort)
        losses = step.run(train_rows, private.p, step.rows, self.config.learning_rate)
        held, upload = step.finish()
        return private._replace(Q=held), upload, losses

    def personalize(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        c = self.config
        step = c.training(cohort, Purpose.SHUFFLE_PERSONAL)
        touched = step.samples.touched
        Q = training.current_rows(download.Q, private.Q, step)
        A = overlay(np.zeros((len(Q), private.A.values.shape[1]), np.float32), touched, private.A)
        p, B, rates = private.p.copy(), private.B.copy(), (c.learning_rate, c.buffer_rate)
        if self._low_rank:
            step.run(train_low_rank, p, Q, A, B, *rates)
        else:
            # Training W in Q + W is training the sum from where it stands.
            A += Q
            step.run(train_joint, p, A, *rates, *no_pull(p))
            A -= Q
        return private._replace(p=p, A=merge(private.A, Rows(*touched, A)), B=B)

    def score(self, download: ItemServer, private: Private) -> Float32:
        """Scores: inner products of user vectors with items plus the user's private matrix."""
        scores = super().score(download, private)
        through = np.einsum("urd,ud->ur", private.B, private.p) if self._low_rank else private.p
        add_scores(scores, np.ascontiguousarray(through), private.A)
        return scores

    def item_buffer(self, private: Private, touched: Ragged) -> Float64:
        """The rows that clients add to the item embeddings, for the items in their samples."""
        nothing = np.zeros((len(touched.items), private.A.values.shape[1]), np.float32)
        A = overlay(nothing, touched, private.A).astype(np.float64)
        B = private.B[owners(touched.indptr)]
        return np.einsum("nr,nrd->nd", A, B) if self._low_rank else A
