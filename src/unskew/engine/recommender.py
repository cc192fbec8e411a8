"""Recommend items with a trained model: to one user, to all users, or to a new user."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from unskew.engine.devices import Devices
from unskew.engine.evaluate import score_parts
from unskew.engine.executor import batches
from unskew.evaluation import best_unseen
from unskew.ragged import select
from unskew.types import Cohort, Float32, Int64, Method, Ragged, Split, UnskewError

RECOMMENDATIONS = {
    "user": pl.String,
    "rank": pl.Int32,
    "item": pl.String,
    "title": pl.String,
    "score": pl.Float32,
}
"""Columns of a table of recommendations."""


class Recommender:
    """Recommends items with a trained model.

    Training items are never recommended. Validation and test items can be, as in production.
    """

    def __init__(self, method: Method, split: Split, devices: Devices, seed: int) -> None:
        self.split, self.seed = split, seed
        self._method, self._devices = method, devices

    def recommend(self, user: str | int, k: int = 10) -> list[dict[str, Any]]:
        """The ``k`` best unseen items of the user labelled ``user``: rank, item, title, score."""
        users = np.array([_find(user, self.split.user_ids, "user")])
        return self._table(users, k).drop("user").to_dicts()

    def recommend_all(self, k: int = 10) -> pl.DataFrame:
        """Table of the ``k`` best unseen items of every user: user, rank, item, title, score."""
        return pl.concat(self.tables(k))

    def tables(self, k: int = 10) -> Iterator[pl.DataFrame]:
        """The parts of the table that ``recommend_all`` returns, some users at a time."""
        for users in batches(np.arange(self.split.n_users)):
            yield self._table(users, k)

    def fold_in(
        self,
        items: Sequence[str | int],
        k: int = 10,
        *,
        ratings: Sequence[float] | None = None,
        timestamps: Sequence[int] | None = None,
    ) -> list[dict[str, Any]]:
        """Recommend to a new user with the history ``items`` (labels, oldest first).

        The user's private state is fitted to the latest shared model, which stays unchanged. A
        method that needs ``ratings`` or ``timestamps`` gets those given here, one per item.
        """
        found = [_find(item, self.split.item_ids, "item") for item in items]
        first = {number: at for at, number in reversed(list(enumerate(found)))}
        numbers = list(dict.fromkeys(found))
        ends = np.array([0, len(numbers)])
        history = Ragged(ends, np.array(numbers, np.int32))
        seen = Ragged(ends, np.sort(history.items))
        n_items, newcomer = self.split.n_items, np.array([self.split.n_users])
        cohort = Cohort(newcomer, history, seen, n_items, self.seed, 1)
        given: dict[str, Any] = {"ratings": ratings, "timestamps": timestamps}
        needed: dict[str, Any] = {}
        for name, values in given.items():
            if name not in getattr(self._method, "needs", ()):
                continue
            if values is None or len(values) != len(items):
                raise UnskewError(
                    f"{self._method.name} needs {name}; give one for each of a newcomer's items: "
                    f"fold_in(items, {name}=[...])."
                )
            kind = np.float32 if name == "ratings" else np.int64
            needed[name] = np.array([values[first[number]] for number in numbers], kind)
        cohort = cohort._replace(**needed)
        scores = newcomer_scores(*self.model, cohort)
        return self.best(["newcomer"], scores, seen, k).drop("user").to_dicts()

    @property
    def model(self) -> tuple[Method, Any]:
        """The method and the newest download that a device has, which score newcomers."""
        return self._method, self._devices.downloads[int(self._devices.version.max())]

    def _table(self, users: Int64, k: int) -> pl.DataFrame:
        """Table of the ``k`` best unseen items of ``users``: user, rank, item, title, score."""
        labels = [self.split.user_ids[user] for user in users]
        return self.best(labels, self.scores(users), select(self.split.seen, users), k)

    def scores(self, users: Int64) -> Float32:
        """Scores of all items for each user, by the model that the user's device received last."""
        return self.held_out_scores(users)[0]

    def held_out_scores(self, users: Int64) -> tuple[Float32, Float32]:
        """Scores of all items for each user, for validation and for testing; they differ if the
        protocol has the validation items in the history before the test items."""
        validation, test = np.empty((2, len(users), self.split.n_items), np.float32)
        for version in np.unique(self._devices.version[users]):
            chosen = np.flatnonzero(self._devices.version[users] == version)
            private, download = self._devices.take(users[chosen]), self._devices.downloads[version]
            validation[chosen], test[chosen] = score_parts(
                self._method, download, private, self.split, users[chosen]
            )
        return validation, test

    def best(self, users: list[str], scores: Float32, seen: Ragged, k: int) -> pl.DataFrame:
        """Table of the ``k`` items with the highest scores per user, without those in ``seen``."""
        top = best_unseen(scores, seen, k)
        row, rank = np.nonzero(top >= 0)
        items = top[row, rank]
        titles = self.split.titles or self.split.item_ids
        return pl.DataFrame(
            {
                "user": [users[r] for r in row],
                "rank": (rank + 1).astype(np.int32),
                "item": [self.split.item_ids[item] for item in items],
                "title": [titles[item] for item in items],
                "score": scores[row, items],
            },
            schema=RECOMMENDATIONS,
        )


def newcomer_scores(method: Method, download: Any, cohort: Cohort) -> Float32:
    """Scores of all items for users without a state of their own, one row per user."""
    _, private = method.init(len(cohort.users), cohort.n_items, cohort.seed)
    return method.score(download, method.fold_in(download, private, cohort))


def _find(label: Any, labels: Sequence[str], kind: str) -> int:
    """Index of the user or item with this label; raises an UnskewError if there is none. Labels are
    text; the number 42 finds "42"."""
    whole = isinstance(label, float | np.floating) and float(label).is_integer()
    try:
        return labels.index(str(int(label)) if whole else str(label))
    except ValueError:
        raise UnskewError(
            f'There is no {kind} "{label}" here; {kind}s are labelled like "{labels[0]}".'
        ) from None
