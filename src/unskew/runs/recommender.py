"""Recommendations from a trained federation: for a user, for everyone, for a newcomer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unskew.engine import CHUNK, Checkpoints, Devices, Federation
from unskew.evaluation import best_unseen
from unskew.ragged import select
from unskew.types import Cohort, Float32, Int64, Method, Ragged, Split, UnskewError


class Recommender:
    """A model and the catalogue it was trained on. Training items are never recommended; held-out
    items are open again, as they would be in use."""

    def __init__(self, method: Method, split: Split, devices: Devices, seed: int) -> None:
        self._method, self._split = method, split
        self._devices, self._seed = devices, seed
        self._user_number = {label: n for n, label in enumerate(split.user_ids)}
        self._item_number = {label: n for n, label in enumerate(split.item_ids)}

    def recommend(self, user: str, k: int = 10) -> list[dict[str, Any]]:
        """The best ``k`` items the user has not had, with the local model of its last round."""
        if user not in self._user_number:
            example = self._split.user_ids[0]
            raise UnskewError(
                f'The run has no user "{user}"; its users are labelled like "{example}".'
            )
        users = np.array([self._user_number[user]])
        scores = self._scores(users)
        return self._named(best_unseen(scores, select(self._split.seen, users), k)[0], scores[0])

    def recommend_all(self, k: int = 10) -> pl.DataFrame:
        """user, rank, item, title, score: ``k`` rows for every user, in one table."""
        frames = []
        for users in _chunks(self._split.n_users):
            scores = self._scores(users)
            top = best_unseen(scores, select(self._split.seen, users), k)
            kept = top >= 0
            row, rank = np.nonzero(kept)
            items = top[kept]
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
        """Recommendations for somebody new who has had ``items``, in this order; the global items
        stay frozen, as the members who came last have them."""
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
        return self._named(best_unseen(scores, seen, k)[0], scores[0])

    def _scores(self, users: Int64) -> Float32:
        """Each user's scores, with the items it downloaded last."""
        scores = np.empty((len(users), self._split.n_items), np.float32)
        for version in np.unique(self._devices.version[users]):
            chosen = np.flatnonzero(self._devices.version[users] == version)
            private = self._devices.take(users[chosen])
            scores[chosen] = self._method.score(self._devices.downloads[int(version)], private)
        return scores

    def _title(self, item: int) -> str:
        return (self._split.titles or self._split.item_ids)[item]

    def _named(self, top: Any, scores: Float32) -> list[dict[str, Any]]:
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


def _chunks(n_users: int) -> Iterator[Int64]:
    for low in range(0, n_users, CHUNK):
        yield np.arange(low, min(low + CHUNK, n_users))


def saved_recommender(folder: Path, federation: Federation) -> Recommender:
    """The model of a saved seed's best validation round."""
    state = Checkpoints(folder / f"seed-{federation.seed}" / "state").load(federation)
    if state is None:
        raise UnskewError(
            f"The run in {folder} has no model yet; `unskew resume {folder}` trains it."
        )
    return Recommender(federation.method, federation.split, state.best_devices, federation.seed)
