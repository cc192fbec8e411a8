"""Recommend from a trained federation: to one user, to all users, to a newcomer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from unskew.engine import CHUNK, Devices
from unskew.evaluation import best_unseen
from unskew.ragged import select
from unskew.types import Cohort, Float32, Int64, Method, Ragged, Split, UnskewError


class Recommender:
    """A model and the catalogue it was trained on.

    Training items are never recommended. Held-out items may be, as they would be in use.
    """

    def __init__(self, method: Method, split: Split, devices: Devices, seed: int) -> None:
        self._method, self._split = method, split
        self._devices, self._seed = devices, seed
        self._user_number = {label: n for n, label in enumerate(split.user_ids)}
        self._item_number = {label: n for n, label in enumerate(split.item_ids)}

    def recommend(self, user: str, k: int = 10) -> list[dict[str, Any]]:
        """The ``k`` best unseen items of a user, by the user's model of its last round."""
        if user not in self._user_number:
            example = self._split.user_ids[0]
            raise UnskewError(
                f'The run has no user "{user}"; its users are labelled like "{example}".'
            )
        users = np.array([self._user_number[user]])
        scores = self._scores(users)
        return self._listing(best_unseen(scores, select(self._split.seen, users), k)[0], scores[0])

    def recommend_all(self, k: int = 10) -> pl.DataFrame:
        """A table with ``k`` rows for every user: user, rank, item, title, score."""
        frames = []
        for low in range(0, self._split.n_users, CHUNK):
            users = np.arange(low, min(low + CHUNK, self._split.n_users))
            scores = self._scores(users)
            top = best_unseen(scores, select(self._split.seen, users), k)
            row, rank = np.nonzero(top >= 0)
            items = top[row, rank]
            frames.append(
                pl.DataFrame(
                    {
                        "user": [self._split.user_ids[u] for u in users[row]],
                        "rank": (rank + 1).astype(np.int32),
                        "item": [self._split.item_ids[i] for i in items],
                        "title": [self._title(i) for i in items],
                        "score": scores[row, items],
                    }
                )
            )
        return pl.concat(frames)

    def fold_in(self, items: Sequence[str], k: int = 10) -> list[dict[str, Any]]:
        """Recommend to a new user who has had ``items``, in this order.

        The newcomer fits a user vector to the latest global items, which do not change.
        """
        for item in items:
            if item not in self._item_number:
                example = self._split.item_ids[0]
                raise UnskewError(
                    f'The run has no item "{item}"; its items are labelled like "{example}".'
                )
        numbers = [self._item_number[item] for item in dict.fromkeys(items)]
        ends = np.array([0, len(numbers)])
        history = Ragged(ends, np.array(numbers, np.int32))
        seen = Ragged(ends, np.sort(history.items))
        n_items, newcomer = self._split.n_items, np.array([self._split.n_users])
        _, private = self._method.init(1, n_items, self._seed)
        cohort = Cohort(newcomer, history, seen, n_items, self._seed, 1)
        download = self._devices.downloads[int(self._devices.version.max())]
        scores = self._method.score(download, self._method.fold_in(download, private, cohort))
        return self._listing(best_unseen(scores, seen, k)[0], scores[0])

    def _scores(self, users: Int64) -> Float32:
        """Scores of all items for each user, with the items that the user downloaded last."""
        scores = np.empty((len(users), self._split.n_items), np.float32)
        for version in np.unique(self._devices.version[users]):
            chosen = np.flatnonzero(self._devices.version[users] == version)
            private = self._devices.take(users[chosen])
            scores[chosen] = self._method.score(self._devices.downloads[int(version)], private)
        return scores

    def _title(self, item: int) -> str:
        return (self._split.titles or self._split.item_ids)[item]

    def _listing(self, top: Any, scores: Float32) -> list[dict[str, Any]]:
        return [
            {
                "rank": rank,
                "item": self._split.item_ids[item],
                "title": self._title(item),
                "score": float(scores[item]),
            }
            for rank, item in enumerate(top.tolist(), 1)
            if item >= 0
        ]
