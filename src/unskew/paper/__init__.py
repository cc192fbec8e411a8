"""The paper's tables and figures: published figures, the cells behind every table, remaking all."""

from unskew.paper.cells import method_checksum, missing_cells
from unskew.paper.document import document, fill_table
from unskew.paper.exhibits import EXHIBITS, STORES
from unskew.paper.page import published_figures, report_contents
from unskew.paper.plan import DATASETS, Exhibit, Plan
from unskew.paper.reproduce import (
    Job,
    Places,
    compare_methods,
    figure_paths,
    find_jobs,
    run_jobs,
    write_pages,
)
from unskew.paper.rows import Results, read_results, read_rows

__all__ = [
    "DATASETS",
    "EXHIBITS",
    "STORES",
    "Exhibit",
    "Job",
    "Places",
    "Plan",
    "Results",
    "compare_methods",
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
