"""FedRefit with each of its parts removed in turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from unskew.experiments._reproduce import Cell

PARTS: dict[str, tuple[tuple[str, str], ...]] = {
    "whole": (),
    "without the next-item fit": (("rounds", "5"),),
    "without fading: all of a history counts the same": (("fast", "1.0"), ("slow", "1.0")),
    "with one pace only": (("fast", "0.8"), ("slow", "0.8")),
    "with the very next item as the only target": (("horizon", "0.0"), ("far_horizon", "0.0")),
    "with one horizon for all fits": (("far_horizon", "0.9"),),
    "forward reading only": (("order", "forward"),),
    "both readings only": (("order", "both"),),
    "without the discount of popular items": (("discount", "0.0"),),
    "without damping popular items in the space": (("item_power", "0.0"),),
    "with a space of 16": (("dim", "16"),),
}
"""What is taken away, and the settings that take it away."""


def parts_cells(data: Sequence[str], seeds: tuple[int, ...]) -> list[Cell]:
    return [
        Cell("fedrefit", source, "leak-free", seeds, settings)
        for source in data
        for settings in PARTS.values()
    ]


def parts_table(rows: Sequence[dict[str, Any]], whole: Sequence[dict[str, Any]]) -> str:
    """NDCG@10 ranking all unseen items; parts down, data sets across, all on the seeds that the
    rows with a part removed have. ``whole``: rows of the method as it comes."""
    data = list(dict.fromkeys(row["data"] for row in rows))
    seeds = {row["data"]: set(row["seeds"]) for row in rows}
    found = {_key(row): row for row in (*whole, *rows)}
    lines = ["| FedRefit | " + " | ".join(data) + " |", "|---|" + "---|" * len(data)]
    for name, settings in PARTS.items():
        values = [_mean(found.get((source, settings)), seeds[source]) for source in data]
        texts = ["–" if value is None else f"{value:.4f}" for value in values]
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _key(row: dict[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    return row["data"], tuple((key, str(value)) for key, value in row["settings"].items())


def _mean(row: dict[str, Any] | None, seeds: set[int]) -> float | None:
    values = [] if row is None else row["metrics"]["ndcg@10"]["values"]
    chosen = [v for s, v in zip((row or {}).get("seeds", ()), values, strict=True) if s in seeds]
    return statistics.fmean(chosen) if chosen else None
