"""popularity: recommends the items with the most users; the simplest baseline.

As in Cremonesi, Koren & Turrin, "Performance of Recommender Algorithms on Top-N Recommendation
Tasks", RecSys 2010: score_ui is the number of users with item i in training. A user's repeats count
once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.methods._central import LinearMethod, OwnItems
from unskew.types import Float32, Ragged


class Server(NamedTuple):
    """The number of users with each item."""

    users: Float32


class Popularity(LinearMethod):
    name = "popularity"
    summary = "the items most users have, the same for everybody"
    citation = "Cremonesi et al., RecSys 2010"

    def empty(self, n_items: int) -> Server:
        return Server(np.zeros(n_items, np.float32))

    def fit(self, seen: Ragged, n_items: int) -> tuple[Server, float]:
        return Server(np.bincount(seen.items, minlength=n_items).astype(np.float32)), 0.0

    def score(self, download: Server, private: OwnItems) -> Float32:
        return np.tile(download.users, (len(private.X.indptr) - 1, 1))
