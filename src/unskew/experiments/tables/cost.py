"""Cost: what a method adds to FedMF by the paper's analysis, and what is really sent."""

from __future__ import annotations

from unskew.experiments.tables._plan import (
    Row,
    Stores,
    Table,
    distinct,
    having,
    latest,
    markdown_table,
    plain,
)
from unskew.experiments.tables.space import FORMULAS
from unskew.experiments.tables.time import cells

ANALYSIS = {
    "fedmf": ("O(k(m+1)d)", "O((m+1)d)", "O(nmd)", "O((n+1)md)", "O(2nmd)"),
    "fedncf": ("+ O(kLd²)", "+ O(Ld²)", "+ O(nLd²)", "+ O((n+1)Ld²)", "+ O(2nLd²)"),
    "pfedgraph": ("–", "–", "+ O(n⁴ + 2n²md)", "+ O(n² + n²md)", "–"),
    "gpfedrec": ("+ O(kLd²)", "+ O(Ld²)", "+ O(2n²md)", "+ O(n² + n²md)", "–"),
    "pfedrec": ("+ O(kLd²)", "+ O(Ld²)", "–", "–", "–"),
    "fedrap": ("+ O(kmd)", "+ O(md)", "–", "–", "–"),
    "pfedclr": ("+ O(k(m+d)r)", "+ O((m+d)r)", "–", "–", "–"),
}
"""Client time and space, server time and space, and communication, as the paper has them."""


def markdown(stores: Stores) -> str:
    rows = [row for row in plain(stores["main"]) if row["method"] in FORMULAS]
    head = ["by the paper", "client time", "client space", "server time", "server space", "sent"]
    lines = [[method, *costs] for method, costs in ANALYSIS.items()]
    if not rows:
        return ""
    data = distinct(rows, "data")
    measured = [
        [method, *(_sent(latest(having(rows, method=method, data=name))) for name in data)]
        for method in FORMULAS
    ]
    return (
        markdown_table(head, lines)
        + "\n\nMeasured: KB up / KB down, for one client and round.\n\n"
        + markdown_table(["method", *data], measured)
    )


def _sent(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{row['bytes_up'] / 1000:.1f} / {row['bytes_down'] / 1000:.1f}"


TABLE = Table(
    "cost",
    "Cost",
    "The paper's analysis: FedMF's costs and what each method adds; n clients, m items, k samples "
    "of a client, L layers. Ours sends the rows a client changed, not whole tables. (The n⁴ of "
    "pFedGraph is a general solver's; its problem is a projection onto a simplex, O(n² log n).)",
    "main",
    cells,
    markdown,
)
