"""FedRefit: each device solves for its user vector in closed form whenever it receives new items.

Unskew's own method (2026). PFedCLR calibrates user vectors that were trained with item embeddings
which changed afterwards. Here the vector always fits the latest items, so there is no skew to
calibrate, and the server solves for the items from sums over the devices.

First rounds: find item embeddings U. A user with n_u items has a vector x_u with n_u^-1/2 c_i^-a at
each of them; c_i is the number of users with item i, a is ``item_power``. With orthonormal U,
alternating least squares on |X - P U^T|^2 (X: all x_u, P: all user vectors p_u) is

    p_u = argmin_p |x_u - U p|^2 = U^T x_u    (device),    U <- orth(sum_u x_u p_u^T)    (server).

Later rounds: fit rows V that predict the next items. A device reads its history i_1 ... i_T and
solves for its vector after each item t, past items decayed at two rates: f_t = [p_t fast, p_t slow,
1]. The target y_t is a sum of unit vectors e of the later items, decayed by h per item. V minimises

    sum_u n_u^-1/2 sum_t |y_t - V f_t|^2 + ridge |V|^2,   y_t = sum_(s > t) h^(s-t-1) e_(i_s),
    V = (sum y f^T) (sum f f^T + ridge)^-1,    score_i = V_i . f_T c_i^-b    (b: ``discount``),

which needs only sums over devices. Where the order of items matters little, reading histories also
backwards doubles the training data. So V is fitted in three rounds, with weights 1, 0.3 and 0 for
backward reading, and the best round on validation is used. (The first fit, meant for catalogues
with few rows per item, has a larger ridge and does not lower the scores of popular items.)

A device sends a row for each of its items and one dense block; its f and its history stay on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from unskew.kernels import orthonormal, score_table
from unskew.kernels.refit import Walk, history_rows, read_histories, spread_vectors, sum_rows
from unskew.methods._item_space import fault_of_space
from unskew.methods.newcomers import DecayedFactors
from unskew.ragged import distinct, owners
from unskew.rng import Purpose, generator
from unskew.settings import Settings, setting
from unskew.types import Cohort, Float32, Float64, Int32, Method, Ragged, Rows, Upload, UploadSum


class Server(NamedTuple):
    """Item embeddings, number of users per item, rows that predict the next items, rounds done."""

    U: Float32
    users: Float32
    V: Float32
    step: Int32


class Private(NamedTuple):
    """State of a device: its user vector. In later rounds it is two vectors, with fast and with
    slow decay of past items, and a constant 1."""

    p: Float32


@dataclass(frozen=True)
class Config(Settings):
    rounds: int = setting(8, above=0)
    """Rounds: ``space_rounds``, one per fit of V, and one in which devices get the last fit."""
    participation: float = setting(1.0, above=0, at_most=1)
    """Share of the clients that take part in a round; the sums are exact at 1."""
    dim: int = setting(64, above=0)
    """Size d of the item space U; at most the number of items."""
    space_rounds: int = setting(4, above=0)
    """First rounds, which find the item space U by alternating least squares."""
    item_power: float = 0.2
    """Exponent by which popular items count less in the item space U (a)."""
    fast: float = setting(0.5, at_most=1)
    """Decay of an item's weight per later item, in the fast vector."""
    slow: float = setting(0.9, at_most=1)
    """Decay of an item's weight per later item, in the slow vector."""
    horizon: float = setting(0.9, at_most=1)
    """Decay of a target's weight per item that it lies further ahead (h)."""
    far_horizon: float = setting(0.95, at_most=1)
    """The decay h in fits that read only forward, or both ways with equal weight."""
    ridge: float = setting(0.003, above=0)
    """Weight of the L2 penalty on V, as a share of the mean of f^2; tenfold in fits that read both
    ways."""
    discount: float = 0.25
    """Exponent by which popular items are scored down (b), except in fits that read both ways with
    equal weight."""
    order: Literal["choose", "forward", "both", "fednext"] = "choose"
    """Read histories forward, both ways, or with backward weight 1, .3 and 0 in successive rounds,
    between which validation chooses ("fednext": 1, 0, .3, as FedNext builds on the last fit)."""

    @property
    def backward(self) -> tuple[float, ...]:
        """Weights of reading histories backwards, one for each fit of the next-item rows (V)."""
        fits = {"forward": (0.0,), "both": (1.0,), "fednext": (1.0, 0.0, 0.3)}
        return fits.get(self.order, (1.0, 0.3, 0.0))


