"""The item tables that clients upload, as the server sees them, method by method."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from unskew.engine import Federation
from unskew.experiments._ldp import COMPARED
from unskew.experiments.tables._chart import Chart
from unskew.experiments.tables._pictures import (
    chosen_items,
    clients_of,
    federation,
    item_panel,
    panel_of,
    picture,
    plane,
)
from unskew.experiments.tables._plan import Plan, Row, Stores, Table, Task
from unskew.methods.gpfedrec import own_tables
from unskew.types import Cohort, Float32, Int64, Split, Upload


def tasks(plan: Plan) -> list[Task]:
    methods = tuple(m for m in plan.methods or COMPARED if m in COMPARED)
    return [
        picture("uploads", source, protocol, plan, (method,), partial(draw, method))
        for source in plan.sources("ml-100k")
        for protocol in plan.protocols
        for method in methods
    ]


def draw(method: str, split: Split, seed: int, quick: bool) -> Row:
    """The last upload of some clients, placed in the plane."""
    clients = clients_of(split, quick)
    sent = last_uploads(federation(split, method, {}, seed, quick), clients)
    panels = []
    for client, table in sorted(sent.items()):
        items, n_own = chosen_items(split, client, seed, quick)
        places = plane(table[items], seed, quick)
        panels.append(panel_of(f"{method}, client {client}", places, n_own, len(items)))
    return {"method": method, "panels": panels}


def last_uploads(runner: Federation, clients: Int64) -> dict[int, Float32]:
    """The item table each of these clients sent last, for those that sent one."""
    seen: dict[int, Float32] = {}
    at: dict[str, Any] = {}

    def look(upload: Upload, cohort: Cohort) -> Upload:
        for place in np.flatnonzero(np.isin(cohort.users, clients)).tolist():
            if upload.weight[place] > 0:
                table = _table(at["download"], upload, place, int(cohort.users[place]))
                seen[int(cohort.users[place])] = table
        return upload

    watched = Federation(runner.method, runner.split, runner.seed, transform=look)
    state = watched.start()
    for _ in range(watched.method.config.rounds):
        at["download"] = watched.method.download(state.server)
        watched.step(state)
    return seen


def _table(download: Any, upload: Upload, place: int, user: int) -> Float32:
    """Q_g + what was sent; of GPFedRec r_u + f (g - r_u) + what was sent."""
    rows = upload.rows
    run = slice(rows.indptr[place], rows.indptr[place + 1])
    table: Float32 = download.Q.copy()
    if "scale" in download._fields and upload.dense.shape[1] == 1:
        own = own_tables(download, np.array([user])).reshape(table.shape)
        table += own * (1 - upload.dense[place, 0])
    table[rows.items[run]] += rows.values[run]
    return table


def charts(stores: Stores) -> dict[str, Chart]:
    grouped: dict[str, list[Row]] = {}
    for row in stores["uploads"]:
        grouped.setdefault(f"{row['data']}-{row['protocol']}", []).append(row)
    return {
        f"uploads-{where}": Chart(
            f"Uploaded item tables (t-SNE), {rows[0]['data']}, protocol {rows[0]['protocol']}",
            tuple(item_panel(panel) for row in rows for panel in row["panels"]),
            columns=max(len(row["panels"]) for row in rows) or 1,
        )
        for where, rows in grouped.items()
        if any(row["panels"] for row in rows)
    }


TABLE = Table(
    "uploads",
    "Uploaded item tables",
    "t-SNE of the tables clients sent last. What such a picture does not show, the difference from "
    "the server's table does: see [privacy.md](privacy.md).",
    "uploads",
    tasks,
    charts=charts,
)
