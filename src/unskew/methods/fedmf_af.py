"""FedMF with AF, the PFedCLR paper's ablation "adaptation with a full matrix".

FedMF's round, upload included; then, as in other personalised methods, a matrix W_u that starts
from zero every round fine-tunes the items against the frozen user vector,

    W_u <- min_W L_u(p_u, Q_u + W; D_u),

and is kept for scoring only. The user vector is never calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from unskew.kernels import draw_samples, replace_scores, score_table, train_rows
from unskew.methods import _training, fedmf
from unskew.methods._training import ItemServer, TrainingConfig
from unskew.rng import Purpose
from unskew.types import Cohort, Float32, Float64, Method, Rows, Upload, UploadSum


class Private(NamedTuple):
    """The state of a device: its vector, its trained item rows, and those rows fine-tuned (Q +
    W)."""

    p: Float32
    Q: Rows
    tuned: Rows


@dataclass(frozen=True)
class Config(TrainingConfig):
    buffer_rate: float = 0.1
    """Adam's learning rate for W (beta). The paper states none for this ablation; at PFedCLR's
    0.01, W barely changes the scores."""


@dataclass(frozen=True)
class FedMFAF(Method):
    config: Config = field(default_factory=Config)

    Config: ClassVar = Config
    name = "fedmf-af"
    aggregation = "sum"
    summary = "FedMF with items fine-tuned by a full matrix (ablation AF)"
    citation = "Chen et al., 2025, ablation"

    @property
    def _backbone(self) -> fedmf.FedMF:
        shared = {name: getattr(self.config, name) for name in TrainingConfig.__dataclass_fields__}
        return fedmf.FedMF(TrainingConfig(**shared))

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[ItemServer, Private]:
        server, private = self._backbone.init(n_users, n_items, seed)
        return server, Private(private.p, private.Q, private.Q)

    def draw(self, cohort: Cohort) -> Cohort:
        return cohort._replace(samples=draw_samples(cohort, self.config.negatives))

    def local(
        self, download: ItemServer, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        backbone = fedmf.Private(private.p, private.Q)
        trained, upload, losses = self._backbone.local(download, backbone, cohort)
        return Private(trained.p, trained.Q, trained.Q), upload, losses

    def personalize(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        c = self.config
        samples = draw_samples(cohort, c.negatives)
        rows = _training.current_rows(download.Q, private.Q, samples).copy()
        shuffle = Purpose.SHUFFLE_PERSONAL
        train_rows(cohort, samples, c.schedule, shuffle, private.p, rows, c.buffer_rate)
        return private._replace(tuned=Rows(*samples.touched, rows))

    def aggregate(self, server: ItemServer, total: UploadSum) -> ItemServer:
        return self._backbone.aggregate(server, total)

    def score(self, download: ItemServer, private: Private) -> Float32:
        scores = score_table(private.p, download.Q)
        replace_scores(scores, private.p, private.Q)
        replace_scores(scores, private.p, private.tuned)
        return scores

    def fold_in(self, download: ItemServer, private: Private, cohort: Cohort) -> Private:
        return private._replace(p=_training.fold_in(self.config, download.Q, private.p, cohort))
