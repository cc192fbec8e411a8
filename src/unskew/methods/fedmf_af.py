"""FedMF with AF, the PFedCLR paper's ablation "adaptation with a full matrix".

A round is FedMF's, including the upload. After it, a matrix W_u, which starts from zero every
round, is added to the item embeddings Q_u and trained on FedMF's loss L_u over the user's data
D_u, while the user vector p_u is fixed:

    W_u <- argmin_W L_u(p_u, Q_u + W; D_u).

W_u is used for scoring only. Unlike in PFedCLR, the user vector is never calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from unskew.kernels import draw_samples, replace_scores, train_rows
from unskew.methods.fedmf import FedMF
from unskew.methods.training import ItemServer, TrainingConfig, current_rows
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Rows, Upload


class Private(NamedTuple):
    """State of a device: user vector, trained item rows, and these rows after fine-tuning."""

    p: Float32
    Q: Rows
    tuned: Rows


@dataclass(frozen=True)
class Config(TrainingConfig):
    buffer_rate: float = 0.1
    """Adam's learning rate for W (beta). The paper states none for this ablation; at PFedCLR's
    0.01, W barely changes the scores."""


class FedMFAF(FedMF):
    config = Config()
    name = "fedmf-af"
    summary = "FedMF with items fine-tuned by a full matrix (ablation AF)"
    citation = "Chen et al., 2025, ablation"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Private]:
        server, private = super().init(n_users, n_items, seed)
        return server, Private(private.p, private.Q, private.Q)

    def draw(self, cohort: Cohort) -> Cohort:
        return cohort._replace(samples=draw_samples(cohort, self.config.negatives))

    def local(
        self, download: ItemServer, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        trained, upload, losses = super().local(download, private, cohort)
        return trained._replace(tuned=trained.Q), upload, losses

    def personalize(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        step = self.config.training(cohort, Purpose.SHUFFLE_PERSONAL)
        rows = current_rows(download.Q, private.Q, step).copy()
        step.run(train_rows, private.p, rows, self.config.buffer_rate)
        return private._replace(tuned=Rows(*step.samples.touched, rows))

    def score(self, download: ItemServer, private: Private) -> Float32:
        scores = super().score(download, private)
        replace_scores(scores, private.p, private.tuned)
        return scores
