"""How well an attack does, user by user, against the items that the user trained on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unskew.evaluation import Interval, mean_interval, wilson_interval
from unskew.rng import Purpose, generator
from unskew.types import Bool, Float64, Int64

RECOVERED = 0.9
"""A user counts as recovered if more than this share of the guessed items is right."""


class Success(NamedTuple):
    """Figures over the attacked users, each with its 95 % interval."""

    auc: Interval
    """Probability that an item of the user scores above one that is not; chance is 0.5."""
    personal_auc: Interval
    """Probability that an item of the user scores higher for this user than for a user without
    it: what the server learns about this user, not about everybody. Chance is 0.5, and knowing
    what is popular does not help."""
    precision: Interval
    """Share of right items among the n best-scored, where n is how many items the user has."""
    recovered: Interval
    """Share of users whose precision is above 90 %."""
    heaviest: Interval
    """Personal AUC of the tenth of users with most items, whose weight in a sum is largest."""
    users: int

    def to_json(self) -> dict[str, Any]:
        figures = {name: rounded(i) for name, i in zip(self._fields[:-1], self[:-1], strict=True)}
        return figures | {"users": self.users}


def measure(scores: Float64, owned: Bool, seed: int = 0) -> Success:
    """Success of one attack. ``scores`` and ``owned`` are users × items; users without scores (NaN)
    are left out."""
    there = ~np.isnan(scores).any(axis=1)
    scores, owned = scores[there], owned[there]
    n = len(scores)
    if n == 0:
        nothing = Interval(float("nan"), float("nan"), float("nan"))
        return Success(nothing, nothing, nothing, nothing, nothing, 0)
    # Break ties at random, in the same way every time.
    shuffled = generator(seed, Purpose.AUDIT_DATA, 1).permutation(scores.shape[1])
    scores, owned = scores[:, shuffled], owned[:, shuffled]
    ranks = np.stack([mid_ranks(row) for row in scores])
    precisions = np.array([_precision(s, o) for s, o in zip(scores, owned, strict=True)])
    aucs = np.array([auc(r, o) for r, o in zip(ranks, owned, strict=True)])
    personal = personal_auc(ranks, owned)
    heavy = np.argsort(owned.sum(1), kind="stable")[-max(2, n // 10) :]
    return Success(
        _interval(aucs),
        _interval(personal),
        _interval(precisions),
        wilson_interval(int((precisions > RECOVERED).sum()), n),
        _interval(personal[heavy]),
        n,
    )


def owner_success(scores: Float64, items: Int64, owned: Bool) -> dict[str, Any]:
    """Success against owners of a rare item, as JSON; the known item itself does not count.

    ``scores`` and ``owned`` are clients × items, ``items`` is the rare item of each client.
    """
    aucs, precisions = [], []
    for row, item, has in zip(scores, items, owned, strict=True):
        others = np.arange(len(row)) != item
        if has[others].any():
            aucs.append(auc(mid_ranks(row[others]), has[others]))
            precisions.append(_precision(row[others], has[others]))
    found = {"auc": _interval(np.array(aucs)), "precision": _interval(np.array(precisions))}
    return {name: rounded(interval) for name, interval in found.items()} | {"items": len(aucs)}


def rounded(interval: Interval) -> dict[str, float]:
    """An interval as JSON, to four digits."""
    return {name: round(value, 4) for name, value in interval._asdict().items()}


def _interval(values: Float64) -> Interval:
    """A 95 % interval of the mean over users; of zero width if all values are equal."""
    known = values[~np.isnan(values)]
    if len(known) and np.ptp(known) == 0:
        return Interval(float(known[0]), float(known[0]), float(known[0]))
    return mean_interval(values)


def mid_ranks(scores: Float64) -> Float64:
    """Ranks from 1 for the lowest score; equal scores share their mean rank."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], np.float64)


def auc(ranks: Float64, owned: Bool) -> float:
    """The Mann-Whitney statistic; ties count half."""
    n = int(owned.sum())
    return float((ranks[owned].sum() - n * (n + 1) / 2) / (n * (len(ranks) - n)))


def personal_auc(ranks: Float64, owned: Bool) -> Float64:
    """For each user, how often it ranks its items higher than users do who lack them.

    With an item's ranks sorted over all users, an owner beats as many non-owners as are below it.
    NaN for users without an item that some other user lacks.
    """
    wins, count = np.zeros(len(ranks)), np.zeros(len(ranks))
    for i in range(ranks.shape[1]):
        has = owned[:, i]
        lacking = int((~has).sum())
        if lacking == 0 or lacking == len(has):
            continue
        others = np.sort(ranks[~has, i])
        own = ranks[has, i]
        below = np.searchsorted(others, own, "left") + np.searchsorted(others, own, "right")
        wins[has] += below / (2 * lacking)
        count[has] += 1
    with np.errstate(invalid="ignore"):
        return np.asarray(wins / count, np.float64)


def _precision(scores: Float64, owned: Bool) -> float:
    order = np.argsort(-scores, kind="stable")
    return float(owned[order[: int(owned.sum())]].mean())
