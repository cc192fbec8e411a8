"""PFedCLR at every rank of its low-rank matrices, and the space each costs a client."""

from __future__ import annotations

from typing import Any

from unskew.experiments.tables._chart import Chart
from unskew.experiments.tables._plan import Row, Stores, Table
from unskew.experiments.tables._sweep import sweep_cells, sweep_charts, sweep_markdown, sweep_rows
from unskew.experiments.tables.space import megabytes

VALUES = (1, 2, 4, 6, 8, 10, 12)


def overhead(rank: Any, row: Row) -> float:
    """MB on a client beyond FedMF's."""
    n, m = row["users"], row["items"]
    return megabytes("pfedclr", n, m, int(rank))[0] - megabytes("fedmf", n, m)[0]


def markdown(stores: Stores) -> str:
    return sweep_markdown(sweep_rows(stores, "rank", "rank"), "r")


def charts(stores: Stores) -> dict[str, Chart]:
    pairs = sweep_rows(stores, "rank", "rank")
    return sweep_charts(pairs, "rank", "PFedCLR by rank", "rank r", overhead)


TABLE = Table(
    "rank",
    "Rank",
    "PFedCLR by the rank r of its low-rank matrices.",
    "rank",
    lambda plan: sweep_cells(plan, "rank", VALUES),
    markdown,
    charts,
)
