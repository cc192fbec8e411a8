"""Training a method on noise under a protocol, for the leak audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from unskew.audit import LeakVerdict, judge, random_interactions
from unskew.experiments._run import run
from unskew.experiments._spec import RunSpec

CANDIDATES = 99


class LeakAudit(NamedTuple):
    """A protocol's verdict: HR@10 among 99 random candidates, at the best and the last round."""

    protocol: str
    best: LeakVerdict
    last: LeakVerdict

    @property
    def leaks(self) -> bool:
        return self.best.leaks or self.last.leaks


def audit_leak(
    method: str,
    settings: Mapping[str, Any],
    protocol: str,
    seed: int = 0,
    on_round: Callable[[int, dict[str, Any], int], None] | None = None,
) -> LeakAudit:
    spec = RunSpec(method, settings, "random", protocol, (seed,))
    finished = run(spec, random_interactions(seed=seed), on_round=on_round)
    chance = 10 / (CANDIDATES + 1)
    values = finished.outcomes[0].per_user
    verdicts = [judge(values[round, "sampled"]["hr@10"], chance) for round in ("best", "last")]
    return LeakAudit(protocol, *verdicts)
