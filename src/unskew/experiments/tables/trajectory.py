"""The paths of user vectors through training, under each variant of the ablation."""

from __future__ import annotations

from functools import partial
from typing import Any

from unskew.experiments.tables._chart import Chart
from unskew.experiments.tables._pictures import picture, trail_panel, trails
from unskew.experiments.tables._plan import Plan, Stores, Table, Task
from unskew.experiments.tables.ablation import VARIANTS

PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedMF w/o GA": ("fedmf", {"aggregate_from": 0}),
    **VARIANTS,
}


def tasks(plan: Plan) -> list[Task]:
    methods = tuple(dict.fromkeys(method for method, _ in PATHS.values()))
    return [
        picture("trajectory", source, protocol, plan, methods, partial(trails, PATHS))
        for source in plan.sources("filmtrust")
        for protocol in plan.protocols
    ]


def charts(stores: Stores) -> dict[str, Chart]:
    return {
        f"trajectory-{row['data']}-{row['protocol']}": Chart(
            f"Paths of user vectors (t-SNE), {row['data']}, protocol {row['protocol']}",
            tuple(trail_panel(panel) for panel in row["panels"]),
        )
        for row in stores["trajectory"]
        if row["picture"] == "trajectory"
    }


TABLE = Table(
    "trajectory",
    "Paths of user vectors",
    "t-SNE of some clients' vectors after every round; the larger mark is the last round. GA: "
    "global aggregation.",
    "trajectory",
    tasks,
    charts=charts,
)
