"""slist: linear item-item regression from a user's past items to its next ones, in closed form.

In the manner of SLIST (Choi et al., "Session-aware Linear Item-Item Models for Session-based
Recommendation", WWW 2021) and TALE (Park et al., "Temporal Linear Item-Item Model for Sequential
Recommendation", WSDM 2025). After each item t of each history, s_t has a weight at every item so
far and y_t at every later item. The item-item weights B are

    s_t = sum over p <= t of k(t - p) e_(i_p),    k(age) = (1 - a) fast^age + a slow^age,
    y_t = sum over q > t of horizon^(q - t - 1) e_(i_q),
    min over B of sum_t |y_t - s_t B|^2 + ridge |B|^2,   B = (S^T S + ridge I)^-1 S^T Y,

with e_i the unit vector of item i and a the ``slow_share``. Reading the histories backwards, too,
with a weight below 1, gives more training data. A user's scores are its last s_t times B, divided
by a small power of the items' numbers of interactions.

Unlike SLIST it has two rates of fading, no term for items in any order, and no bound on the
diagonal of B, which only scores items that the user already has. S^T S and S^T Y come from the
distances of the items in a history, without forming any s_t: n^2 additions for a history of n
items. A catalogue of n items needs two n x n matrices in float32, 8 n^2 bytes: 110 MB on ML-1M.
The last bits depend on the installed LAPACK library and its number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from unskew.kernels.tables import sparse_matrix
from unskew.kernels.transitions import Fading, sum_pairs, sum_products
from unskew.methods._central import LinearConfig, OwnItems, SequenceMethod
from unskew.methods.newcomers import ItemWeights
from unskew.settings import setting
from unskew.types import Float32, Ragged, UnskewError


class Server(NamedTuple):
    """The item-item weight matrix, from past items (rows) to next items (columns)."""

    B: Float32


@dataclass(frozen=True)
class Config(LinearConfig):
    fast: float = setting(0.5, at_most=1)
    """Factor on a past item's weight for each later item, in the fast term."""
    slow: float = setting(0.95, at_most=1)
    """The same factor in the slow term."""
    slow_share: float = setting(0.3, at_most=1)
    """Share of the slow decay in the weight of the newest item (a)."""
    horizon: float = setting(0.4, at_most=1)
    """Factor on a target's weight for each further step ahead."""
    backward: float = setting(0.2, at_most=1)
    """Weight of reading the histories backwards; 0: forward only, 1: the order does not count."""
    ridge: float = setting(1.0, above=0)
    """Weight of the L2 penalty on B, as a multiple of the mean diagonal entry of S^T S."""
    discount: float = 0.15
    """Exponent by which items with many interactions are scored down."""


class SLIST(SequenceMethod):
    config = Config()
    name = "slist"
    summary = "linear regression of next items on past ones, in one place"
    citation = "Choi et al., WWW 2021"

    @property
    def fading(self) -> Fading:
        c = self.config
        return Fading(np.array([c.fast, c.slow]), np.array([1 - c.slow_share, c.slow_share]))

    def empty(self, n_items: int) -> Server:
        return Server(np.zeros((n_items, n_items), np.float32))

    def fit(self, history: Ragged, n_items: int) -> tuple[Server, float]:
        c = self.config
        longest = int(history.counts().max(initial=0))
        # Weight of a target d positions after an item: sum over a < d of k(a) horizon^(d - 1 - a)
        weights = np.convolve(self.fading.weights(longest), c.horizon ** np.arange(longest))
        weights = np.concatenate([[0.0], weights])[:longest]
        G = sum_products(history, n_items, self.fading, c.backward)
        targets = sum_pairs(history, n_items, c.backward * weights, weights)  # (S^T Y)^T
        mean = np.trace(G, dtype=np.float64) / n_items
        G[np.diag_indices(n_items)] += np.float32(c.ridge * mean if mean > 0 else 1.0)
        G[:] = _solve_in_place(G, targets.T)
        G *= np.bincount(history.items, minlength=n_items).clip(1) ** np.float32(-c.discount)
        return Server(G), 0.0

    def score(self, download: Server, private: OwnItems) -> Float32:
        scores: Float32 = sparse_matrix(private.X, len(download.B)) @ download.B
        return scores

    def export(self, download: Server) -> ItemWeights:
        return ItemWeights(download.B, self.fading)


def _solve_in_place(G: Float32, R: Float32) -> Float32:
    """Solve G B = R for a positive definite ``G``; both are overwritten. The result is in the
    memory of ``R``, which is in Fortran order as LAPACK needs it."""
    _, B, failed = lapack.sposv(G.T, R, overwrite_a=1, overwrite_b=1)
    if failed:
        raise UnskewError("S^T S + ridge I is singular to float32: give slist a larger ridge.")
    solution: Float32 = B
    return solution
