"""A run as the report shows it, and numbers as the report formats them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unskew.report.palette import Style, variant
from unskew.report.table import MISSING, Cell
from unskew.types import UnskewError

LEAKY, LEAK_FREE = "paper", "leak-free"
"""The protocol under which training can identify the held-out item, and the one that stops it."""
_PROTOCOL_ORDER = (LEAK_FREE, "time")


class Figure(NamedTuple):
    """A metric over seeds; ``std`` is None with one seed."""

    mean: float | None
    std: float | None

    def cell(self, bold: bool = False) -> Cell:
        return Cell.number(self.mean, std=self.std, bold=bold)

    def __str__(self) -> str:
        spread = "" if self.std is None or self.mean is None else f"\xa0±\xa0{self.std:.4f}"
        return metric(self.mean) + spread


class Point(NamedTuple):
    """A metric in one round: mean, lowest and highest over seeds."""

    round: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Entry:
    """One run: its summary, its rounds, its label and its style."""

    summary: Mapping[str, Any]
    seeds: tuple[Sequence[Mapping[str, Any]], ...]
    """Rows of each seed, one per round."""
    label: str
    style: Style
    number: int = 0
    """Position among the runs given to the report."""

    @property
    def method(self) -> str:
        return _text(self.summary, "method")

    @property
    def data(self) -> str:
        return _text(self.summary, "data")

    @property
    def protocol(self) -> str:
        return _text(self.summary, "protocol")

    @property
    def ranking(self) -> str:
        return _text(self.summary, "ranking")

    @property
    def leaky(self) -> bool:
        return self.protocol == LEAKY

    @property
    def noise(self) -> float | None:
        """Strength of the noise added to uploads."""
        return number(mapping(self.summary.get("privacy")).get("noise"))

    @property
    def score(self) -> Figure:
        """Test NDCG@10 in the best validation round, by which runs are ranked."""
        return self.figure("metrics", "ndcg@10")

    def value(self, key: str) -> float | None:
        return number(self.summary.get(key))

    def kilobytes(self, key: str) -> float | None:
        """Thousands of bytes per client and round."""
        value = self.value(key)
        return None if value is None else value / 1000

    def figure(self, part: str, name: str) -> Figure:
        """A test metric; ``part`` is metrics, last_round or sampled99."""
        entry = mapping(mapping(self.summary.get(part)).get(name))
        several = len(sequence(entry.get("values", self.summary.get("seeds")))) > 1
        return Figure(number(entry.get("mean")), number(entry.get("std")) if several else None)

    def curve(self, name: str = "ndcg@10") -> list[Point]:
        """Validation metric by round, over the seeds that have it."""
        rounds: dict[int, list[float]] = {}
        for rows in self.seeds:
            for row in rows:
                at = number(row.get("round"))
                value = number(mapping(row.get("validation")).get(name))
                if at is not None and value is not None:
                    rounds.setdefault(int(at), []).append(value)
        return [Point(r, sum(v) / len(v), min(v), max(v)) for r, v in sorted(rounds.items())]


def read_entries(runs: Sequence[Mapping[str, Any]], looks: Mapping[str, Style]) -> list[Entry]:
    """Runs in the report's order: by data set, honest protocols first, best first."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for at, run in enumerate(runs):
        key = tuple(_text(run["summary"], field) for field in ("method", "data", "protocol"))
        groups.setdefault(key, []).append(at)
    entries = []
    for key, same in groups.items():
        names = _labels(key[0], [_settings(runs[at]["summary"]) for at in same])
        for count_before, (at, name) in enumerate(zip(same, names, strict=True)):
            rows = mapping(runs[at].get("rounds")).values()
            seeds = tuple([mapping(row) for row in sequence(seed)] for seed in rows)
            style = variant(looks[key[0]], count_before)
            entries.append(Entry(runs[at]["summary"], seeds, name, style, at))
    return sorted(entries, key=_order)


def method_names(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Method of each run; an error where there is no run or a run has no summary."""
    if not runs:
        raise UnskewError("There is no run to report on; give at least one finished run.")
    for at, run in enumerate(runs, 1):
        if not isinstance(run.get("summary"), Mapping):
            raise UnskewError(f'Run {at} has no "summary"; give the object in its result.json.')
    return [_text(run["summary"], "method") for run in runs]


def group_by(entries: Iterable[Entry], field: str) -> dict[str, list[Entry]]:
    """Entries by an attribute such as data or protocol, in their order."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(getattr(entry, field), []).append(entry)
    return groups


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def mapping(value: object) -> Mapping[Any, Any]:
    """The value if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    """The value if it is a list or tuple, else an empty one."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def metric(value: float | None) -> str:
    return MISSING if value is None else f"{value:.4f}"


def amount(value: float | None) -> str:
    """Seconds or kilobytes with three significant digits, never in powers of ten."""
    if value is None:
        return MISSING
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def count(value: float | None) -> str:
    return MISSING if value is None else f"{value:,.0f}"


def _text(summary: Mapping[str, Any], key: str) -> str:
    value = summary.get(key)
    return MISSING if value is None or value == "" else str(value)


def _settings(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of a run, and the strength of its noise if it added any."""
    noise = number(mapping(summary.get("privacy")).get("noise"))
    added = {} if noise is None else {"noise": f"{noise:g}"}
    return {**mapping(summary.get("settings")), **added}


def _labels(method: str, settings: list[Mapping[str, Any]]) -> list[str]:
    """The method's name, with the settings that differ if it has several runs."""
    if len(settings) == 1:
        return [method]
    keys = sorted({str(key) for each in settings for key in each})
    differ = [k for k in keys if len({repr(each.get(k)) for each in settings}) > 1]
    names = []
    for each in settings:
        parts = ", ".join(f"{key}={each.get(key, 'default')}" for key in differ)
        names.append(f"{method} ({parts})" if parts else method)
    return [
        name if names.count(name) == 1 else f"{name} #{names[: at + 1].count(name)}"
        for at, name in enumerate(names)
    ]


def _order(entry: Entry) -> tuple[Any, ...]:
    known = _PROTOCOL_ORDER
    place = known.index(entry.protocol) if entry.protocol in known else len(known) + entry.leaky
    score = entry.score.mean
    return (entry.data, place, entry.protocol, score is None, -(score or 0.0), entry.label)
