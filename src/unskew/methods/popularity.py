"""popularity: everybody is recommended what most users have, the floor under every method.

As in Cremonesi, Koren & Turrin, "Performance of Recommender Algorithms on Top-N Recommendation
Tasks", RecSys 2010: score_ui is the number of users with item i in training. A user's repeats count
once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from unskew.methods._central import LinearConfig, OwnItems, no_items, own_items
from unskew.ragged import distinct
from unskew.types import CentralMethod, Cohort, Float32


class Server(NamedTuple):
    """The number of users with each item."""

    users: Float32


@dataclass(frozen=True)
class Popularity(CentralMethod):
    config: LinearConfig = field(default_factory=LinearConfig)

    Config: ClassVar = LinearConfig
    name = "popularity"
    aggregation = "central"
    summary = "the items most users have, the same for everybody"
    citation = "Cremonesi et al., RecSys 2010"

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, OwnItems]:
        return Server(np.zeros(n_items, np.float32)), no_items(n_users)

    def epoch(
        self, server: Server, private: OwnItems, everyone: Cohort
    ) -> tuple[Server, OwnItems, float]:
        seen = distinct(everyone.positives, everyone.n_items)
        users = np.bincount(seen.items, minlength=everyone.n_items).astype(np.float32)
        return Server(users), own_items(everyone), 0.0

    def score(self, download: Server, private: OwnItems) -> Float32:
        return np.tile(download.users, (len(private.X.indptr) - 1, 1))

    def fold_in(self, download: Server, private: OwnItems, cohort: Cohort) -> OwnItems:
        return own_items(cohort)
