"""PFedCLR at every learning rate of its low-rank matrices."""

from __future__ import annotations

from unskew.experiments.tables._chart import Chart
from unskew.experiments.tables._plan import Stores, Table
from unskew.experiments.tables._sweep import sweep_cells, sweep_charts, sweep_markdown, sweep_rows

VALUES = (0.1, 0.01, 0.001, 0.0001, 0)


def markdown(stores: Stores) -> str:
    return sweep_markdown(sweep_rows(stores, "beta", "buffer_rate"), "β")


def charts(stores: Stores) -> dict[str, Chart]:
    pairs = sweep_rows(stores, "beta", "buffer_rate")
    return sweep_charts(pairs, "beta", "PFedCLR by learning rate of A and B", "β")


TABLE = Table(
    "beta",
    "Learning rate of the buffer",
    "PFedCLR by the learning rate β of its low-rank matrices. (At β = 0 the buffer stays zero.)",
    "beta",
    lambda plan: sweep_cells(plan, "buffer_rate", VALUES),
    markdown,
    charts,
)
