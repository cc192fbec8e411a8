"""Convergence: every federated method's quality on test, round by round."""

from __future__ import annotations

from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._chart import Chart, Panel, Series
from unskew.experiments.tables._plan import (
    Plan,
    Row,
    Stores,
    Table,
    by_protocol,
    distinct,
    having,
    in_order,
    latest,
    markdown_table,
    plain,
)
from unskew.experiments.tables.space import FORMULAS

_CLOSE = 0.95


def cells(plan: Plan) -> list[Cell]:
    return [
        plan.cell(method, source, protocol)
        for source in plan.sources()
        for protocol in plan.protocols
        for method in plan.methods or FORMULAS
    ]


def charts(stores: Stores) -> dict[str, Chart]:
    """A chart per protocol: a panel per data set and metric."""
    rows, made = _rows(stores), {}
    for protocol in distinct(rows, "protocol"):
        same = having(rows, protocol=protocol)
        panels = [
            Panel(
                f"{source}, {metric.upper()}", "round", metric.upper(), _lines(same, source, metric)
            )
            for source in distinct(same, "data")
            for metric in ("hr@10", "ndcg@10")
        ]
        title = f"Convergence, protocol {protocol}"
        made[f"convergence-{protocol}"] = Chart(title, tuple(panels))
    return made


def markdown(stores: Stores) -> str:
    return by_protocol(_table, _rows(stores))


def rounds_to(values: list[float], share: float = _CLOSE) -> int:
    """The first round at this share of the best value."""
    return next(at for at, value in enumerate(values, 1) if value >= share * max(values))


def _table(rows: list[Row], protocol: str) -> str:
    data, lines = distinct(rows, "data"), []
    for method in distinct(rows, "method"):
        found = [latest(having(rows, method=method, data=source)) for source in data]
        curves = [None if row is None else row["curves"]["test"]["ndcg@10"] for row in found]
        lines.append(
            [method, *("–" if c is None else f"{rounds_to(c)} / {len(c)}" for c in curves)]
        )
    return markdown_table(["method", *data], lines)


def _rows(stores: Stores) -> list[Row]:
    return [row for row in plain(in_order(stores["curves"])) if row["method"] in FORMULAS]


def _lines(rows: list[Row], source: str, metric: str) -> tuple[Series, ...]:
    lines = []
    for method in distinct(rows, "method"):
        row = latest(having(rows, method=method, data=source))
        if row is not None:
            values = row["curves"]["test"][metric]
            lines.append(Series(method, method, range(1, len(values) + 1), values))
    return tuple(lines)


TABLE = Table(
    "convergence",
    "Convergence",
    "The round in which a method first has 95 % of its best test NDCG@10 / the rounds it had.",
    "main",
    cells,
    markdown,
    charts,
    curves=True,
)
