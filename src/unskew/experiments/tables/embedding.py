"""User and item vectors of FedMF and PFedCLR, as single clients hold them at the end."""

from __future__ import annotations

from typing import Any

import numpy as np

from unskew.engine import Federation, State
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
from unskew.types import Float32, Rows, Split


def tasks(plan: Plan) -> list[Task]:
    return [
        picture("embedding", source, protocol, plan, ("fedmf", "pfedclr"), draw)
        for source in plan.sources("ml-100k")
        for protocol in plan.protocols
    ]


def draw(split: Split, seed: int, quick: bool) -> Row:
    """Per client: FedMF's Q_u, PFedCLR's Q_u, A_u B_u, and Q_u + A_u B_u, with p_u."""
    runs = {name: federation(split, name, {}, seed, quick) for name in ("fedmf", "pfedclr")}
    states = {name: _trained(runner) for name, runner in runs.items()}
    panels = []
    for client in clients_of(split, quick).tolist():
        items, n_own = chosen_items(split, client, seed, quick)
        views = _views(states, client)
        for title, (table, user) in views.items():
            points = [table[items]] if user is None else [table[items], user[None]]
            places = plane(np.concatenate(points), seed, quick)
            panels.append(panel_of(f"client {client}: {title}", places, n_own, len(items)))
    return {"panels": panels}


def charts(stores: Stores) -> dict[str, Chart]:
    return {
        f"embedding-{row['data']}-{row['protocol']}": Chart(
            f"Vectors of items and users (t-SNE), {row['data']}, protocol {row['protocol']}",
            tuple(item_panel(panel) for panel in row["panels"]),
            columns=4,
        )
        for row in stores["embedding"]
    }


def _trained(runner: Federation) -> State:
    state = runner.start()
    for _ in range(runner.method.config.rounds):
        runner.step(state)
    return state


def _views(states: dict[str, State], client: int) -> dict[str, tuple[Float32, Any]]:
    backbone, ours = (_held(states[name], client) for name in ("fedmf", "pfedclr"))
    Q = ours[0]
    A = np.zeros((len(Q), ours[1].A.values.shape[1]), np.float32)
    A[ours[1].A.items] = ours[1].A.values
    AB = A @ ours[1].B[0]
    return {
        "FedMF, Q": (backbone[0], backbone[1].p[0]),
        "PFedCLR, Q": (Q, ours[1].p[0]),
        "PFedCLR, A B": (AB, None),
        "PFedCLR, Q + A B": (Q + AB, ours[1].p[0]),
    }


def _held(state: State, client: int) -> tuple[Float32, Any]:
    """The item table a client holds, and its private state."""
    private = state.devices.take(np.array([client]))
    download = state.devices.downloads[int(state.devices.version[client])]
    table, rows = download.Q.copy(), private.Q
    assert isinstance(rows, Rows)
    table[rows.items] = rows.values
    return table, private


TABLE = Table(
    "embedding",
    "Vectors of items and users",
    "t-SNE of what single clients hold after the last round.",
    "embedding",
    tasks,
    charts=charts,
)
