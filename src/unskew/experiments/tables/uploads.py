"""The item tables that clients upload, as the server sees them, method by method."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from unskew.audit import auc_of_one
from unskew.engine import Federation
from unskew.experiments._ldp import BESIDE, COMPARED
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
    methods = tuple(m for m in (*BESIDE, *COMPARED) if m in (plan.methods or (*BESIDE, *COMPARED)))
    return [
        picture("uploads", source, protocol, plan, (method,), partial(draw, method))
        for source in plan.sources("ml-100k")
        for protocol in plan.protocols
        for method in methods
    ]


def draw(method: str, split: Split, seed: int, quick: bool) -> Row:
    """The last upload of some clients, placed in the plane, and what an attack makes of it."""
    clients = clients_of(split, quick)
    sent = last_uploads(federation(split, method, {}, seed, quick), clients)
    panels = []
    for client, (table, change) in sorted(sent.items()):
        items, n_own = chosen_items(split, client, seed, quick)
        places = plane(table[items], seed, quick)
        owned = np.isin(np.arange(split.n_items), split.train.of(client))
        title = f"{method}, client {client}: attack's AUC {auc_of_one(change, owned):.2f}"
        panels.append(panel_of(title, places, n_own, len(items)))
    return {"method": method, "panels": panels}


def last_uploads(runner: Federation, clients: Int64) -> dict[int, tuple[Float32, Float32]]:
    """The item table each of these clients sent last, for those that sent one, and by how much it
    differs from what the server had sent."""
    seen: dict[int, tuple[Float32, Float32]] = {}
    at: dict[str, Any] = {}

    def look(upload: Upload, cohort: Cohort) -> Upload:
        for place in np.flatnonzero(np.isin(cohort.users, clients)).tolist():
            user, rows = int(cohort.users[place]), upload.rows
            if upload.weight[place] > 0 and rows.indptr[place] < rows.indptr[place + 1]:
                change = _change(upload, place, cohort.n_items)
                seen[user] = _table(at["download"], upload, place, user) + change, change
        return upload

    watched = Federation(runner.method, runner.split, runner.seed, transform=look)
    state = watched.start()
    for _ in range(watched.method.config.rounds):
        at["download"] = watched.method.download(state.server)
        watched.step(state)
    return seen


def _change(upload: Upload, place: int, n_items: int) -> Float32:
    """The rows that a client sent, zero elsewhere."""
    rows = upload.rows
    run = slice(rows.indptr[place], rows.indptr[place + 1])
    change = np.zeros((n_items, rows.values.shape[1]), np.float32)
    change[rows.items[run]] = rows.values[run]
    return change


def _table(download: Any, upload: Upload, place: int, user: int) -> Float32:
    """What the rows sent are the difference from: Q_g; of GPFedRec r_u + f (g - r_u); nothing where
    they are no difference (FedRefit)."""
    if "Q" not in download._fields:
        return np.zeros((1, 1), np.float32)
    table: Float32 = download.Q.copy()
    if "scale" in download._fields and upload.dense.shape[1] == 1:
        own = own_tables(download, np.array([user])).reshape(table.shape)
        table += own * (1 - upload.dense[place, 0])
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
    "the server's table does: beside each stands how often one of the client's items scores above "
    "another in an attack on this very upload; see [privacy.md](privacy.md).",
    "uploads",
    tasks,
    charts=charts,
)
