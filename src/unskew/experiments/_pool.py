"""Rows of one run with different seeds, as one row: seeds may be added without running all again.

Alternatives were a row per seed, which would make every table collect and every command short, and
one row for exactly the seeds asked for, which would run old seeds again whenever one is added.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from typing import Any

from unskew.runs.results import summarise

TABLES = ("metrics", "last_round", "sampled99", "sampled99_last_round")
_BY_SEED = ("best_rounds", "model_sha256_per_seed")


def run_of(command: str) -> str:
    """A command without its seeds."""
    return re.sub(r" --seeds \S+", "", command)


def pooled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per run: the one with most seeds, and whichever others have none of them; of code
    known to be different, only one. Peak memory is that of the row made last: it says what today's
    engine needs, whatever the seeds."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(run_of(row["command"]), []).append(row)
    return [_joined(_chosen(group)) | _memory(group) for group in runs.values()]


def _memory(group: Sequence[dict[str, Any]]) -> dict[str, float]:
    measured = [row["peak_rss_mb"] for row in group if row.get("peak_rss_mb")]
    return {"peak_rss_mb": measured[-1]} if measured else {}


def _chosen(group: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last of those with most seeds comes first."""
    chosen: list[dict[str, Any]] = []
    late_first = sorted(enumerate(group), key=lambda at: (-len(at[1].get("seeds", ())), -at[0]))
    for _, row in late_first:
        seen = {seed for one in chosen for seed in one.get("seeds", ())}
        sources = {one.get("source") for one in (*chosen, row)} - {None}
        apart = "metrics" in row and seen.isdisjoint(row["seeds"]) and len(sources) <= 1
        chosen += [row] if apart or not chosen else []
    return chosen


def on_common_seeds(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that are compared with each other, with the figures of the seeds that all of them have:
    one's luck with its draws is then everyone's. As they are where they have no seed in common."""
    common = set.intersection(*(set(row["seeds"]) for row in rows)) if rows else set()
    return [_of_seeds(row, common) if common else row for row in rows]


def _of_seeds(row: dict[str, Any], seeds: set[int]) -> dict[str, Any]:
    kept = [at for at, seed in enumerate(row["seeds"]) if seed in seeds]
    tables = {
        name: summarise([{m: s["values"][at] for m, s in row[name].items()} for at in kept])
        for name in TABLES
        if name in row
    }
    return row | tables | {"seeds": [row["seeds"][at] for at in kept]}


def _joined(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    first = rows[0]
    if len(rows) == 1:
        return first
    order = sorted(
        (seed, at, i) for at, row in enumerate(rows) for i, seed in enumerate(row["seeds"])
    )
    joined = {key: value for key, value in first.items() if key != "model_sha256"}
    joined["seeds"] = [seed for seed, _, _ in order]
    for name in TABLES:
        values = [
            {metric: summary["values"][i] for metric, summary in rows[at][name].items()}
            for _, at, i in order
        ]
        joined[name] = summarise(values)
    for name in _BY_SEED:
        joined.pop(name, None)
        if all(name in row for row in rows):
            joined[name] = [rows[at][name][i] for _, at, i in order]
    joined["seconds_per_round"] = statistics.median(row["seconds_per_round"] for row in rows)
    joined["command"] = "\n".join(row["command"] for row in rows)
    return joined
