"""The main table: every method on every data set, under the paper's protocol and leak-free."""

from __future__ import annotations

from unskew.experiments._reproduce import Cell, main_table
from unskew.experiments.tables._plan import Plan, Stores, Table, in_order, plain
from unskew.methods import METHODS


def cells(plan: Plan) -> list[Cell]:
    return [
        plan.cell(method, source, protocol)
        for source in plan.sources()
        for protocol in plan.protocols
        for method in plan.methods or METHODS
    ]


ABOUT = {
    "paper": """HR@10 / NDCG@10 among 99 sampled candidates, and in brackets what the PFedCLR paper
prints. These figures leak the held-out item ([protocols.md](protocols.md)).""",
    "leak-free": """HR@10 / NDCG@10 ranking all unseen items · the same among 99 sampled
candidates.""",
    "time": """One moment for everybody, nothing after it in training; otherwise as
`leak-free`.""",
}


def markdown(stores: Stores) -> str:
    rows = plain(in_order(stores["main"]))
    present = [name for name in ABOUT if any(row["protocol"] == name for row in rows)]
    return "\n\n".join(
        f"### Protocol `{name}`\n\n{ABOUT[name]}\n\n{main_table(rows, name)}" for name in present
    )


TABLE = Table(
    "main",
    "Methods compared",
    "Federated methods, and central ones for comparison.",
    "main",
    cells,
    markdown,
    curves=True,
)
