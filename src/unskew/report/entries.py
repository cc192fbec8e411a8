"""A run as the report shows it, and numbers as the report formats them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unskew.display.palette import Style, style_of
from unskew.display.table import MISSING, Cell
from unskew.runs import Result, Summary, distinct_labels

LEAKY, LEAK_FREE = "paper", "leak-free"
"""The protocol under which training can identify the held-out item, and the one that stops it."""
_PROTOCOL_ORDER = (LEAK_FREE, "time")
"""Protocols that the report lists first; ``paper`` comes last."""


class FinishedRun(NamedTuple):
    """A finished run's results and learning curves, as input of the report."""

    result: Result
    curves: Sequence[Sequence[float]] = ()
    """Validation NDCG@10 after every round, per seed; empty if it was not recorded."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One run, with the label and style by which the whole report shows it."""

    result: Result
    curves: Sequence[Sequence[float]]
    label: str
    variant: int
    """Number among the runs of the same method, data set and protocol."""
    number: int
    """Position among the runs given to the report."""

    @property
    def style(self) -> Style:
        return style_of(self.result.method, self.variant)

    @property
    def leaky(self) -> bool:
        return self.result.protocol == LEAKY

    @property
    def score(self) -> Summary:
        """Test NDCG@10 in the best validation round, by which runs are ranked."""
        return self.result.metrics["ndcg@10"]

    @property
    def name_cell(self) -> Cell:
        return Cell(self.label, self.label.lower(), style=self.style)


def read_entries(runs: Sequence[FinishedRun]) -> list[Entry]:
    """Entries of runs, sorted by data set, protocol (``paper`` last) and falling NDCG@10."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, (result, _) in enumerate(runs):
        key = result.method, result.data, result.protocol
        groups.setdefault(key, []).append(number)
    entries = []
    for numbers in groups.values():
        labels = distinct_labels([runs[number].result for number in numbers])
        for variant, (number, label) in enumerate(zip(numbers, labels, strict=True)):
            entries.append(Entry(*runs[number], label, variant, number))
    return sorted(entries, key=_order)


def group_by(entries: Iterable[Entry], field: str) -> dict[str, list[Entry]]:
    """Group runs by a field of their results such as data or protocol; keeps their order."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(getattr(entry.result, field), []).append(entry)
    return groups


def spread(metric: Summary) -> str:
    """Format a metric's mean over seeds, with its standard deviation if there are several."""
    return Cell.over_seeds(metric).line.replace(" ", "\xa0")


def amount(value: float | None) -> str:
    """Format seconds or kilobytes with three significant digits, never in powers of ten."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def kilobytes(value: float | None) -> float | None:
    """Convert bytes to kilobytes (thousands of bytes)."""
    return None if value is None else value / 1000


def _order(entry: Entry) -> tuple[Any, ...]:
    data, protocol, known = entry.result.data, entry.result.protocol, _PROTOCOL_ORDER
    place = known.index(protocol) if protocol in known else len(known) + entry.leaky
    return data, place, protocol, -entry.score.mean, entry.label
