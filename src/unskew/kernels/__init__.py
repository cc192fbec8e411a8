"""Numba functions on plain arrays.

Shared by all trainers: ``parallel``, ``sampling``, ``batches``, ``arithmetic``, ``vectors``,
``adam`` and ``tables``. Every other module is named after the method whose kernels it holds.
"""

from unskew.kernels._sampling import Samples, draw_samples
from unskew.kernels.batches import Schedule
from unskew.kernels.fedmf import train_joint
from unskew.kernels.parallel import for_each_block, get_threads, set_threads, work_alone
from unskew.kernels.pfedclr import train_low_rank, train_rows
from unskew.kernels.tables import (
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
