"""FedNext: FedRefit's closed form, and on top of it a small network that reads the history.

Unskew's own method (2026). A device keeps no vector that later rounds of aggregation could make
stale: it computes the user's vector from the history and the newest shared weights when needed.

First stage, eight rounds with all clients: FedRefit (``methods/fedrefit.py``) finds item vectors U
and next-item rows V from exact sums. Its features of a history up to position t are f_t. After one
of these rounds the scores are g(V_i . f) + log of the item's recent popularity, as one more
candidate for validation: counts in which old interactions weigh less (without times, plain counts).

Second stage, a small cohort per round: the logit of item i after position t is

    z_ti = h_t . E_i + b_i + tau g(V_i . f_t),    g(y) = log(softplus(y / scale) + 1e-4),

where h_t comes from one block over the history (``kernels/history_network.py``). E starts as U's
directions, b and the last gain of the network as zero and tau as one: the first model is FedRefit.
A device takes a random window of its history and sends one gradient, of the softmax cross-entropy
of each next item against negatives that the server has drawn for all devices of the round. So the
choice of negatives says nothing about anyone, and the server needs only the sum of the gradients,
for Adam with warm-up and a cosine schedule. Validation chooses the round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.kernels import one_blas_thread, score_table
from unskew.kernels.fednext import Own, add_refit, draw_windows, encode_histories, gradients
from unskew.kernels.history_network import GROUPS
from unskew.kernels.refit import history_rows
from unskew.methods import fedrefit
from unskew.methods._fednext import (
    FIRST_STAGE_ROUNDS,
    POPULARITY_STEP,
    Download,
    Private,
    Server,
    arithmetic_of,
    fault_of,
    first_stage_download,
    first_stage_update,
    first_stage_upload,
    initial_server,
    log_recent,
    refit_part,
    scale,
    second_stage_update,
    shared_part,
    shuffle_ties,
)
from unskew.methods.fedrefit import FedRefit
from unskew.ragged import distinct
from unskew.rng import Purpose, generator
from unskew.settings import Settings, setting
from unskew.types import (
    Cohort,
    Float32,
    Float64,
    Method,
    Ragged,
    Rows,
    UnskewError,
    Upload,
    UploadSum,
)


@dataclass(frozen=True)
class Config(Settings):
    rounds: int = setting(1000, above=0)
    """Rounds, those of the first stage included; the learning rate falls to about zero."""
    cohort: int = setting(256, above=0)
    """Largest number of clients per round in the second stage."""
    participation: float = setting(1 / 16, above=0, at_most=1)
    """Largest share of the clients per round in the second stage."""
    dim: int = setting(128, above=0)
    """Size of the item vectors E and of the network; a multiple of 8."""
    base_dim: int = setting(128, above=0)
    """Size of the item space U of the first stage."""
    horizon: float = setting(0.4, at_most=1)
    """Factor on a target's weight for each further step ahead, in the last fit of V."""
    window: int = setting(200, above=0)
    """Largest number of positions of a history that a device trains on in a round."""
    negatives: int = setting(512, above=0)
    """Negatives drawn per round, the same for all devices."""
    dropout: float = setting(0.25, at_most=0.9)
    """Share of the network's activations set to zero in training."""
    learning_rate: float = setting(0.003, above=0)
    """Largest learning rate of Adam, on the server."""
    warm_up: int = setting(30, above=0)
    """Rounds of the second stage in which the learning rate rises from zero."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dim % GROUPS:
            raise UnskewError(f"dim is {self.dim}: give a multiple of {GROUPS}.")


class FedNext(Method):
    config = Config()
    name = "fednext"
    summary = "FedRefit and a small network over the history; no parameters per user"
    citation = "Unskew, 2026"
    stateless = True
    uses_ages = True

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        kind: Any = FedRefit
        settings: Any = {"dim": self.config.base_dim, "horizon": self.config.horizon}
        self._refit: FedRefit = kind(fedrefit.Config(order="fednext", **settings))

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        refit, private = self._refit.init(n_users, n_items, seed)
        server = initial_server(refit, self.config.dim, seed)
        return server, Private(private.p, np.zeros((n_users, self.config.dim), np.float32))

    def participation(self, round: int) -> float:
        return 1.0 if round <= FIRST_STAGE_ROUNDS else float(self.config.participation)

    def cohort_size(self, round: int, n_users: int) -> int:
        limit = n_users if round <= FIRST_STAGE_ROUNDS else self.config.cohort
        return min(limit, super().cohort_size(round, n_users))

    def evaluated(self, round: int) -> bool:
        done = round - FIRST_STAGE_ROUNDS
        return done <= 0 or done % (10 if done <= 100 else 50) == 0 or round == self.config.rounds

    def download(self, server: Server) -> Download:
        random = generator(int(server.seed[0]), Purpose.NEGATIVES, int(server.step[0]))
        drawn = random.permutation(len(server.R))[: self.config.negatives]
        negatives = np.sort(drawn).astype(np.int32)
        if server.step[0] >= FIRST_STAGE_ROUNDS:
            return Download(*server[:8], negatives)
        return first_stage_download(self._refit, server, negatives)

    def local(
        self, download: Download, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        if not len(download.R):
            return first_stage_upload(self._refit, download, private, cohort)
        window = draw_windows(shuffle_ties(cohort), self.config.window + 1)
        own = distinct(window)
        U = self._refit.own_items(refit_part(download), own)
        rows = Own(*own, download.R[own.items], U, download.V[own.items])
        numbered = history_rows(window, own, cohort.n_items)
        shared = shared_part(download, self._refit.config)
        g = gradients(cohort, numbered, rows, shared, self.config.dropout)
        weight = (window.counts() - 1).clip(0).astype(np.float64)
        return private, Upload(Rows(*own, g.R), g.dense, weight), g.losses.astype(np.float64)

    def personalize(self, download: Download, private: Private, cohort: Cohort) -> Private:
        return self.refresh(download, private, cohort.positives)

    def aggregate(self, server: Server, total: UploadSum) -> Server:
        if total.weight == 0:
            return server
        if server.step[0] < FIRST_STAGE_ROUNDS:
            with one_blas_thread():
                return first_stage_update(self._refit, server, total)
        done = int(server.step[0]) - FIRST_STAGE_ROUNDS
        progress = min(1.0, done / max(self.config.rounds - FIRST_STAGE_ROUNDS, 1))
        rate = self.config.learning_rate * 0.5 * (1 + np.cos(np.pi * progress))
        rate *= min(1.0, (done + 1) / self.config.warm_up)
        return second_stage_update(server, total, self.download(server).negatives, done + 1, rate)

    def item_table(self, download: Download) -> Float32:
        return download.R[:, :-1] if len(download.R) else download.U

    def upload_base(self, download: Download, user: int, dense: Float32) -> Float32:
        """Zeros: uploaded rows are gradients or sums, not differences from the download."""
        return np.zeros((1, 1), np.float32)

    def refresh(self, download: Download, private: Private, history: Ragged) -> Private:
        """Compute users' states from their histories; earlier states do not matter."""
        p = self._refit.refresh(refit_part(download), fedrefit.Private(private.p), history).p
        if not len(download.R):
            return private._replace(p=p)
        return Private(p, encode_histories(history, download.R, download.net))

    def check_download(self, download: Download) -> str | None:
        return fault_of(download)

    def score(self, download: Download, private: Private) -> Float32:
        refit = self._refit.score(refit_part(download), fedrefit.Private(private.p))
        if len(download.R):
            z = score_table(private.h, np.ascontiguousarray(download.R[:, :-1]))
            b, tau = download.R[:, -1].copy(), float(download.net[-1])
        elif download.step[0] == POPULARITY_STEP + 1:
            z, b, tau = np.zeros_like(refit), log_recent(download), 1.0
        else:
            return refit
        return add_refit(z, refit, b, tau, scale(download))

    def export(self, download: Download) -> Any:
        return arithmetic_of(self._refit, download)
