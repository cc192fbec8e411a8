"""Plain versions of the evaluation kernels: slow, obvious, written from the stated rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unskew.types import Float32, Int32, Int64, Interactions, Ragged, Split


def ragged(lists: Sequence[Sequence[int]]) -> Ragged:
    indptr = np.cumsum([0, *map(len, lists)]).astype(np.int64)
    return Ragged(indptr, np.array([x for row in lists for x in row], np.int32))


def as_lists(value: Ragged) -> list[list[int]]:
    return [value.of(user).tolist() for user in range(len(value.indptr) - 1)]


def make_split(
    n_items: int,
    seen: Sequence[Sequence[int]],
    validation: Sequence[Sequence[int]],
    test: Sequence[Sequence[int]],
    sampled: Sequence[Sequence[int]] | None = None,
) -> Split:
    seen_lists = ragged([sorted(set(row)) for row in seen])
    return Split(
        data="hand-made",
        protocol="leak-free",
        user_ids=[str(user) for user in range(len(seen))],
        item_ids=[str(item) for item in range(n_items)],
        titles=None,
        train=ragged(seen),
        seen=seen_lists,
        excluded=seen_lists,
        validation=ragged(validation),
        test=ragged(test),
        sampled=np.array(sampled if sampled is not None else [[-1]] * len(seen), np.int32),
        rank_all=True,
    )


def make_interactions(
    rows: Sequence[tuple[int, int, int | None]],
    ratings: Sequence[float] | None = None,
    min_user_rows: int = 3,
) -> Interactions:
    """Rows of (user, item, time); labels are ``u7`` and ``i7``, titles ``t7``."""
    users, items, times = zip(*rows, strict=True)
    timed = times[0] is not None
    n_users, n_items = max(users) + 1, max(items) + 1
    return Interactions(
        name="hand-made",
        users=np.array(users, np.int32),
        items=np.array(items, np.int32),
        user_ids=[f"u{user}" for user in range(n_users)],
        item_ids=[f"i{item}" for item in range(n_items)],
        ratings=None if ratings is None else np.array(ratings, np.float32),
        timestamps=np.array(times, np.int64) if timed else None,
        clock="time" if timed else "none",
        titles=[f"t{item}" for item in range(n_items)],
        min_user_rows=min_user_rows,
    )


def plain_ranks(scores: Float32, users: Int64, split: Split, part: str, sampled: bool) -> list[int]:
    held_out = split.test if part == "test" else split.validation
    ranks = []
    for row, user in enumerate(users):
        held = held_out.of(user).tolist()
        if sampled:
            rivals = {item for item in split.sampled[user].tolist() if item >= 0}
        else:
            rivals = set(range(split.n_items)) - set(split.seen.of(user).tolist())
            if part == "test":
                rivals -= set(split.validation.of(user).tolist())
        rivals -= set(held)

        def worse_than(item: int, other: int, row: int = row, held: list[int] = held) -> bool:
            mine, theirs = scores[row, item], scores[row, other]
            mine = -math.inf if math.isnan(mine) else mine
            level_mine = (not math.isnan(scores[row, item]), mine)
            level_theirs = (not math.isnan(theirs), -math.inf if math.isnan(theirs) else theirs)
            if level_mine != level_theirs:
                return level_mine < level_theirs
            return other < item if other in held else True

        for item in held:
            others = [other for other in [*rivals, *held] if other != item]
            ranks.append(1 + sum(worse_than(item, other) for other in others))
    return ranks


def plain_top_k(scores: Float32, users: Int64, split: Split, k: int) -> Int32:
    best = np.full((len(users), k), -1, np.int32)
    for row, user in enumerate(users):
        out = set(split.seen.of(user).tolist()) | set(split.validation.of(user).tolist())
        usable = [
            item
            for item in range(split.n_items)
            if item not in out and not math.isnan(scores[row, item])
        ]
        usable.sort(key=lambda item, row=row: (-scores[row, item], item))  # type: ignore[misc]
        best[row, : len(usable[:k])] = usable[:k]
    return best


def plain_metrics(ranks: Sequence[int], k: int) -> dict[str, float]:
    """One user's metrics from the list of hits and misses down to place ``k``."""
    if not ranks:
        return dict.fromkeys(("hr", "ndcg", "mrr", "recall", "map"), math.nan)
    relevant = [place in ranks for place in range(1, k + 1)]
    gains = [hit / math.log2(place + 1) for place, hit in enumerate(relevant, 1)]
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(len(ranks), k) + 1))
    precisions = [sum(relevant[:place]) / place for place in range(1, k + 1) if relevant[place - 1]]
    return {
        "hr": float(any(relevant)),
        "ndcg": sum(gains) / ideal,
        "mrr": 1 / (relevant.index(True) + 1) if any(relevant) else 0.0,
        "recall": sum(relevant) / len(ranks),
        "map": sum(precisions) / min(len(ranks), k),
    }
