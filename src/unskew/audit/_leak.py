"""The evaluation-leak check: on interactions without any structure nothing can be learned, so a
method that does better than chance has been told the answer by its evaluation protocol."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unskew.evaluation import Interval, wilson_interval
from unskew.rng import Purpose, generator
from unskew.types import Float64, Interactions


@dataclass(frozen=True)
class LeakVerdict:
    """Hit rate on noise against chance. ``leaks`` when even the interval's lower end is above."""

    hit_rate: Interval
    chance: float
    n_users: int

    @property
    def leaks(self) -> bool:
        return self.hit_rate.low > self.chance


def random_interactions(
    n_users: int = 600, n_items: int = 300, per_user: int = 20, seed: int = 0
) -> Interactions:
    """Every user with as many distinct items, drawn uniformly, in a random order of time."""
    random = generator(seed, Purpose.AUDIT_DATA)
    items = np.concatenate([random.permutation(n_items)[:per_user] for _ in range(n_users)])
    return Interactions(
        "random",
        np.repeat(np.arange(n_users), per_user).astype(np.int32),
        items.astype(np.int32),
        [str(user) for user in range(n_users)],
        [str(item) for item in range(n_items)],
        timestamps=np.tile(np.arange(per_user), n_users).astype(np.int64),
        clock="time",
    )


def judge(hits: Float64, chance: float) -> LeakVerdict:
    """``hits``: for each user whether its held-out item was among the first ten."""
    return LeakVerdict(wilson_interval(int(hits.sum()), len(hits)), chance, len(hits))
