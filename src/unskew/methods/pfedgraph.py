"""pFedGraph: every client gets its own mean of item tables, weighted towards similar updates.

Ye, Ni, Wu, Chen & Wang, "Personalized Federated Learning with Inferred Collaboration Graphs", ICML
2023, on FedMF's model, in the form the PFedCLR paper compares with. A client trains its user vector
and its item table Q_u on binary cross-entropy, pulled towards the last aggregate A_u it received,

    L_u = BCE_u - rho cos(A_u, Q_u),

and a tenth of a round's clients send their table. With Q_0 the initial table, d_uj = -cos(Q_u -
Q_0, Q_j - Q_0) (-1 if below -0.9) the distance of updates and w_j client j's share of the samples,
the server computes for each of these clients the mixing weights x_u,

    min  lambda x.x + (d_u - 2 lambda w).x    with  x >= 0,  sum x = 1,

the projection of w - d_u / (2 lambda) onto the simplex, and A_u = sum_j x_uj Q_j. Clients that take
part in the very next round start from their A_u; all others continue with their own table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unskew.kernels import merge, overlay, train_joint
from unskew.kernels.fedmf import touch_all_rows
from unskew.kernels.pfedgraph import (
    bernoulli_draws,
    dense_tables,
    gram,
    mix,
    positions,
    project_on_simplex,
    replace_tables,
    sent_differences,
)
from unskew.methods import training
from unskew.ragged import select
from unskew.rng import Purpose
from unskew.settings import setting
from unskew.types import Cohort, Float32, Float64, Int64, Rows, Upload, Uploads


class Server(NamedTuple):
    """The initial item table, the users who sent their tables in the last round, and the aggregate
    for each of them, flattened, as difference from the initial table."""

    Q: Float32
    users: Int64
    aggregates: Float32


class Private(NamedTuple):
    """State of a device: user number, user vector, item rows that differ from the initial table."""

    user: Int64
    p: Float32
    Q: Rows


@dataclass(frozen=True)
class Config(training.TrainingConfig):
    aggregated: float = setting(0.1, above=0, at_most=1)
    """Share of a round's clients that send their table and are given an aggregate."""
    evenness: float = setting(0.8, above=0)
    """lambda: large keeps mixing weights near sample shares, small favours similar models."""
    pull: float = 0.01
    """Weight of the local pull towards the direction of the aggregate (rho)."""


class PFedGraph(training.VectorMethod):
    config = Config()
    name = "pfedgraph"
    aggregation = "individual"
    summary = "items averaged for each client over clients with similar updates"
    citation = "Ye et al., ICML 2023"
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "filmtrust": {},
        "ml-100k": {"evenness": 0.4},
        "ml-1m": {"evenness": 0.4},
        "lastfm-2k": {},
    }
    """Settings by data set, the best of a small grid on validation under ``paper`` (seed 0). HR@10
    and NDCG@10 there: FilmTrust .748, .607, ML-100K .696, .527 (at 0.8: .656, .478); in 30 rounds
    ML-1M .452, .303 (at 0.2: .437, .299, at 0.8: .434, .283); in 40 rounds LastFM-2K .719, .661 (at
    0.4: .699, .660, at 0.2: .689, .661)."""

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        d = self.config.dim
        Q = training.initial_items(n_items, d, seed)
        p, nothing = training.initial_users(n_users, d, seed), Rows.empty(n_users, d)
        private = Private(np.arange(n_users), p, nothing)
        return _without_aggregates(Q), private

    def download_bytes(self, download: Server) -> int:
        """Mean bytes that a client receives: a table only if it sent its own in the last round."""
        share = self.config.participation * self.config.aggregated
        return int(download.Q.nbytes * share) if len(download.users) else download.Q.nbytes

    def retained_download(self, download: Server) -> Server:
        """Only the initial item table, because clients store their aggregate in private rows."""
        return _without_aggregates(download.Q)

    def local(
        self, download: Server, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c = self.config
        place = positions(private.user, download.users)
        own = replace_tables(private.Q, place, download.aggregates, download.Q)
        pull = np.where(place < 0, 0.0, c.pull)
        step = c.training(cohort)
        samples = touch_all_rows(step.samples, pull > 0, cohort.n_items)
        rows = overlay(download.Q[samples.touched.items], samples.touched, own)
        p, rates, aggregate = private.p.copy(), (c.learning_rate, c.learning_rate), rows.copy()
        step = step._replace(samples=samples)
        losses = step.run(train_joint, p, rows, *rates, aggregate, pull)
        held = merge(own, Rows(*samples.touched, rows))
        share = 0.0 if c.sends_nothing(cohort.round) else c.aggregated
        sends = bernoulli_draws(cohort.seed, cohort.round, cohort.users, Purpose.COHORT, share)
        nothing = np.zeros((len(p), 0), np.float32)
        weight = np.where(sends, samples.counts(), 0.0)
        upload = Upload(sent_differences(held, sends, download.Q), nothing, weight)
        return Private(private.user, p, held), upload, losses

    def aggregate(self, server: Server, total: Uploads) -> Server:
        sent = total.upload.weight > 0
        weight = total.upload.weight[sent]
        updates = dense_tables(select(total.upload.rows, np.flatnonzero(sent)), len(server.Q))
        graph = collaboration(updates, weight / max(weight.sum(), 1.0), self.config.evenness)
        aggregates = mix(graph.astype(np.float32), updates)
        return Server(server.Q, total.users[sent], aggregates)


def _without_aggregates(Q: Float32) -> Server:
    """A server state with the initial item table and no aggregates."""
    return Server(Q, np.zeros(0, np.int64), np.zeros((0, Q.size), np.float32))


def collaboration(updates: Float32, shares: Float64, evenness: float) -> Float64:
    """Mixing weights of clients' tables, a row per client, from their updates and sample shares."""
    products = gram(updates)
    sizes = np.sqrt(np.diag(products))
    d = -products / np.maximum(np.outer(sizes, sizes), 1e-30)
    d[d < -0.9] = -1.0
    return project_on_simplex(shares - d / (2 * evenness))
