"""Numba functions on plain arrays. Nothing here knows a method, a protocol or a file.

What most methods need is named here; what one of them needs stands in a module of its own.
"""

from unskew.kernels._local import train_joint, train_low_rank, train_rows
from unskew.kernels._parallel import for_each_block, get_threads, set_threads, work_alone
from unskew.kernels._sampling import Samples, draw_samples
from unskew.kernels._steps import Schedule
from unskew.kernels._tables import (
    add_scores,
    difference,
    empty_sum,
    fold,
    gather,
    merge,
    overlay,
    replace_scores,
    score_table,
)

__all__ = [
    "Samples",
    "Schedule",
    "add_scores",
    "difference",
    "draw_samples",
    "empty_sum",
    "fold",
    "for_each_block",
    "gather",
    "get_threads",
    "merge",
    "overlay",
    "replace_scores",
    "score_table",
    "set_threads",
    "train_joint",
    "train_low_rank",
    "train_rows",
    "work_alone",
]
