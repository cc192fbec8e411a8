"""The statistics of the data sets, as the federation has them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from unskew.data import info, load
from unskew.experiments.tables._plan import Plan, Row, Stores, Table, Task, markdown_table

PUBLISHED = {
    "filmtrust": (1002, 2042, 33372),
    "ml-100k": (943, 1682, 100000),
    "ml-1m": (6040, 3706, 1000209),
    "hetrec2011": (2113, 10109, 855598),
    "lastfm-2k": (1600, 12454, 185650),
}
"""Users, items and interactions as the paper prints them."""


def statistics_tasks(plan: Plan) -> list[Task]:
    return [_task(source) for source in plan.sources()]


def _task(source: str) -> Task:
    def make(data_dir: Path | None) -> Row:
        found = dataclasses.asdict(info(load(source, data_dir=data_dir)))
        return {"data": source, "settings": {}, "seeds": []} | found

    return Task(f"unskew data info {source} --json", (), make)


def markdown(stores: Stores) -> str:
    lines = []
    for row in stores["datasets"]:
        counts = [row["n_users"], row["n_items"], row["n_rows"]]
        printed = PUBLISHED.get(row["data"])
        shown = [f"{count:,}" for count in counts]
        if printed is not None:
            shown = [f"{c:,} ({p:,})" for c, p in zip(counts, printed, strict=True)]
        lines.append([row["data"], *shown, f"{row['n_pairs']:,}", f"{row['sparsity']:.2%}"])
    head = ["data", "users", "items", "interactions", "distinct pairs", "sparsity"]
    return markdown_table(head, lines) if lines else ""


TABLE = Table(
    "datasets",
    "Data sets",
    "In brackets what the paper prints. Distinct (user, item) pairs are what `leak-free` keeps.",
    "datasets",
    statistics_tasks,
    markdown,
)
