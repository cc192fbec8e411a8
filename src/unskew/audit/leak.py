"""Check whether an evaluation protocol leaks held-out items into training.

Nothing can be learned from random interactions. If a method still ranks their held-out items better
than chance, the evaluation protocol has leaked these items into training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from unskew.evaluation import Interval, wilson_interval
from unskew.rng import Purpose, generator
from unskew.runs import OnRound, RunSpec, run
from unskew.types import Interactions

CHANCE = 0.1
"""HR@10 of a random ranking of 100 items: the held-out item and 99 others."""


class LeakAudit(NamedTuple):
    """HR@10 on random data, among 99 sampled candidates, at the best round and at the last."""

    protocol: str
    best: Interval
    last: Interval
    n_users: int

    @property
    def leaks(self) -> bool:
        """True if the 95 % interval of HR@10 is above chance, at the best or at the last round."""
        return self.best.low > CHANCE or self.last.low > CHANCE

    def to_json(self) -> dict[str, Any]:
        rounds = {"best_round": self.best, "last_round": self.last}
        return {
            "protocol": self.protocol,
            "leaks": self.leaks,
            "chance": CHANCE,
            "users": self.n_users,
            **{
                name: {"hr@10": rate.mean, "low": rate.low, "high": rate.high}
                for name, rate in rounds.items()
            },
        }


def _random_interactions(seed: int) -> Interactions:
    """Interactions of 600 users with 20 random items each, out of 300, in random time order."""
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
    """Train ``method`` on random interactions under ``protocol`` and measure its HR@10."""
    spec = RunSpec(method, settings, "random", protocol, (seed,))
    finished = run(spec, _random_interactions(seed), on_round=on_round)
    values = finished.outcomes[0].per_user
    best, last = (values[round, "sampled"]["hr@10"] for round in ("best", "last"))
    best_rate, last_rate = (wilson_interval(int(hits.sum()), len(hits)) for hits in (best, last))
    return LeakAudit(protocol, best_rate, last_rate, len(best))
