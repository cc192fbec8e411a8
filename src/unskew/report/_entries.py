"""A run as the report shows it, and numbers as the report writes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from unskew.report.palette import Style, styles, variant
from unskew.types import UnskewError

DASH = "–"
"""Stands for a value that is missing or not a number."""
LEAKY = "paper"
"""The protocol under which training can find out the held-out item."""
_PROTOCOL_ORDER = ("leak-free", "time")


class Figure(NamedTuple):
    """A metric over seeds; ``std`` is None where there is only one."""

    mean: float | None
    std: float | None


class Point(NamedTuple):
    """A metric in one round: the mean, the lowest and the highest over seeds."""

    round: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Entry:
    """One run: its figures, its rows, how it is named and how it is drawn."""

    summary: Mapping[str, Any]
    seeds: tuple[Sequence[Mapping[str, Any]], ...]
    """The rows of each seed."""
    label: str
    style: Style
    number: int = 0
    """Its place among the runs as they were given."""

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

    def value(self, key: str) -> float | None:
        return number(self.summary.get(key))

    def kilobytes(self, key: str) -> float | None:
        """Thousands of bytes per client and round."""
        value = self.value(key)
        return None if value is None else value / 1000

    def figure(self, part: str, metric: str) -> Figure:
        """``part``: metrics, last_round or sampled99."""
        entry = mapping(mapping(self.summary.get(part)).get(metric))
        several = len(sequence(entry.get("values", self.summary.get("seeds")))) > 1
        return Figure(number(entry.get("mean")), number(entry.get("std")) if several else None)

    def curve(self, metric: str = "ndcg@10") -> list[Point]:
        """Validation metric by round, over the seeds that have it."""
        rounds: dict[int, list[float]] = {}
        for rows in self.seeds:
            for row in rows:
                at = number(row.get("round"))
                value = number(mapping(row.get("validation")).get(metric))
                if at is not None and value is not None:
                    rounds.setdefault(int(at), []).append(value)
        return [Point(r, sum(v) / len(v), min(v), max(v)) for r, v in sorted(rounds.items())]


def read(
    runs: Sequence[Mapping[str, Any]], looks: Mapping[str, Style] | None = None
) -> list[Entry]:
    """Runs in the order of the report: by data, honest protocols first, best first."""
    runs = list(runs)
    if not runs:
        raise UnskewError("There is no run to report on; give at least one finished run.")
    for at, run in enumerate(runs, 1):
        if not isinstance(run.get("summary"), Mapping):
            raise UnskewError(f'Run {at} has no "summary"; give the object in its result.json.')
    looks = looks or styles(methods_of(runs))
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, run in enumerate(runs):
        key = tuple(_text(run["summary"], field) for field in ("method", "data", "protocol"))
        groups.setdefault((key[0], key[1], key[2]), []).append(number)
    entries = []
    for (method, _, _), same in groups.items():
        names = _labels(method, [_chosen(runs[number]["summary"]) for number in same])
        for at, (number, name) in enumerate(zip(same, names, strict=True)):
            rows = mapping(runs[number].get("rounds")).values()
            seeds = tuple([mapping(row) for row in sequence(seed)] for seed in rows)
            style = variant(looks[method], at)
            entries.append(Entry(runs[number]["summary"], seeds, name, style, number))
    return sorted(entries, key=_order)


def methods_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The method of each run, as the page names it."""
    return [_text(mapping(run.get("summary")), "method") for run in runs]


def grouped(entries: Iterable[Entry], field: str) -> dict[str, list[Entry]]:
    """Entries by data or by protocol, in their order."""
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
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def text(value: object) -> str:
    """Any value as HTML text; also safe inside a quoted attribute."""
    return escape(str(value), quote=True)


def metric(value: float | None) -> str:
    return DASH if value is None else f"{value:.4f}"


def with_spread(figure: Figure) -> str:
    """Mean ± standard deviation in one line."""
    spread = (
        ""
        if figure.std is None or figure.mean is None
        else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{figure.std:.4f}"
    )
    return metric(figure.mean) + spread


def amount(value: float | None) -> str:
    """Seconds or kilobytes: three significant digits, never in powers of ten."""
    if value is None:
        return DASH
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 6)}f}"


def count(value: float | None) -> str:
    return DASH if value is None else f"{value:,.0f}"


def _text(summary: Mapping[str, Any], key: str) -> str:
    value = summary.get(key)
    return DASH if value is None or value == "" else str(value)


def _chosen(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run's settings, and the strength of the noise it added if it added any."""
    noise = number(mapping(summary.get("privacy")).get("noise"))
    added = {} if noise is None else {"noise": f"{noise:g}"}
    return {**mapping(summary.get("settings")), **added}


def _labels(method: str, settings: list[Mapping[str, Any]]) -> list[str]:
    """The method's name, with the settings that differ where it stands more than once."""
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
    score = entry.figure("metrics", "ndcg@10").mean
    return (entry.data, place, entry.protocol, score is None, -(score or 0.0), entry.label)
