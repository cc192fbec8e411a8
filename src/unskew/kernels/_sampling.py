"""What a client trains on in a round: its positives, each with its own fresh negatives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block
from unskew.ragged import indptr_from_counts
from unskew.rng import Purpose, below, stream, value
from unskew.types import Cohort, Float32, Int32, Int64, Ragged, Samples

__all__ = ["Samples", "draw_samples"]

_NEGATIVES = int(Purpose.NEGATIVES)


@jit
def _list_flagged(flag: NDArray[np.uint8], found: Int32) -> int:
    """The flagged items, ascending, into ``found`` (one longer than ``flag``); returns how many.
    Every item is written and only flagged ones stay: there is no branch to be guessed wrong."""
    n = 0
    for item in range(len(flag)):
        found[n] = item
        n += flag[item]
    return n


@jit
def _draw_items(
    block: Int64,
    users: Int64,
    pos_indptr: Int64,
    pos_items: Int32,
    ex_indptr: Int64,
    ex_items: Int32,
    n_items: int,
    seed: int,
    round: int,
    negatives: Int64,
    indptr: Int64,
    items: Int32,
    label: Float32,
    n_touched: Int64,
) -> None:
    pool = np.empty(n_items + 1, np.int32)
    flag = np.empty(n_items, np.uint8)
    for c in block:
        flag[:] = 1
        for e in range(ex_indptr[c], ex_indptr[c + 1]):
            flag[ex_items[e]] = 0
        size = _list_flagged(flag, pool)
        flag[:] = 0
        key = stream(seed, round, users[c], _NEGATIVES)
        k = negatives[c]
        counter = 0
        out = indptr[c]
        for j in range(pos_indptr[c], pos_indptr[c + 1]):
            items[out] = pos_items[j]
            label[out] = 1.0
            for i in range(1, k + 1):
                fresh = False
                while not fresh:
                    items[out + i] = pool[below(value(key, counter), size)]
                    counter += 1
                    fresh = True
                    for earlier in range(1, i):
                        if items[out + earlier] == items[out + i]:
                            fresh = False
                label[out + i] = 0.0
            for i in range(k + 1):
                flag[items[out + i]] = 1
            out += k + 1
        n_touched[c] = np.sum(flag)


@jit
def _number_touched(
    block: Int64,
    n_items: int,
    indptr: Int64,
    items: Int32,
    row: Int32,
    touched_indptr: Int64,
    touched: Int32,
) -> None:
    number = np.empty(n_items, np.int32)
    found = np.empty(n_items + 1, np.int32)
    flag = np.empty(n_items, np.uint8)
    for c in block:
        flag[:] = 0
        for j in range(indptr[c], indptr[c + 1]):
            flag[items[j]] = 1
        n = _list_flagged(flag, found)
        for i in range(n):
            number[found[i]] = i
            touched[touched_indptr[c] + i] = found[i]
        for j in range(indptr[c], indptr[c + 1]):
            row[j] = number[items[j]]


def draw_samples(cohort: Cohort, negatives: int) -> Samples:
    """For each positive, ``negatives`` distinct items drawn uniformly from those not excluded.

    A client whose pool is smaller than ``negatives`` takes as many as there are. The samples are a
    function of the cohort's streams, so every draw gives the same ones; a cohort that carries its
    samples saves drawing them again. Treat them as read-only.
    """
    if cohort.samples is not None:
        return cohort.samples
    n_positives = cohort.positives.counts()
    pool = cohort.n_items - cohort.excluded.counts()
    per_positive = np.minimum(negatives, pool)
    indptr = indptr_from_counts(n_positives * (1 + per_positive))
    items = np.empty(indptr[-1], np.int32)
    label = np.empty(indptr[-1], np.float32)
    n_touched = np.zeros(len(cohort.users), np.int64)
    work = np.diff(indptr)
    for_each_block(
        work,
        _draw_items,
        cohort.users,
        cohort.positives.indptr,
        cohort.positives.items,
        cohort.excluded.indptr,
        cohort.excluded.items,
        cohort.n_items,
        cohort.seed,
        cohort.round,
        per_positive,
        indptr,
        items,
        label,
        n_touched,
    )
    touched_indptr = indptr_from_counts(n_touched)
    touched = np.empty(touched_indptr[-1], np.int32)
    row = np.empty(len(items), np.int32)
    for_each_block(
        work,
        _number_touched,
        cohort.n_items,
        indptr,
        items,
        row,
        touched_indptr,
        touched,
    )
    return Samples(indptr, row, label, Ragged(touched_indptr, touched))
