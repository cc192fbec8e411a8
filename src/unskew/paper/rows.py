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
from unskew.runs import Result, Summary, summarise

Record = dict[str, Any]
"""A row as it stands in its file."""
DATA_ORDER = ("filmtrust", "ml-100k", "ml-1m", "lastfm-2k", "ml-latest-small")
"""Order of data sets in tables."""
METRIC_TABLES = ("metrics", "last_round", "sampled99", "sampled99_last_round")
"""Keys of a run's row that hold figures per seed."""
_LISTS_BY_SEED = ("best_rounds", "model_sha256_per_seed")


def read_rows(path: Path) -> list[Record]:
    """Rows of a JSON-lines file, if it exists. A later row with the same command replaces an
    earlier one. Lines cut short by a kill are skipped."""
    lines = read_json_lines(path, skip_damaged=True) if path.exists() else []
    rows = {(row["command"], bool(row.get("quick"))): row for row in lines if "command" in row}
    return list(rows.values())


def row_identity(row: Mapping[str, Any]) -> Hashable:
    """Specification of a run without its seeds; for any other row its command."""
    if "settings" not in row or not ("metrics" in row or "curves" in row):
        return str(row["command"])
    private = row.get("privacy")
    noise = private and tuple(private.get(key) for key in ("kind", "noise", "clip", "least_users"))
    return run_identity(row["method"], row["data"], row["protocol"], row["settings"], noise)


def run_identity(
    method: str, data: str, protocol: str, settings: Mapping[str, Any], noise: Hashable
) -> Hashable:
    """Equal for runs that differ only in their seeds."""
    return method, data, protocol, frozenset(settings.items()), noise


def pool_seeds(rows: Iterable[Record]) -> list[Record]:
    """One row per run: the row with most seeds, joined with rows that have none of its seeds. Rows
    known to come from different code are never joined. Peak memory is that of the latest row, as it
    describes the present engine."""
    runs: dict[Hashable, list[Record]] = {}
    for row in rows:
        runs.setdefault(row_identity(row), []).append(row)
    return [_join(_disjoint(group)) | _latest_memory(group) for group in runs.values()]


def _latest_memory(group: Sequence[Record]) -> dict[str, float]:
    measured = [row["peak_rss_mb"] for row in group if row.get("peak_rss_mb")]
    return {"peak_rss_mb": measured[-1]} if measured else {}


def _disjoint(group: Sequence[Record]) -> list[Record]:
    """Rows to join, the latest of those with most seeds first."""
    chosen: list[Record] = []
    by_seeds = sorted(enumerate(group), key=lambda at: (-len(at[1].get("seeds", ())), -at[0]))
    for _, row in by_seeds:
        seen = {seed for one in chosen for seed in one.get("seeds", ())}
        versions = {one.get("method_checksum") for one in (*chosen, row)} - {None}
        joinable = "metrics" in row and seen.isdisjoint(row["seeds"]) and len(versions) <= 1
        if joinable or not chosen:
            chosen.append(row)
    return chosen


def _join(rows: Sequence[Record]) -> Record:
    if len(rows) == 1:
        return rows[0]
    order = sorted(
        (seed, at, i) for at, row in enumerate(rows) for i, seed in enumerate(row["seeds"])
    )
    joined = {key: value for key, value in rows[0].items() if key != "model_sha256"}
    joined["seeds"] = [seed for seed, _, _ in order]
    for name in METRIC_TABLES:
        joined[name] = summarise(
            [{m: s["values"][i] for m, s in rows[at][name].items()} for _, at, i in order]
        )
    for name in _LISTS_BY_SEED:
        joined.pop(name, None)
        if all(name in row for row in rows):
            joined[name] = [rows[at][name][i] for _, at, i in order]
    joined["seconds_per_round"] = statistics.median(row["seconds_per_round"] for row in rows)
    joined["command"] = "\n".join(row["command"] for row in rows)
    return joined


@dataclass(frozen=True, kw_only=True)
class RunRow(Result):
    """Figures of one run with default or other settings, seeds pooled, as tables read them."""

    @staticmethod
    def from_record(row: Record) -> RunRow:
        """Read a row, leaving out which code made it and whether it is quick."""
        figures = {
            key: value for key, value in row.items() if key not in ("method_checksum", "quick")
        }
        result = Result.from_json(figures, f"The row of {row['command']}")
        return RunRow(**{field.name: getattr(result, field.name) for field in fields(Result)})

    @property
    def noise(self) -> float:
        """Strength of the noise on uploads, 0 without."""
        return float(self.privacy["noise"]) if self.privacy else 0.0

    @property
    def has_defaults(self) -> bool:
        """Whether the method ran with its default settings and without noise."""
        return not self.settings and self.privacy is None

    def mean(self, metric: str) -> float:
        """Mean over seeds at the best validation round, under the protocol's own ranking."""
        return self.metrics[metric].mean

    def on_seeds(self, seeds: set[int]) -> RunRow:
        """The same row with the metrics of these seeds only."""
        at = [i for i, seed in enumerate(self.seeds) if seed in seeds]
        metrics = {m: Summary.over([s.values[i] for i in at]) for m, s in self.metrics.items()}
        return replace(self, seeds=[self.seeds[i] for i in at], metrics=metrics)


