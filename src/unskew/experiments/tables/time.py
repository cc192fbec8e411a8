"""Time per round."""

from __future__ import annotations

from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._plan import (
    Plan,
    Stores,
    Table,
    distinct,
    having,
    latest,
    markdown_table,
    plain,
)
from unskew.experiments.tables.space import FORMULAS
from unskew.experiments.tables.speed import seconds

_COLUMNS = ("filmtrust", "ml-100k", "ml-1m", "hetrec2011", "lastfm-2k")
_PUBLISHED = {
    "fedmf": ".5069 .4831 .7074 .7425 .5455",
    "fedncf": ".7099 .6682 1.4821 1.0285 .7360",
    "pfedgraph": "5.6346 5.1800 185.9420 25.3069 10.1281",
    "gpfedrec": "3.0124 2.4704 32.5816 10.2724 6.9336",
    "pfedrec": "1.2848 1.4508 3.5830 2.6183 2.0975",
    "fedrap": ".6217 .6354 4.1745 2.7195 1.7354",
    "pfedclr": ".6337 .6689 1.2234 1.7539 1.0926",
}


def cells(plan: Plan) -> list[Cell]:
    """Runs of the main table under one protocol: the other takes the same time."""
    return [
        plan.cell(method, source, plan.protocols[0])
        for source in plan.sources()
        for method in plan.methods or FORMULAS
    ]


def published(method: str, data: str) -> float | None:
    if method not in _PUBLISHED or data not in _COLUMNS:
        return None
    return float(_PUBLISHED[method].split()[_COLUMNS.index(data)])


def markdown(stores: Stores) -> str:
    rows = [row for row in plain(stores["main"]) if row["method"] in FORMULAS]
    data, lines = distinct(rows, "data"), []
    for method in FORMULAS:
        cells = []
        for source in data:
            row = latest(having(rows, method=method, data=source))
            printed = published(method, source)
            own = seconds(stores, method, source) or (row and row["seconds_per_round"])
            text = "–" if own is None else f"{own:.3g}"
            cells.append(text + (f" ({printed:.4g})" if printed else ""))
        lines.append([method, *cells])
    return markdown_table(["seconds per round", *data], lines) if rows else ""


TABLE = Table(
    "time",
    "Time",
    "Ours is the time in which this machine simulates all clients of a round and the server, from "
    "`make bench` where that measured it, otherwise from runs, which may have shared the machine "
    "with others; in brackets what the paper prints, its slowest client and the server, on a GPU.",
    "main",
    cells,
    markdown,
)
