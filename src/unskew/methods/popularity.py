"""popularity: recommends the items with the most users; the simplest baseline.

As in Cremonesi, Koren & Turrin, "Performance of Recommender Algorithms on Top-N Recommendation
Tasks", RecSys 2010: an item's score is the number of users with the item in training. A user's
repeated interactions with an item count once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.methods._central import LinearMethod, OwnItems
from unskew.methods.newcomers import SameForAll
from unskew.types import Float32, Ragged


class Server(NamedTuple):
    """Number of users of each item in training."""

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

    def export(self, download: Server) -> SameForAll:
        return SameForAll(download.users)
