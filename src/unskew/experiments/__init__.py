"""The tables and figures of the paper: cells, rows and pages."""

from unskew.experiments._against import against_table, comparison, users_folder
from unskew.experiments._document import document
from unskew.experiments._paper import DATASETS, paper_value
from unskew.experiments._parts import parts_cells
from unskew.experiments._pool import pooled, run_of
from unskew.experiments._reproduce import (
    Cell,
    fingerprint,
    main_table,
    missing,
    read_rows,
    run_cell,
    run_here,
    side_by_side,
)
from unskew.experiments.tables import TABLES, in_order

__all__ = [
    "DATASETS",
    "TABLES",
    "Cell",
    "against_table",
    "comparison",
    "document",
    "fingerprint",
    "in_order",
    "main_table",
    "missing",
    "paper_value",
    "parts_cells",
    "pooled",
    "read_rows",
    "run_cell",
    "run_here",
    "run_of",
    "side_by_side",
    "users_folder",
]
