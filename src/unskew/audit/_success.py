"""How well an attack did, user by user, against the items the user really trained on."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unskew.audit._attacks import direction, main_direction, support
from unskew.evaluation import Interval, mean_interval, wilson_interval
from unskew.rng import Purpose, generator
from unskew.types import Bool, Float32, Float64, Int64

RECOVERED = 0.9
"""A user counts as recovered if this share of the guessed items is right."""


class Success(NamedTuple):
    """Over the attacked users, each with its 95 % interval."""

    auc: Interval
    """Probability that one of the user's items scores above one that is not; chance is 0.5."""
    personal_auc: Interval
    """Probability that an item of the user's scores higher for this user than for one who does not
    have it: what the server learns about this user and not about everybody. Chance is 0.5, and
    knowing what is popular does not help."""
    precision: Interval
    """Of the n best-scored items, the share that is the user's; n is how many it has."""
    recovered: Interval
    """Share of users for whom that is above 90 %."""
    heaviest: Interval
    """The personal AUC of the tenth of users with most items, whose weight in a sum is largest."""
    users: int

    def as_json(self) -> dict[str, Any]:
        figures = {
            name: as_figures(i) for name, i in zip(self._fields[:-1], self[:-1], strict=True)
        }
        return figures | {"users": self.users}


def auc_of_one(upload: Float32, owned: Bool) -> float:
    """How well one upload, items × width, tells the client's items from the others: the better AUC
    of the two attacks that need nothing else, support and direction."""
    D = upload[None]
    scores = support(D)[0], direction(D, main_direction(D))[0]
    return max(float(auc(mid_ranks(one), owned)) for one in scores)


def measure(scores: Float64, owned: Bool, seed: int = 0) -> Success:
    """``scores`` and ``owned`` are users × items; users without a score (NaN) are left out."""
    there = ~np.isnan(scores).any(axis=1)
    scores, owned = scores[there], owned[there]
    n = len(scores)
    if n == 0:
        nothing = Interval(float("nan"), float("nan"), float("nan"))
        return Success(nothing, nothing, nothing, nothing, nothing, 0)
    # Ties are broken at random, but every time alike.
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


def of_owners(scores: Float64, items: Int64, owned: Bool) -> dict[str, Any]:
    """What a rare item tells about the other items of a client who has it: ``scores`` and the
    client's items ``owned`` are clients × items; the known item itself does not count."""
    aucs, precisions = [], []
    for row, item, has in zip(scores, items, owned, strict=True):
        others = np.arange(len(row)) != item
        if has[others].any():
            aucs.append(auc(mid_ranks(row[others]), has[others]))
            precisions.append(_precision(row[others], has[others]))
    found = {"auc": _interval(np.array(aucs)), "precision": _interval(np.array(precisions))}
    return {name: as_figures(interval) for name, interval in found.items()} | {"items": len(aucs)}


def as_figures(interval: Interval) -> dict[str, float]:
    return {name: round(value, 4) for name, value in interval._asdict().items()}


def _interval(values: Float64) -> Interval:
    """Of users' figures; where all are equal there is nothing to be unsure of but other users."""
    known = values[~np.isnan(values)]
    if len(known) and np.ptp(known) == 0:
        return Interval(float(known[0]), float(known[0]), float(known[0]))
    return mean_interval(values)


def mid_ranks(scores: Float64) -> Float64:
    """Ranks from 1, the lowest first; equal scores share the mean of theirs."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[place], np.float64)


def auc(ranks: Float64, owned: Bool) -> float:
    """The Mann-Whitney statistic, ties counting half."""
    n = int(owned.sum())
    return float((ranks[owned].sum() - n * (n + 1) / 2) / (n * (len(ranks) - n)))


def personal_auc(ranks: Float64, owned: Bool) -> Float64:
    """Per user, over its items: how often it ranks the item higher than users do who lack it.

    With an item's ranks sorted over all users, an owner beats as many non-owners as stand below it.
    NaN for users with no item that some other user lacks.
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
