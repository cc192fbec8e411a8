"""Rows of the benchmark, and the clock that times two sides against each other.

The two sides take turns, lap by lap, so that a machine that slows down for a while slows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from unskew.types import Split


class LeftOut(Exception):
    """A row that cannot be measured here; the message says why and how to mend it."""


class Effort(NamedTuple):
    """How long to look."""

    laps: int
    """Turns each side takes."""
    rounds: int
    """Rounds of Unskew, or calls of a kernel, per lap."""
    seconds: float
    """Seconds of the slow side per row, shared among the laps."""


THOROUGH = Effort(laps=5, rounds=3, seconds=25.0)
QUICK = Effort(laps=2, rounds=2, seconds=3.0)


class Setting(NamedTuple):
    """What a row is measured on."""

    split: Split
    effort: Effort


class Figures(NamedTuple):
    """The figures of a row that come from the clock: medians over the laps, and the smallest and
    largest ratio of a lap."""

    seconds_against: float
    seconds_unskew: float
    ratio: float
    ratio_low: float
    ratio_high: float


@dataclass(frozen=True)
class Row:
    """One measured ratio."""

    name: str
    data: str
    against: str
    figures: Figures
    sentence: str
    """The row in words, for a reader without the table."""
    bar: float | None = None
    """The least the ratio should be."""
    disturbed: bool = False
    """Whether others used the machine so much that the ratio means nothing."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        return None if self.bar is None or self.disturbed else self.figures.ratio >= self.bar

    @property
    def verdict(self) -> str:
        """A judgement by the bar, in words; empty without a bar."""
        if self.disturbed:
            return "not judged: cores were busy"
        if self.bar is None:
            return ""
        return f"bar {self.bar:g}: {'pass' if self.passed else 'FAIL'}"

    def as_json(self) -> dict[str, Any]:
        values = vars(self) | self.figures._asdict() | {"passed": self.passed}
        del values["figures"]
        return values


def take_turns(
    laps: int, against: Callable[[], float], unskew: Callable[[], float]
) -> tuple[Figures, float]:
    """Run both sides in turns; each returns its seconds. Also: how much of the cores the process
    had on Unskew's side (CPU seconds per second), which drops when others use the machine."""
    seconds: list[tuple[float, float]] = []
    wall = cpu = 0.0
    for _ in range(laps):
        began, began_cpu = time.perf_counter(), time.process_time()
        ours = unskew()
        wall += time.perf_counter() - began
        cpu += time.process_time() - began_cpu
        seconds.append((against(), ours))
    ratios = [theirs / ours for theirs, ours in seconds]
    medians = [median(side) for side in zip(*seconds, strict=True)]
    return Figures(*medians, median(ratios), min(ratios), max(ratios)), cpu / wall
