"""Latest evaluation of every client: ranks of its held-out items, and its top-10 list.

A client is evaluated with its local model right after it has trained. Its ranks stay valid until
it trains again, so no device's item table has to be stored for evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from unskew.engine.blocks import StateFile, StateFolder
from unskew.evaluation import held_out_ranks, mean_metrics, per_user, top_k
from unskew.files import named_tensors
from unskew.ragged import indptr_from_counts, positions
from unskew.types import Bool, Float32, Float64, Int32, Int64, Ragged, Split

Part = Literal["validation", "test"]
Ranking = Literal["all", "sampled"]
TOP_K = 10
"""Number of recommended items stored per user, for the coverage and popularity metrics."""
MAX_FILED_SHARE = 2
"""Number of users in all files of a checkpoint, as a multiple of all users, above which everything
is saved anew."""


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
        self.outdated: Bool = np.ones(split.n_users, bool)
        """Users who have not been evaluated since their model changed."""
        self._unsaved: Bool = np.zeros(split.n_users, bool)
        self._files: list[tuple[StateFile, int]] = []
        """The files that ranks and lists were saved to, with the number of users in each. A later
        file replaces what an earlier one has of the same users."""

    def update(self, users: Int64, validation: Float32, test: Float32) -> None:
        """Store the ranks that these users' scores give. ``validation`` and ``test`` are scores of
        all items, from the history before the validation items and before the test items."""
        scores = {"validation": validation, "test": test}
        for (part, ranking), ranks in self.ranks.items():
            place = positions(getattr(self._split, part).indptr, users)
            sampled = ranking == "sampled"
            ranks[place] = held_out_ranks(scores[part], users, self._split, part, sampled)
        self.top[users] = top_k(test, users, self._split, TOP_K)
        self.outdated[users] = False
        self._unsaved[users] = True

    def per_user(self, part: Part, ranking: Ranking | None = None) -> dict[str, Float64]:
        """Metrics per user from ranks among "all" or "sampled" items (default: the protocol's)."""
        ranks = self.ranks[part, ranking or self.rankings[0]]
        return per_user(ranks, getattr(self._split, part).indptr)

    def means(self, part: Part, users: Int64 | None = None) -> dict[str, float]:
        """Mean metrics over ``users``, by default all, with the protocol's ranking."""
        lists: Ragged = getattr(self._split, part)
        if users is None or len(users) == self._split.n_users:
            return mean_metrics(self.per_user(part))
        ranks = self.ranks[part, self.rankings[0]][positions(lists.indptr, users)]
        return mean_metrics(per_user(ranks, indptr_from_counts(lists.counts()[users])))

    def snapshot(self) -> Scoreboard:
        copy = Scoreboard(self._split)
        copy.ranks = {key: ranks.copy() for key, ranks in self.ranks.items()}
        copy.top, copy.outdated = self.top.copy(), self.outdated.copy()
        copy._unsaved, copy._files = self._unsaved.copy(), list(self._files)
        return copy

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Ranks, lists and who is outdated, as named arrays."""
        everyone = np.arange(self._split.n_users)
        return {**self.arrays_of(everyone), "outdated": self.outdated.astype(np.int32)}

    def arrays_of(self, users: Int64) -> dict[str, NDArray[Any]]:
        """Ranks and lists of ``users``, as named arrays."""
        named: dict[str, NDArray[Any]] = {
            f"{part}.{ranking}": ranks[positions(getattr(self._split, part).indptr, users)]
            for (part, ranking), ranks in self.ranks.items()
        }
        return named | {"top": self.top[users]}

    def receive(self, users: Int64, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store ranks and lists of ``users`` that another scoreboard has computed, as the result of
        its ``arrays_of``."""
        self._replace(users, arrays)
        self.outdated[users] = False
        self._unsaved[users] = True

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take over the result of ``arrays``. Without ``outdated`` in it, nobody is."""
        self._replace(np.arange(self._split.n_users), arrays)
        self.outdated = np.zeros(self._split.n_users, bool) | arrays.get("outdated", False)

    def save(self, folder: StateFolder) -> list[StateFile]:
        """Write the ranks and lists that are not in files of this folder yet; returns all files.
        Who is ``outdated`` is not among them."""
        if any(file.folder != folder.path for file, _ in self._files):
            self._files, self._unsaved[:] = [], True
        users = np.flatnonzero(self._unsaved)
        n_users = self._split.n_users
        if sum(n for _, n in self._files) + len(users) > MAX_FILED_SHARE * n_users:
            self._files, users = [], np.arange(n_users)
        if len(users):
            tensors = named_tensors({"user": users, **self.arrays_of(users)})
            self._files.append((folder.write("scoreboard", tensors), len(users)))
        self._unsaved[:] = False
        return [file for file, _ in self._files]

    def saved_like(self, other: Scoreboard) -> None:
        """Take note that ``other``, which has the same ranks and lists, was saved."""
        self._files, self._unsaved = list(other._files), other._unsaved.copy()

    def read(self, files: list[StateFile]) -> None:
        """Read what ``save`` wrote."""
        for file in files:
            arrays = file.read()
            self._replace(arrays["user"], arrays)
            self._files.append((file, len(arrays["user"])))

    def _replace(self, users: Int64, arrays: Mapping[str, NDArray[Any]]) -> None:
        for (part, ranking), ranks in self.ranks.items():
            place = positions(getattr(self._split, part).indptr, users)
            ranks[place] = arrays[f"{part}.{ranking}"]
        self.top[users] = arrays["top"]
