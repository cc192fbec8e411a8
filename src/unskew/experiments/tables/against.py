"""One method against the others, user by user; the test stands in ``_against``."""

from __future__ import annotations

from unskew.experiments._against import against_table
from unskew.experiments.tables._plan import Stores, Table, by_data, having
from unskew.experiments.tables.main import cells


def markdown(stores: Stores) -> str:
    rows = having(stores["against"], protocol="leak-free")
    return against_table(by_data(rows), "leak-free") if rows else ""


TABLE = Table(
    "against",
    "One method against every other",
    "`leak-free`, all unseen items ranked, NDCG@10. Paired Wilcoxon test over users on values "
    "averaged over seeds (in brackets how many), Holm's correction within a data set; intervals by "
    "bootstrap.",
    "main",
    cells,
    markdown,
)
