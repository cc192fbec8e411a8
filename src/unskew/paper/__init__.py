"""Tables and figures of the PFedCLR paper: published values, the runs they need, reproduction."""

from unskew.paper.document import (
    EXHIBITS,
    STORES,
    document,
    fill_table,
    published_figures,
    report_contents,
)
from unskew.paper.plan import Places, Plan, method_checksum, missing_cells
from unskew.paper.reproduce import figure_paths, find_jobs, run_jobs, write_pages
from unskew.paper.rows import Results, read_results, read_rows

__all__ = [
    "EXHIBITS",
    "STORES",
    "Places",
    "Plan",
    "Results",
    "document",
    "figure_paths",
    "fill_table",
    "find_jobs",
    "method_checksum",
    "missing_cells",
    "published_figures",
    "read_results",
    "read_rows",
    "report_contents",
    "run_jobs",
    "write_pages",
]
