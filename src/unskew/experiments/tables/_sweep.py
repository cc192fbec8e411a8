"""A sweep: PFedCLR at several values of one setting, all else as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from unskew.experiments._pool import on_common_seeds
from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._chart import Chart, Panel, Series
from unskew.experiments.tables._plan import (
    Plan,
    Row,
    Stores,
    by_data,
    by_protocol,
    distinct,
    figure,
    having,
    latest,
    markdown_table,
    shown,
)
from unskew.methods import METHODS

METRICS = {"HR@10": "hr@10", "NDCG@10": "ndcg@10"}


def default(setting: str) -> Any:
    return getattr(METHODS["pfedclr"].Config(), setting)


def sweep_cells(plan: Plan, setting: str, values: Sequence[Any]) -> list[Cell]:
    """The default value is the main table's run: it has no setting of its own."""
    return [
        plan.cell("pfedclr", source, protocol)
        if value == default(setting)
        else plan.cell("pfedclr", source, protocol, **{setting: value})
        for source in plan.sources()
        for protocol in plan.protocols
        for value in plan.grid(values)
    ]


def sweep_rows(stores: Stores, store: str, setting: str) -> list[tuple[Any, Row]]:
    """The sweep's rows with their values; those of a data set on the seeds they all have."""
    found: list[tuple[Any, Row]] = []
    for row in [*stores["main"], *stores[store]]:
        given = row["settings"]
        if row["method"] == "pfedclr" and set(given) <= {setting} and "privacy" not in row:
            found.append((given.get(setting, default(setting)), row))
    # Defaults alone are no sweep.
    swept = dict.fromkeys(_where(row) for value, row in found if value != default(setting))
    pairs: list[tuple[Any, Row]] = []
    for where in swept:
        here = [(value, row) for value, row in found if _where(row) == where]
        alike = on_common_seeds([row for _, row in here])
        pairs += [(value, row) for (value, _), row in zip(here, alike, strict=True)]
    return pairs


def _where(row: Row) -> tuple[str, str]:
    return row["data"], row["protocol"]


def sweep_markdown(pairs: Sequence[tuple[Any, Row]], setting: str) -> str:
    def table(rows: list[Row], protocol: str) -> str:
        values = sorted({value for value, row in pairs if row in rows})
        lines = []
        for source in distinct(rows, "data"):
            for title, metric in METRICS.items():
                cells = [shown(_at(pairs, value, source, protocol, metric)) for value in values]
                lines.append([source, title, *cells])
        return markdown_table(["data", "metric", *(f"{setting} = {v:g}" for v in values)], lines)

    return by_protocol(table, [row for _, row in pairs])


def sweep_charts(
    pairs: Sequence[tuple[Any, Row]],
    name: str,
    title: str,
    label: str,
    overhead: Callable[[Any, Row], float] | None = None,
) -> dict[str, Chart]:
    """A chart per protocol, a panel per data set; values side by side, whatever their distance."""
    charts = {}
    rows = by_data([row for _, row in pairs])
    for protocol in distinct(rows, "protocol"):
        panels = []
        for source in distinct(having(rows, protocol=protocol), "data"):
            here = [(v, r) for v, r in pairs if (r["data"], r["protocol"]) == (source, protocol)]
            values = sorted({value for value, _ in here})
            places = range(len(values))
            series = tuple(
                Series(
                    text,
                    text,
                    places,
                    [_at(here, value, source, protocol, metric) or 0.0 for value in values],
                )
                for text, metric in METRICS.items()
            )
            bars = None
            if overhead is not None:
                extra = [overhead(value, here[0][1]) for value in values]
                bars = Series("extra space on a client, MB", "overhead", places, extra)
            names = tuple(f"{value:g}" for value in values)
            panels.append(Panel(source, label, "HR@10, NDCG@10", series, bars, names))
        charts[f"{name}-{protocol}"] = Chart(f"{title}, protocol {protocol}", tuple(panels))
    return charts


def _at(
    pairs: Sequence[tuple[Any, Row]], value: Any, data: str, protocol: str, metric: str
) -> float | None:
    rows = [row for at, row in pairs if at == value]
    return figure(latest(having(rows, data=data, protocol=protocol)), metric)
