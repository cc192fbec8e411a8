"""Latest evaluation of every client: ranks of its held-out items, and its top-10 list.

A client is evaluated with its local model right after it has trained. Its ranks stay valid until
it trains again, so no device's item table has to be stored for evaluation.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from unskew.evaluation import held_out_ranks, mean_metrics, per_user, top_k
from unskew.ragged import positions
from unskew.types import Float32, Float64, Int32, Int64, Split

Part = Literal["validation", "test"]
Ranking = Literal["all", "sampled"]
TOP_K = 10
"""Number of recommended items stored per user, for the coverage and popularity metrics."""


class Scoreboard:
    """Latest ranks of every user's held-out items, and latest top-10 lists."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self.rankings: tuple[Ranking, ...] = ("all", "sampled") if split.rank_all else ("sampled",)
        self.ranks: dict[tuple[Part, Ranking], Int32] = {
            (part, ranking): np.zeros(getattr(split, part).indptr[-1], np.int32)
            for part in ("validation", "test")
            for ranking in self.rankings
        }
        self.top = np.full((split.n_users, TOP_K), -1, np.int32)

    def update(self, users: Int64, validation: Float32, test: Float32) -> None:
        """Store the ranks that these users' scores give. ``validation`` and ``test`` are scores of
        all items, from the history before the validation items and before the test items."""
        scores = {"validation": validation, "test": test}
        for (part, ranking), ranks in self.ranks.items():
            place = positions(getattr(self._split, part).indptr, users)
            sampled = ranking == "sampled"
            ranks[place] = held_out_ranks(scores[part], users, self._split, part, sampled)
        self.top[users] = top_k(test, users, self._split, TOP_K)

    def per_user(self, part: Part, ranking: Ranking | None = None) -> dict[str, Float64]:
        """Metrics per user from ranks among "all" or "sampled" items (default: the protocol's)."""
        ranks = self.ranks[part, ranking or self.rankings[0]]
        return per_user(ranks, getattr(self._split, part).indptr)

    def means(self, part: Part, ranking: Ranking | None = None) -> dict[str, float]:
        return mean_metrics(self.per_user(part, ranking))

    def snapshot(self) -> Scoreboard:
        copy = Scoreboard(self._split)
        copy.ranks = {key: ranks.copy() for key, ranks in self.ranks.items()}
        copy.top = self.top.copy()
        return copy

    def arrays(self) -> dict[str, Int32]:
        return {f"{part}.{ranking}": r for (part, ranking), r in self.ranks.items()} | {
            "top": self.top
        }

    def load(self, arrays: dict[str, Int32]) -> None:
        self.ranks = {(p, r): arrays[f"{p}.{r}"].copy() for p, r in self.ranks}
        self.top = arrays["top"].copy()
