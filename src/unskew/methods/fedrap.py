"""FedRAP: a shared item table plus a private one on every device.

Li, Long & Zhou, "Federated Recommendation with Additive Personalization", ICLR 2024. A client
scores item i by an affine function of the sum of its private embedding c_ui (table C_u) and the
shared one d_i (table D; the paper swaps the letters C and D). With s the sigmoid,

    r_ui = s(w_u.(c_ui + d_i) + b_u).

It trains everything together by SGD with weight decay on

    L_u = BCE - lambda mean (C_u - D)^2 + mu mean |D|      (means over the rows of the batch)

and uploads D alone; the server averages the uploads with equal weights. lambda and mu grow with
tanh((round - 1) / 10), which the authors' program computes but does not use (``ramp = 0``). C_u,
w_u, b_u never leave the device; all devices start as copies of one model.

The lambda term drives C and D apart without bound: by the factor 1 + 4 lambda rate / (batch d) per
step, for a row that is once in a batch (d: embedding size). lambda = 0.1 at the authors' learning
rates for ML-100K ruins the scores within 20 rounds, with their batch of 2048 and d = 32 as well as
ours (one version of their program leaves the term out). So lambda is far smaller here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unskew.kernels.fedrap import AdditiveRates, ScaledTable, train_additive
from unskew.methods import training
from unskew.rng import Purpose, generator
from unskew.settings import setting
from unskew.types import Cohort, Float32, Float64, Method, Rows, UnskewError, Upload, UploadSum


class Server(NamedTuple):
    """The shared item table, and the initial private item table. Devices draw the latter from the
    seed themselves, so it does not count as downloaded."""

    Q: Float32
    C_0: Float32


class Private(NamedTuple):
    """State of a device: its score function, its private item table and, until the server
    aggregates, its version of the shared table. Later it scores with the server's, as the authors
    do; storing its own would take as much memory as an upload for half a point of HR at most."""

    weight: Float32
    bias: Float32
    C: Rows
    C_scale: Float32
    D: Rows
    D_scale: Float32


@dataclass(frozen=True)
class Config(training.TrainingConfig):
    participation: float = 1.0
    """Share of the clients that take part in a round."""
    learning_rate: float = 1e3
    """SGD's learning rate for both tables in the first batch of the first round."""
    score_rate: float = 1e-4
    """SGD's learning rate for the affine score, likewise."""
    batch_decay: float = setting(0.95, at_most=1)
    """Factor of both rates after every batch; each round starts again without it."""
    round_decay: float = setting(0.97, at_most=1)
    """Factor of both rates after every round."""
    weight_decay: float = 1e-6
    """Weight decay of tables and score."""
    independence: float = 1e-3
    """lambda, which keeps C and D apart."""
    sparsity: float = 1e-3
    """mu, which keeps D sparse."""
    ramp: float = 10.0
    """lambda and mu in round a are their values times tanh((a - 1) / ramp); 0: constant."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight_decay * max(self.learning_rate, self.score_rate) >= 1:
            raise UnskewError("weight_decay times learning_rate or score_rate must be below 1.")

    def rates(self, round: int) -> AdditiveRates:
        so_far = self.round_decay ** (round - 1)
        grown = math.tanh((round - 1) / self.ramp) if self.ramp else 1.0
        return AdditiveRates(
            self.learning_rate * so_far,
            self.score_rate * so_far,
            self.batch_decay,
            self.weight_decay,
            self.independence * grown,
            self.sparsity * grown,
        )


class FedRAP(Method):
    config = Config()
    name = "fedrap"
    summary = "a shared item table plus a private one on every device"
    citation = "Li, Long & Zhou, ICLR 2024"
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "filmtrust": {"independence": 3e-3},
        "ml-100k": {"learning_rate": 2e3},
        "ml-1m": {"learning_rate": 2e3},
        "lastfm-2k": {"independence": 3e-4},
    }
    """Settings by data set, the best of a small grid on validation under ``paper`` (seed 0). HR@10
    and NDCG@10 there: in 100 rounds FilmTrust .975, .905 and ML-100K 1.000, .986; in 20 rounds
    ML-1M .804, .610 (default: .776, .578, lambda 3e-3: .773, .575, 3e-4: .776, .580); in 30
    rounds LastFM-2K .753, .694 (default: .743, .688, rate 2e3: .733, .683, 5e2: .739, .681, lambda
    3e-3: .714, .665)."""

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        """Initial item tables (standard normal) and score functions (as in torch's Linear)."""
        d, whole = self.config.dim, np.ones(n_users, np.float32)
        none = Rows.empty(n_users, d)
        C_0 = generator(seed, Purpose.INIT_BUFFER).standard_normal((n_items, d), np.float32)
        affine = np.tile(training.initial_layers([(d, 1)], seed), (n_users, 1))
        private = Private(affine[:, :d].copy(), affine[:, d].copy(), none, whole, none, whole)
        return Server(training.initial_items(n_items, d, seed), C_0), private

    def download_bytes(self, download: Server) -> int:
        return download.Q.nbytes

    def local(
        self, download: Server, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c, n = self.config, len(cohort.users)
        step, factors = c.training(cohort), np.ones(n)
        touched = step.samples.touched
        C, D = _tables(download, private)
        if not c.trains_alone(cohort.round):
            D = ScaledTable.from_common(download.Q, n)
        C_rows, D_rows = C.rows(touched), D.rows(touched)
        weight, bias = private.weight.copy(), private.bias.copy()
        arrays = (weight, bias, C_rows, D_rows, factors)
        losses = step.run(train_additive, c.rates(cohort.round), *arrays)
        if not all(np.isfinite(values).all() for values in (losses, C_rows, D_rows)):
            raise UnskewError(
                f"fedrap diverged in round {cohort.round}: lower learning_rate = "
                f"{c.learning_rate:g} or independence = {c.independence:g}."
            )
        C, D = C.with_rows(touched, C_rows, factors), D.with_rows(touched, D_rows, factors)
        # D_u = rows + (1 + e_u) D: weight decay moved every row, but one number e_u says how, and
        # the sum over clients stays a sum.
        upload = Upload(D.difference(), D.scale[:, None] - 1, np.ones(n))
        if c.sends_nothing(cohort.round):
            upload = Upload(Rows.empty(n, c.dim), np.zeros((n, 1), np.float32), np.zeros(n))
        else:
            D = ScaledTable.from_common(download.Q, n)
        return Private(weight, bias, *C[1:], *D[1:]), upload, losses

    def aggregate(self, server: Server, total: UploadSum) -> Server:
        """The next shared item table: the mean of the clients' trained versions."""
        if total.weight == 0:
            return server
        change = (total.dense[0] * server.Q + total.rows) / total.weight
        return server._replace(Q=(server.Q + change).astype(np.float32))

    def score(self, download: Server, private: Private) -> Float32:
        C, D = _tables(download, private)
        return C.scores(private.weight) + D.scores(private.weight) + private.bias[:, None]

    def fold_in(self, download: Server, private: Private, cohort: Cohort) -> Private:
        """Train a new user's state for ``FOLD_IN_PASSES`` rounds, without sending anything."""
        for number in range(1, training.FOLD_IN_PASSES + 1):
            private, _, _ = self.local(download, private, cohort.at_round(number))
        return private


def _tables(download: Server, private: Private) -> tuple[ScaledTable, ScaledTable]:
    """The private and the shared item table, as each device has them."""
    C = ScaledTable(download.C_0, private.C, private.C_scale)
    return C, ScaledTable(download.Q, private.D, private.D_scale)
