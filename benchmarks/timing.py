"""What a row is, and how two things are timed against each other.

The two sides take turns, lap by lap, so that a machine that slows down for a while slows both; a
row's figures are medians over the laps, and the smallest and largest ratio of a lap stand beside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple, TypedDict

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


@dataclass(frozen=True)
class Row:
    """One measured ratio."""

    name: str
    data: str
    against: str
    seconds_against: float
    seconds_unskew: float
    ratio: float
    ratio_low: float
    ratio_high: float
    sentence: str
    """The row in words, for a reader without the table."""
    bar: float | None = None
    """The least the ratio should be."""
    disturbed: bool = False
    """Whether others used the machine so much that the ratio means nothing."""
    details: dict[str, float] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        return None if self.bar is None or self.disturbed else self.ratio >= self.bar

    @property
    def verdict(self) -> str:
        """What to say about the bar, if anything."""
        if self.disturbed:
            return "not judged: cores were busy"
        if self.bar is None:
            return ""
        return f"bar {self.bar:g}: {'pass' if self.passed else 'FAIL'}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


class Figures(TypedDict):
    """The fields of a row that come from the clock."""

    seconds_against: float
    seconds_unskew: float
    ratio: float
    ratio_low: float
    ratio_high: float


class Laps(NamedTuple):
    """Seconds of both sides, lap by lap."""

    against: list[float]
    unskew: list[float]

    def figures(self) -> Figures:
        ratios = [a / u for a, u in zip(self.against, self.unskew, strict=True)]
        return {
            "seconds_against": median(self.against),
            "seconds_unskew": median(self.unskew),
            "ratio": median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
        }


def take_turns(
    laps: int, against: Callable[[], float], unskew: Callable[[], float]
) -> tuple[Laps, float]:
    """Run both sides in turns; each returns its seconds. Also: how much of the cores the process
    had on Unskew's side (CPU seconds per second), which drops when others use the machine."""
    measured = Laps([], [])
    wall = cpu = 0.0
    for _ in range(laps):
        began, began_cpu = time.perf_counter(), time.process_time()
        measured.unskew.append(unskew())
        wall += time.perf_counter() - began
        cpu += time.process_time() - began_cpu
        measured.against.append(against())
    return measured, cpu / wall
