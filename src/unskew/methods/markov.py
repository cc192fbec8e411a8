"""markov: how often an item follows another shortly after, summed over a user's latest items.

A first-order Markov chain as in the baselines of Rendle, Freudenthaler & Schmidt-Thieme,
"Factorizing Personalized Markov Chains for Next-Basket Recommendation", WWW 2010, here with items
that follow within a window and with a memory for older items:

    n_ij = sum of decay^(d - 1) over all j that come d <= window positions after i in a history,
    M_ij = n_ij / (n_i + shrinkage) / n_j^discount,   score_uj = sum of fade^age M_ij over u's i,

with n_i the number of interactions of item i, and the age of a user's item i the number of later
items. M is a dense float32 matrix: a catalogue of n items needs 4 n^2 bytes, 55 MB on ML-1M.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels.tables import sparse_matrix
from unskew.kernels.transitions import Fading, sum_pairs
from unskew.methods._central import LinearConfig, OwnItems, SequenceMethod
from unskew.methods.newcomers import ItemWeights
from unskew.settings import setting
from unskew.types import Float32, Ragged


class Server(NamedTuple):
    """The item-item matrix of transitions, from an item (row) to a later one (column)."""

    M: Float32


@dataclass(frozen=True)
class Config(LinearConfig):
    window: int = setting(20, above=0)
    """Largest number of positions between two items that count as a transition."""
    decay: float = setting(0.8, at_most=1)
    """Factor on a transition's weight for each position in between."""
    fade: float = setting(0.8, at_most=1)
    """Factor on the weight of a user's past item for each later item."""
    shrinkage: float = 50.0
    """Added to an item's number of interactions, so that rare items predict less."""
    discount: float = 0.25
    """Exponent by which items with many interactions are scored down."""


class Markov(SequenceMethod):
    config = Config()
    name = "markov"
    summary = "items that often follow a user's latest ones, in one place"
    citation = "after Rendle et al., WWW 2010"

    @property
    def fading(self) -> Fading:
        return Fading(np.array([self.config.fade]), np.ones(1))

    def empty(self, n_items: int) -> Server:
        return Server(np.zeros((n_items, n_items), np.float32))

    def fit(self, history: Ragged, n_items: int) -> tuple[Server, float]:
        c = self.config
        window = min(c.window, int(history.counts().max(initial=0)))
        after = np.concatenate([[0.0], c.decay ** np.arange(window)])
        M = sum_pairs(history, n_items, after, np.zeros(1))
        counts = np.bincount(history.items, minlength=n_items).clip(1)
        M /= (counts + c.shrinkage).astype(np.float32)[:, None]
        M *= counts ** np.float32(-c.discount)
        return Server(M), 0.0

    def score(self, download: Server, private: OwnItems) -> Float32:
        scores: Float32 = sparse_matrix(private.X, len(download.M)) @ download.M
        return scores

    def export(self, download: Server) -> ItemWeights:
        return ItemWeights(download.M, self.fading)
