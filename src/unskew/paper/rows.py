"""Rows of ``results/*.jsonl``: reading them, pooling the seeds of a run, and selecting rows.

A row of a run is identified by the run's specification without its seeds. Rows of one run with
different seeds become one row, so that seeds can be added later without running the old ones again.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from unskew.files import read_json_lines
from unskew.methods import METHODS
from unskew.runs import Result, Summary, summaries

Record = dict[str, Any]
"""A row as read from its JSON-lines file."""
DATA_ORDER = ("filmtrust", "ml-100k", "ml-1m", "lastfm-2k", "ml-latest-small")
"""Order of data sets in tables."""


def read_rows(path: Path, quick: bool = False) -> list[Record]:
    """Read a JSON-lines file if it exists: rows of quick runs if ``quick``, else all other rows. A
    later row with the same command replaces an earlier one. Incomplete lines are skipped."""
    lines = read_json_lines(path, skip_damaged=True) if path.exists() else []
    rows = [row for row in lines if "command" in row and bool(row.get("quick")) == quick]
    return list({row["command"]: row for row in rows}.values())


def row_identity(row: Mapping[str, Any]) -> Hashable:
    """Key of a result row: a run's specification without seeds, or for other rows the command."""
    if "settings" not in row or not ("metrics" in row or "curves" in row):
        return str(row["command"])
    private = row.get("privacy")
    noise = private and tuple(private.get(key) for key in ("kind", "noise", "clip", "least_users"))
    return run_identity(row["method"], row["data"], row["protocol"], row["settings"], noise)


def run_identity(
    method: str, data: str, protocol: str, settings: Mapping[str, Any], noise: Hashable
) -> Hashable:
    """Key of a run; it is the same for runs that differ only in their seeds."""
    return method, data, protocol, frozenset(settings.items()), noise


def group_rows(rows: Iterable[Record]) -> dict[Hashable, list[Record]]:
    """Group result rows by ``row_identity``; rows of one run with different seeds go together."""
    groups: dict[Hashable, list[Record]] = {}
    for row in rows:
        groups.setdefault(row_identity(row), []).append(row)
    return groups


@dataclass(frozen=True, kw_only=True)
class RunRow(Result):
    """Results of one run over all its seeds, merged from the rows of several seeds."""

    method_checksum: str | None = None
    """Checksum of the method's arithmetic; None in rows of versions without checksums."""

    @staticmethod
    def from_record(row: Record) -> RunRow:
        known = {key: row[key] for key in row if key not in ("method_checksum", "quick")}
        result = Result.from_json(known, f"The row of {row['command']}")
        values = {one.name: getattr(result, one.name) for one in fields(Result)}
        return RunRow(**values, method_checksum=row.get("method_checksum"))

    def mean(self, metric: str) -> float:
        """Mean of a test metric over seeds, each at the round with the best validation NDCG@10."""
        return self.metrics[metric].mean

    def on_seeds(self, seeds: set[int]) -> RunRow:
        """A copy of this row with the metrics of these seeds only."""
        at = [i for i, seed in enumerate(self.seeds) if seed in seeds]
        metrics = {m: Summary.over([s.values[i] for i in at]) for m, s in self.metrics.items()}
        return replace(self, seeds=[self.seeds[i] for i in at], metrics=metrics)


def pool_seeds(group: Sequence[RunRow]) -> RunRow:
    """Merge rows of one run into one: the row with the most seeds (if several, the latest) and rows
    with other seeds. Rows with different known checksums are never merged. Peak memory is taken
    from the latest row, which describes the present code."""
    chosen: list[RunRow] = []
    ascending = sorted(group, key=lambda row: len(row.seeds))
    for row in reversed(ascending):
        seen = {seed for one in chosen for seed in one.seeds}
        versions = {one.method_checksum for one in (*chosen, row)} - {None}
        if seen.isdisjoint(row.seeds) and len(versions) <= 1:
            chosen.append(row)
    peaks = [row.peak_rss_mb for row in group if row.peak_rss_mb]
    joined = _join(chosen) if len(chosen) > 1 else chosen[0]
    return replace(joined, peak_rss_mb=peaks[-1] if peaks else None)


def _join(rows: Sequence[RunRow]) -> RunRow:
    """Merge rows of one run that have no seed in common into one row, sorted by seed."""
    places = sorted(
        (seed, at, i) for at, row in enumerate(rows) for i, seed in enumerate(row.seeds)
    )

    def over_seeds(table: str) -> dict[str, Summary]:
        tables = [getattr(row, table) for row in rows]
        return summaries([{m: s.values[i] for m, s in tables[at].items()} for _, at, i in places])

    def average(field: str) -> Any:
        known = [(getattr(row, field), len(row.seeds)) for row in rows if getattr(row, field)]
        return sum(v * n for v, n in known) / sum(n for _, n in known) if known else None

    sizes = ("bytes_up", "bytes_down", "total_bytes_up", "total_bytes_down")
    checksums = [row.model_sha256_per_seed or [""] * len(row.seeds) for row in rows]
    return replace(
        rows[0],
        seeds=[seed for seed, _, _ in places],
        best_rounds=[rows[at].best_rounds[i] for _, at, i in places],
        metrics=over_seeds("metrics"),
        last_round=over_seeds("last_round"),
        sampled99=over_seeds("sampled99"),
        sampled99_last_round=None,
        seconds_per_round=statistics.median(row.seconds_per_round for row in rows),
        rounds=max(row.rounds for row in rows),
        **{field: average(field) for field in sizes},
        model_sha256=None,
        model_sha256_per_seed=[checksums[at][i] for _, at, i in places],
        command="\n".join(row.command for row in rows),
    )


