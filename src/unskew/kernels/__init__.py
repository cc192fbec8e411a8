"""Compiled kernels: numba functions that train and score models on plain NumPy arrays.

Shared by all trainers: ``parallel``, ``sampling``, ``batches``, ``arithmetic``, ``vectors``,
``adam`` and ``tables``. Most other modules are named after the method or model that they train.
"""

from unskew.kernels.batches import Schedule, Training
from unskew.kernels.exact_sum import (
    MAX_PRODUCT,
    ExactSum,
    add_uploads,
    add_weighted,
    empty_sum,
    merge_sums,
)
from unskew.kernels.fedmf import no_pull, train_joint
from unskew.kernels.parallel import (
    for_each_block,
    get_threads,
    one_blas_thread,
    set_threads,
    work_alone,
)
from unskew.kernels.pfedclr import train_low_rank, train_rows
from unskew.kernels.sampling import draw_samples
from unskew.kernels.tables import (
    add_scores,
    merge,
    orthonormal,
    overlay,
    replace_scores,
    score_items,
    score_table,
)

__all__ = [
    "MAX_PRODUCT",
    "ExactSum",
    "Schedule",
    "Training",
    "add_scores",
    "add_uploads",
    "add_weighted",
    "draw_samples",
    "empty_sum",
    "for_each_block",
    "get_threads",
    "merge",
    "merge_sums",
    "no_pull",
    "one_blas_thread",
    "orthonormal",
    "overlay",
    "replace_scores",
    "score_items",
    "score_table",
    "set_threads",
    "train_joint",
    "train_low_rank",
    "train_rows",
    "work_alone",
]
