"""Efficiency: quality against space on a client; a bubble's area is the time of a round."""

from __future__ import annotations

from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._chart import Chart, Panel, Series
from unskew.experiments.tables._plan import (
    Plan,
    Row,
    Stores,
    Table,
    distinct,
    having,
    in_order,
    latest,
    plain,
)
from unskew.experiments.tables.space import FORMULAS, megabytes


def cells(plan: Plan) -> list[Cell]:
    return [
        plan.cell(method, source, protocol)
        for source in plan.sources("ml-1m")
        for protocol in plan.protocols
        for method in plan.methods or FORMULAS
    ]


def charts(stores: Stores) -> dict[str, Chart]:
    rows = [row for row in plain(in_order(stores["main"])) if row["method"] in FORMULAS]
    made = {}
    for protocol in distinct(rows, "protocol"):
        same = having(rows, protocol=protocol)
        if len(distinct(same, "method")) < 2:  # nothing to compare with
            continue
        panels = [_panel(having(same, data=source), source) for source in distinct(same, "data")]
        title = f"Efficiency, protocol {protocol}: area is seconds per round"
        made[f"efficiency-{protocol}"] = Chart(title, tuple(panels))
    return made


def _panel(rows: list[Row], source: str) -> Panel:
    slowest = max(row["seconds_per_round"] for row in rows)
    series = []
    for method in distinct(rows, "method"):
        row = latest(having(rows, method=method))
        assert row is not None
        seconds = row["seconds_per_round"]
        client = megabytes(method, row["users"], row["items"])[0]
        figure = row["metrics"]["hr@10"]["mean"]
        sizes = [seconds / slowest] if slowest else [1.0]
        series.append(Series(method, method, [client], [figure], "points", sizes))
    return Panel(source, "parameters on a client, MB", "HR@10", tuple(series))


TABLE = Table(
    "efficiency",
    "Efficiency",
    "Each method's quality, space on a client, and time per round relative to the slowest, as its "
    "run took it (which may have shared the machine; the table of times has those of an idle one).",
    "main",
    cells,
    charts=charts,
)
