"""The paper's tables and figures, one file each; here is what there is, in the document's order."""

from unskew.experiments.tables import (
    ablation,
    against,
    beta,
    convergence,
    cost,
    datasets,
    efficiency,
    embedding,
    ldp,
    main,
    motivation,
    parts,
    rank,
    skew,
    space,
    speed,
    time,
    trajectory,
    uploads,
)
from unskew.experiments.tables._chart import Chart, Panel, Series
from unskew.experiments.tables._plan import Plan, Row, Stores, Table, Task, in_order, plain

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        datasets.TABLE,
        main.TABLE,
        against.TABLE,
        parts.TABLE,
        ablation.TABLE,
        *ldp.TABLES,
        space.TABLE,
        speed.TABLE,
        time.TABLE,
        cost.TABLE,
        skew.TABLE,
        motivation.TABLE,
        trajectory.TABLE,
        embedding.TABLE,
        uploads.TABLE,
        convergence.TABLE,
        efficiency.TABLE,
        rank.TABLE,
        beta.TABLE,
    )
}
STORES = tuple(dict.fromkeys([*(table.store for table in TABLES.values()), "against", "curves"]))
"""The files that rows are kept in."""

__all__ = [
    "STORES",
    "TABLES",
    "Chart",
    "Panel",
    "Plan",
    "Row",
    "Series",
    "Stores",
    "Table",
    "Task",
    "in_order",
    "plain",
]