class CurveRow(NamedTuple):
    """Figures of a run after every round, mean over seeds."""

    method: str
    data: str
    protocol: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    validation: Mapping[str, list[float]]
    test: Mapping[str, list[float]]
    identity: Hashable

    @staticmethod
    def from_record(row: Record) -> CurveRow:
        about = row["method"], row["data"], row["protocol"], row["settings"], tuple(row["seeds"])
        curves = row["curves"]
        return CurveRow(*about, curves["validation"], curves["test"], row_identity(row))


def _is_run(row: Record) -> bool:
    return "metrics" in row and "curves" not in row


@dataclass(frozen=True)
class Results:
    """All rows of a results folder, seeds pooled."""

    runs: Sequence[RunRow] = ()
    curves: Sequence[CurveRow] = ()
    records: Mapping[str, Sequence[Record]] = field(default_factory=dict)
    """Rows that are not runs, by the name of their file."""
    checksums: Mapping[str, set[str]] = field(default_factory=dict)
    """Checksums of the arithmetic that made the runs, by method."""

    @staticmethod
    def from_records(stores: Mapping[str, Sequence[Record]]) -> Results:
        """Sort the rows of several files into runs, curves and others."""
        runs = pool_seeds(row for rows in stores.values() for row in rows if _is_run(row))
        curves = pool_seeds(row for rows in stores.values() for row in rows if "curves" in row)
        others = {
            name: pool_seeds(row for row in rows if not {"metrics", "curves"} & set(row))
            for name, rows in stores.items()
        }
        checksums: dict[str, set[str]] = {}
        for row in runs:
            made_by = {row["method_checksum"]} if row.get("method_checksum") else set()
            checksums.setdefault(row["method"], set()).update(made_by)
        return Results(
            [RunRow.from_record(row) for row in runs],
            [CurveRow.from_record(row) for row in curves],
            others,
            checksums,
        )

    def of(self, store: str) -> list[Record]:
        """Rows of one file that are not runs."""
        return list(self.records.get(store, ()))

    def default_runs(self) -> list[RunRow]:
        """Runs with default settings and without noise, by method and data set."""
        return sort_by_method([row for row in self.runs if row.has_defaults])

    def commands(self) -> list[str]:
        """Commands that made the rows, each once."""
        runs = [row.command for row in self.runs]
        others = [row["command"] for rows in self.records.values() for row in rows]
        return list(dict.fromkeys(line for one in (*runs, *others) for line in one.splitlines()))


def read_results(folder: Path, stores: Iterable[str], quick: bool = False) -> Results:
    """Rows of the files named in ``stores``: only quick rows, or only the others."""
    found = {name: read_rows(folder / f"{name}.jsonl") for name in stores}
    return Results.from_records(
        {
            name: [row for row in rows if bool(row.get("quick")) == quick]
            for name, rows in found.items()
        }
    )


def on_common_seeds(rows: Sequence[RunRow]) -> list[RunRow]:
    """Rows to compare with each other, with the figures of the seeds that all of them have. Rows
    without a common seed stay as they are."""
    common = set.intersection(*(set(row.seeds) for row in rows)) if rows else set()
    return [row.on_seeds(common) if common else row for row in rows]


T = TypeVar("T")
RowT = TypeVar("RowT", RunRow, CurveRow)


def data_place(data: str) -> int:
    """Sort key of a data set in tables."""
    return DATA_ORDER.index(data) if data in DATA_ORDER else len(DATA_ORDER)


def sort_by_method(rows: Sequence[RowT]) -> list[RowT]:
    """Rows of registered methods, by method as registered, then by data set."""
    order = list(METHODS)
    registered = [row for row in rows if row.method in order]
    return sorted(registered, key=lambda row: (order.index(row.method), data_place(row.data)))


def select(rows: Iterable[T], **wanted: Any) -> list[T]:
    """Rows whose attributes have these values."""
    return [row for row in rows if all(getattr(row, k) == value for k, value in wanted.items())]


def distinct(rows: Iterable[Any], attribute: str) -> list[Any]:
    """Values of an attribute, each once, in order of appearance."""
    return list(dict.fromkeys(getattr(row, attribute) for row in rows))


def most_seeds(rows: Sequence[RowT]) -> RowT | None:
    """The row with most seeds, the last of several."""
    return max(reversed(rows), key=lambda row: len(row.seeds)) if rows else None
