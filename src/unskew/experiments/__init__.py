"""Whole runs: what they are, running them, and opening what they left."""

from unskew.experiments._against import against_table, comparison, users_folder
from unskew.experiments._document import document
from unskew.experiments._leak import LeakAudit, audit_leak
from unskew.experiments._paper import DATASETS, paper_value
from unskew.experiments._parts import parts_cells
from unskew.experiments._pool import pooled, run_of
from unskew.experiments._recommend import Recommender
from unskew.experiments._reproduce import (
    Cell,
    append_row,
    fingerprint,
    main_table,
    missing,
    read_rows,
    run_cell,
    run_here,
    side_by_side,
)
from unskew.experiments._run import Run, read_spec, run
from unskew.experiments._saved import (
    open_recommender,
    read_result,
    read_rounds,
    read_users,
    same_data,
)
from unskew.experiments._spec import RunSpec, read_toml
from unskew.experiments.tables import TABLES, in_order

__all__ = [
    "DATASETS",
    "TABLES",
    "Cell",
    "LeakAudit",
    "Recommender",
    "Run",
    "RunSpec",
    "against_table",
    "append_row",
    "audit_leak",
    "comparison",
    "document",
    "fingerprint",
    "in_order",
    "main_table",
    "missing",
    "open_recommender",
    "paper_value",
    "parts_cells",
    "pooled",
    "read_result",
    "read_rounds",
    "read_rows",
    "read_spec",
    "read_toml",
    "read_users",
    "run",
    "run_cell",
    "run_here",
    "run_of",
    "same_data",
    "side_by_side",
    "users_folder",
]
