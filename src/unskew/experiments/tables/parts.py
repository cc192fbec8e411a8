"""FedRefit with each of its parts removed in turn; the parts stand in ``_parts``."""

from __future__ import annotations

from unskew.experiments._parts import PARTS, parts_cells, parts_table
from unskew.experiments._reproduce import Cell
from unskew.experiments.tables._plan import Plan, Stores, Table, by_data, having, plain


def cells(plan: Plan) -> list[Cell]:
    chosen = plan.grid([*PARTS.values()])
    made = parts_cells(plan.sources(), plan.seeds)
    return [cell for cell in made if cell.settings in chosen]


def markdown(stores: Stores) -> str:
    whole = having(plain(stores["main"]), method="fedrefit", protocol="leak-free")
    return parts_table(by_data(stores["parts"]), whole) if stores["parts"] else ""


TABLE = Table(
    "parts",
    "FedRefit, each part removed in turn",
    "`leak-free`, all unseen items ranked, NDCG@10 ([fedrefit.md](fedrefit.md)).",
    "parts",
    cells,
    markdown,
)
