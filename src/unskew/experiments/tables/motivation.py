"""Motivation: FedMF with aggregation from a later round on, or never, for 140 rounds."""

from __future__ import annotations

from functools import partial

from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._chart import Chart, Panel, Series
from unskew.experiments.tables._pictures import key_of, picture, trail_panel, trails
from unskew.experiments.tables._plan import (
    QUICK_ROUNDS,
    Plan,
    Row,
    Stores,
    Table,
    Task,
    distinct,
    having,
    markdown_table,
    shown,
)

ROUNDS = 140
STANDARD = 100
FROM = (0, 1, 20, 50, 100)
"""Aggregation from this round on, 0: never. (The paper's text does not name its rounds.)"""


def label(first: int) -> str:
    return "LT w/o GA" if first == 0 else f"w/ GA ({first}-)"


def cells(plan: Plan) -> list[Cell | Task]:
    rounds, starts = (2 * QUICK_ROUNDS, (0, 1, 4)) if plan.quick else (ROUNDS, FROM)
    runs: list[Cell | Task] = []
    for source in plan.sources("filmtrust"):
        for protocol in plan.protocols:
            settings = [{"rounds": rounds, "aggregate_from": first} for first in starts]
            runs += [plan.cell("fedmf", source, protocol, **given) for given in settings]
            variants = {label(g["aggregate_from"]): ("fedmf", g) for g in settings}
            make = partial(trails, variants)
            runs.append(picture("motivation", source, protocol, plan, ("fedmf",), make))
    return runs


def markdown(stores: Stores) -> str:
    """The figures after the usual number of rounds and after the extra ones."""
    rows, lines = _rows(stores), []
    for row in rows:
        test, valid = (row["curves"][part] for part in ("test", "validation"))
        at = min(STANDARD, len(test["hr@10"])) - 1
        figures = [shown(part[m][i]) for i in (at, -1) for part in (valid, test) for m in part]
        name = label(row["settings"]["aggregate_from"])
        lines.append([row["data"], row["protocol"], name, *figures])
    ends = (f"round {STANDARD}", "last round")
    kinds = [f"{part} {m}" for part in ("validation", "test") for m in ("HR@10", "NDCG@10")]
    head = ["data", "protocol", "FedMF", *(f"{kind}, {end}" for end in ends for kind in kinds)]
    return markdown_table(head, lines) if lines else ""


def charts(stores: Stores) -> dict[str, Chart]:
    rows, made = _rows(stores), {}
    for source in distinct(rows, "data"):
        for protocol in distinct(having(rows, data=source), "protocol"):
            same = having(rows, data=source, protocol=protocol)
            panels = [
                Panel(f"{part}", "round", metric.upper(), _lines(same, part, metric))
                for part in ("validation", "test")
                for metric in ("hr@10", "ndcg@10")
            ]
            title = f"Aggregation from a later round on, {source}, protocol {protocol}"
            made[f"motivation-{source}-{protocol}"] = Chart(title, tuple(panels))
    for row in stores["motivation"]:
        if row.get("picture") == "motivation":
            where = f"{row['data']}-{row['protocol']}"
            panels = [trail_panel(panel) for panel in row["panels"]]
            title = f"Paths of user vectors (t-SNE), {row['data']}, protocol {row['protocol']}"
            made[f"motivation-paths-{where}"] = Chart(title, tuple(panels))
    return made


def _rows(stores: Stores) -> list[Row]:
    rows = [row for row in stores["curves"] if "aggregate_from" in row["settings"]]
    return sorted(rows, key=lambda row: row["settings"]["aggregate_from"])


def _lines(rows: list[Row], part: str, metric: str) -> tuple[Series, ...]:
    lines = []
    for row in rows:
        values, name = row["curves"][part][metric], label(row["settings"]["aggregate_from"])
        lines.append(Series(name, key_of(name), range(1, len(values) + 1), values))
    return tuple(lines)


TABLE = Table(
    "motivation",
    "Motivation",
    "FedMF trained locally (LT) with global aggregation (GA) from some round on, or without; HR@10 "
    "and NDCG@10 on validation and test.",
    "motivation",
    cells,
    markdown,
    charts,
    curves=True,
)