class CurveRow(NamedTuple):
    """Metrics of a run after every round, averaged over seeds."""

    method: str
    data: str
    protocol: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    validation: Mapping[str, list[float]]
    test: Mapping[str, list[float]]

    @staticmethod
    def from_record(row: Record) -> CurveRow:
        about = row["method"], row["data"], row["protocol"], row["settings"], tuple(row["seeds"])
        return CurveRow(*about, row["curves"]["validation"], row["curves"]["test"])


@dataclass(frozen=True)
class Results:
    """All results in a folder; rows of one run with different seeds are merged."""

    runs: Sequence[RunRow] = ()
    curves: Sequence[CurveRow] = ()
    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """Rows that are not runs, by the name of their file."""

    @staticmethod
    def from_records(stores: Mapping[str, Sequence[Record]]) -> Results:
        """Divide the rows of several files into runs, learning curves and others; merge seeds."""
        rows = [row for store in stores.values() for row in store]
        runs = group_rows(row for row in rows if "metrics" in row and "curves" not in row)
        curves = group_rows(row for row in rows if "curves" in row)
        others = {
            name: [row for row in store if not {"metrics", "curves"} & set(row)]
            for name, store in stores.items()
        }
        return Results(
            [pool_seeds([RunRow.from_record(row) for row in group]) for group in runs.values()],
            [
                CurveRow.from_record(max(reversed(group), key=lambda row: len(row["seeds"])))
                for group in curves.values()
            ],
            others,
        )

    def of(self, store: str) -> list[Record]:
        """Rows of the file ``store`` that are not runs, sorted by data set."""
        return sorted(self.records.get(store, ()), key=lambda row: data_place(row["data"]))

    def by_pair(self, store: str) -> dict[tuple[str, str], list[Record]]:
        """Rows of the file ``store`` that are not runs, grouped by (data set, protocol)."""
        groups: dict[tuple[str, str], list[Record]] = {}
        for row in self.of(store):
            groups.setdefault((row["data"], row["protocol"]), []).append(row)
        return groups

    def default_runs(self, methods: Iterable[str] = METHODS) -> list[RunRow]:
        """Runs of these methods with default settings, without noise, by method and data set."""
        rows = [r for r in self.runs if r.method in methods and not r.settings and not r.privacy]
        return sort_by_method(rows)

    def commands(self) -> list[str]:
        """Commands that made the rows, each once."""
        runs = [row.command for row in self.runs]
        others = [row["command"] for rows in self.records.values() for row in rows]
        return list(dict.fromkeys(line for one in (*runs, *others) for line in one.splitlines()))


def read_results(folder: Path, stores: Iterable[str], quick: bool = False) -> Results:
    """Read the files named in ``stores``: rows of quick runs if ``quick``, else all others."""
    return Results.from_records(
        {name: read_rows(folder / f"{name}.jsonl", quick) for name in stores}
    )


def on_common_seeds(rows: Sequence[RunRow]) -> list[RunRow]:
    """Restrict runs to the seeds that all of them have, for a fair comparison. If there is no
    common seed, they are returned unchanged."""
    common = set.intersection(*(set(row.seeds) for row in rows)) if rows else set()
    return [row.on_seeds(common) if common else row for row in rows]


T = TypeVar("T")
"""Type of the rows that :func:`select` filters."""
RowT = TypeVar("RowT", RunRow, CurveRow)


def data_place(data: str) -> int:
    """Sort key of a data set: its position in tables."""
    return DATA_ORDER.index(data) if data in DATA_ORDER else len(DATA_ORDER)


def sort_by_method(rows: Sequence[RowT]) -> list[RowT]:
    """Rows whose method is registered, sorted by registry order and then by data set."""
    order = list(METHODS)
    registered = [row for row in rows if row.method in order]
    return sorted(registered, key=lambda row: (order.index(row.method), data_place(row.data)))


def select(rows: Iterable[T], **wanted: Any) -> list[T]:
    """Rows whose attributes have the given values."""
    return [row for row in rows if all(getattr(row, k) == value for k, value in wanted.items())]


def distinct(rows: Iterable[Any], attribute: str) -> list[Any]:
    """Distinct values of an attribute of the rows, in order of appearance."""
    return list(dict.fromkeys(getattr(row, attribute) for row in rows))


def find(rows: Iterable[RowT], **wanted: Any) -> RowT | None:
    """The row with these attribute values and the most seeds (if several, the last), or None."""
    return max(reversed(select(rows, **wanted)), key=lambda row: len(row.seeds), default=None)
