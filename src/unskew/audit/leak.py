"""The evaluation-leak check.

Interactions without structure teach nothing. A method that ranks held-out items of such data better
than chance has been told the answer by its evaluation protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from unskew.evaluation import Interval, wilson_interval
from unskew.rng import Purpose, generator
from unskew.runs import OnRound, RunSpec, run
from unskew.types import Interactions

CANDIDATES = 99
"""Number of items the user never had among which each held-out item is ranked."""


class LeakVerdict(NamedTuple):
    """Hit rate of a method on random data, and the hit rate of chance."""

    hit_rate: Interval
    chance: float
    n_users: int

    @property
    def leaks(self) -> bool:
        """True if even the lower end of the interval is above chance."""
        return self.hit_rate.low > self.chance


class LeakAudit(NamedTuple):
    """HR@10 among 99 random candidates under a protocol, at the best and at the last round."""

    protocol: str
    best: LeakVerdict
    last: LeakVerdict

    @property
    def leaks(self) -> bool:
        return self.best.leaks or self.last.leaks

    def to_json(self) -> dict[str, Any]:
        verdicts = {"best_round": self.best, "last_round": self.last}
        return {
            "protocol": self.protocol,
            "leaks": self.leaks,
            "chance": self.best.chance,
            "users": self.best.n_users,
            **{
                name: {"hr@10": v.hit_rate.mean, "low": v.hit_rate.low, "high": v.hit_rate.high}
                for name, v in verdicts.items()
            },
        }


def _random_interactions(seed: int) -> Interactions:
    """Twenty distinct items for every user, drawn uniformly, in random order of time."""
    n_users, n_items, per_user = 600, 300, 20
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


def audit_leak(
    method: str,
    settings: Mapping[str, Any],
    protocol: str,
    seed: int = 0,
    on_round: OnRound | None = None,
) -> LeakAudit:
    """Train ``method`` on random interactions under ``protocol`` and judge its hit rates."""
    spec = RunSpec(method, settings, "random", protocol, (seed,))
    finished = run(spec, _random_interactions(seed), on_round=on_round)
    verdicts = []
    for round in ("best", "last"):
        hits = finished.outcomes[0].per_user[round, "sampled"]["hr@10"]
        rate = wilson_interval(int(hits.sum()), len(hits))
        verdicts.append(LeakVerdict(rate, 10 / (CANDIDATES + 1), len(hits)))
    return LeakAudit(protocol, *verdicts)
