"""GPFedRec: graph-guided personalisation, every client pulled to the mean of its neighbours' items.

Zhang, Long, Zhou, Zhang, Yan & Yang, "GPFedRec: Graph-Guided Personalization for Federated
Recommendation", KDD 2024. FedNCF's model, but the network is not uploaded. A client starts a round
from the common item table g and trains its user vector p_u, table Q_u and network MLP_u by SGD on
binary cross-entropy, with a pull to the table r_u that the server aggregated for it,

    L_u = BCE_u(p_u, Q_u, MLP_u) + reg mean((Q_u - r_u)^2),

and uploads Q_u. The server makes two clients neighbours if the cosine distance of their tables is
above ``threshold`` x the mean distance (dissimilar ones, as in the authors' code) and sets

    r_u <- mean of Q_v over the neighbours v of u (Q_u if it has none),    g <- mean of all r_u.

Rows of items outside a client's samples end at r_u + f (g - r_u), f = (1 - 2 eta reg / (n_items
d))^steps, with eta the item learning rate and d the embedding size. So an upload is f and, for the
sampled items, the differences from that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unskew.kernels.gpfedrec import (
    Packed,
    RoundTables,
    empty_packed,
    neighbour_graph,
    pass_messages,
    train_anchored,
    unpack,
    unpack_rows,
    whole_tables,
)
from unskew.kernels.perceptron import score_mlp, train_mlp
from unskew.methods import training
from unskew.methods.fedncf import initial_mlp
from unskew.settings import setting
from unskew.types import Cohort, Float32, Float64, Int32, Int64, Method, Rows, Upload, Uploads


class Server(NamedTuple):
    """The common item table, and the difference of every client's table from it, compressed."""

    Q: Float32
    entries: Int32
    scale: Float32


class Private(NamedTuple):
    """State of a device: user number, user vector, scoring network, and item table: the table that
    the server made for the user, moved by ``factor`` to the common one, plus the rows in ``Q``."""

    user: Int64
    p: Float32
    mlp: Float32
    factor: Float32
    Q: Rows


@dataclass(frozen=True)
class Config(training.SGDConfig):
    dim: int = setting(16, at_least=2)
    """Embedding size d; the network's second layer has d / 2 units."""
    learning_rate: float = 0.1
    """SGD's learning rate for the network (eta)."""
    rate_factor: float = 80.0
    """Factor F of the rates: users eta (F / participation - 1), items eta (F n_items - 1)."""
    reg: float = 1.0
    """Weight of the pull to the client's own aggregated table."""
    threshold: float = 1.0
    """Clients at a distance above this times the mean distance are neighbours."""
    aggregate_from: int = setting(1, at_least=1, at_most=1)
    """The round from which the server aggregates: always the first."""


class GPFedRec(Method):
    config = Config()
    name = "gpfedrec"
    aggregation = "individual"
    summary = "private network, items pulled to those of neighbours in a user graph"
    citation = "Zhang et al., KDD 2024"
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "filmtrust": {},
        "ml-100k": {"reg": 0.1},
        "lastfm-2k": {"reg": 0.1},
    }
    """Settings by data set, the best of those tried on validation under ``paper`` (seed 0). HR@10
    and NDCG@10 there: FilmTrust .774, .632 (only the default tried), ML-100K .690, .397 in 50
    rounds (at 1.0: .635, .364 in 100), LastFM-2K .614, .494 in 30 rounds (at 1.0: .522, .354)."""

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        d = self.config.dim
        p = training.initial_users(n_users, d, seed)
        mlp = np.tile(initial_mlp(d, seed), (n_users, 1))
        nothing = np.zeros(n_users, np.float32), Rows.empty(n_users, d)
        private = Private(np.arange(n_users), p, mlp, *nothing)
        Q = training.initial_items(n_items, d, seed)
        return Server(Q, *empty_packed(n_users, n_items * d)), private

    def download_bytes(self, download: Server) -> int:
        """Bytes that one client receives: the common item table and its own aggregated table."""
        return 2 * download.Q.nbytes

    def local(
        self, download: Server, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        c = self.config
        eta, boost = c.learning_rate, c.learning_rate * c.rate_factor
        item_rate = boost * cohort.n_items - eta
        keep = 1 - 2 * item_rate * c.reg / download.Q.size
        step = c.training(cohort)
        touched = step.samples.touched
        g = download.Q[touched.items]
        r = g + unpack_rows(_packed_tables(download), private.user, touched, c.dim)
        rows, p, mlp = g.copy(), private.p.copy(), private.mlp.copy()
        steps, user_rate = np.zeros(len(p), np.int64), boost / c.participation - eta
        losses = step.run(train_anchored, p, rows, r, mlp, steps, user_rate, item_rate, eta, keep)
        factor = (keep**steps).astype(np.float32)
        beyond = rows - r - np.repeat(factor, touched.counts())[:, None] * (g - r)
        held = Rows(*touched, beyond)
        upload = Upload(held, factor[:, None].copy(), np.ones(len(p)))
        return Private(private.user, p, mlp, factor, held), upload, losses

    def aggregate(self, server: Server, total: Uploads) -> Server:
        upload = total.upload
        factor = np.ascontiguousarray(upload.dense[:, 0])
        tables = RoundTables(_packed_tables(server), total.users, upload.rows, factor)
        graph = neighbour_graph(server.Q, tables, self.config.threshold)
        Q, own = pass_messages(graph, server.Q, tables)
        return Server(Q, *own)

    def upload_base(self, download: Server, user: int, dense: Float32) -> Float32:
        """Mix of the common and the user's table that uploaded rows are differences from."""
        own = own_tables(download, np.array([user])).reshape(download.Q.shape)
        table: Float32 = download.Q + own * (1 - dense[0])
        return table

    def score(self, download: Server, private: Private) -> Float32:
        """Scores by the device's network and its own item table."""
        table = own_tables(download, private.user) * (1 - private.factor)[:, None]
        whole = whole_tables(download.Q, table, private.Q)
        return score_mlp(download.Q, private.p, private.mlp, whole)

    def fold_in(self, download: Server, private: Private, cohort: Cohort) -> Private:
        p, mlp, rate = private.p.copy(), private.mlp.copy(), self.config.learning_rate
        for step, rows in training.fold_in_passes(self.config, download.Q, cohort):
            step.run(train_mlp, p, rows, mlp, rate, 0.0, rate)
        return private._replace(p=p, mlp=mlp, factor=np.ones_like(private.factor))


def own_tables(download: Server, users: Int64) -> Float32:
    """Users' aggregated item tables minus the common one, flattened; arbitrary for new users."""
    known = np.minimum(users, len(download.entries) - 1)
    return unpack(_packed_tables(download), known, 0, download.Q.size)


def _packed_tables(server: Server) -> Packed:
    return Packed(server.entries, server.scale)