class FedRefit(Method):
    config = Config()
    name = "fedrefit"
    summary = "vectors solved for exactly on the device, items from sums alone"
    citation = "Unskew, 2026"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        d = min(self.config.dim, n_items)
        start = generator(seed, Purpose.INIT_ITEMS).standard_normal((n_items, d))
        ones, V = np.ones(n_items, np.float32), np.zeros((n_items, 2 * d + 1), np.float32)
        server = Server(orthonormal(start), ones, V, np.zeros(1, np.int32))
        return server, Private(np.zeros((n_users, 2 * d + 1), np.float32))

    def download(self, server: Server) -> Server:
        """The server's state; the next-item rows (V) are left out until they are fitted."""
        return server if self._fit_index(server) > 0 else server._replace(V=server.V[:, :0])

    def local(
        self, download: Server, private: Private, cohort: Cohort
    ) -> tuple[Private, Upload, Float64]:
        own, n = distinct(cohort.positives), len(cohort.users)
        T, fit = self.own_items(download, own), self._fit_index(download)
        p = sum_rows(own, T)
        users = download.users[own.items] ** -(2 * self.config.item_power)
        x = np.bincount(owners(own.indptr), users, n) / own.counts().clip(1)
        losses = x - np.square(p, dtype=np.float64).sum(1)  # |x - U p|^2
        done = fit >= len(self.config.backward)
        if fit < 0:
            rows, dense = spread_vectors(own, p), np.zeros((n, 0), np.float32)
        else:
            walk = self._walk(0.0 if done else self.config.backward[fit])
            history = history_rows(cohort.positives, own, cohort.n_items)
            f, rows, dense = read_histories(history, own, T, walk, not done)
        mine = f if download.V.shape[1] else _pad(p, private.p.shape[1])
        if done:  # the last fit is delivered: nothing is left to send
            empty = Rows.empty(n, rows.shape[1])
            return Private(mine), Upload(empty, dense, np.zeros(n)), losses
        return Private(mine), Upload(Rows(*own, rows), dense, np.ones(n)), losses

    def aggregate(self, server: Server, total: UploadSum) -> Server:
        c, fit = self.config, self._fit_index(server)
        if total.weight == 0 or fit >= len(c.backward):  # nothing is left to fit
            return server
        if fit < 0:
            users = total.rows[:, -1].clip(1)
            U = orthonormal(total.rows[:, :-1] * users[:, None] ** -c.item_power)
            return Server(U, users.astype(np.float32), server.V, server.step + 1)
        K = total.rows.shape[1]
        M = np.zeros((K, K))
        M[np.triu_indices(K)] = total.dense
        ridge, power = (c.ridge, -c.discount) if c.backward[fit] < 1 else (10 * c.ridge, 0.0)
        M += np.triu(M, 1).T + np.eye(K) * ridge * max(np.trace(M) / K, 1e-12)
        V = np.linalg.solve(M, total.rows.T).T * server.users[:, None] ** power
        return server._replace(V=V.astype(np.float32), step=server.step + 1)

    def check_download(self, download: Server) -> str | None:
        return fault_of_space(download.U, download.users)

    def upload_base(self, download: Server, user: int, dense: Float32) -> Float32:
        """Zeros, because uploaded rows are not differences from the download."""
        return np.zeros((1, 1), np.float32)

    def score(self, download: Server, private: Private) -> Float32:
        if download.V.shape[1]:
            return score_table(private.p, download.V)
        back = download.U * download.users[:, None] ** np.float32(self.config.item_power)
        return score_table(private.p[:, : back.shape[1]], back)

    def refresh(self, download: Server, private: Private, history: Ragged) -> Private:
        own = distinct(history)
        T = self.own_items(download, own)
        if not download.V.shape[1]:
            return Private(_pad(sum_rows(own, T), private.p.shape[1]))
        rows = history_rows(history, own, len(download.U))
        return Private(read_histories(rows, own, T, self._walk(0.0), False)[0])

    def export(self, download: Server) -> DecayedFactors:
        damping = download.users ** np.float32(-self.config.item_power)
        if download.V.shape[1]:
            w = self._walk(min(self.config.backward))
            return DecayedFactors(download.U, damping, w.decays, download.V, w.horizon, w.backward)
        back = np.pad(download.U / damping[:, None], ((0, 0), (0, 1)))
        return DecayedFactors(download.U, damping, np.ones(1, np.float32), back, None, 0.0)

    def _fit_index(self, server: Server) -> int:
        """Number of fits of V (next-item rows) so far; negative in the first ``space_rounds``."""
        return int(server.step[0]) - self.config.space_rounds

    def own_items(self, download: Server, own: Ragged) -> Float32:
        """Vectors of the users' items, popular ones damped."""
        damped = download.users ** np.float32(-self.config.item_power)
        return download.U[own.items] * damped[own.items][:, None]

    def _walk(self, backward: float) -> Walk:
        c = self.config
        horizon = c.horizon if 0 < backward < 1 else c.far_horizon
        return Walk(np.array([c.fast, c.slow], np.float32), horizon, backward)


def _pad(p: Float32, width: int) -> Float32:
    return np.pad(p, ((0, 0), (0, width - p.shape[1])))
