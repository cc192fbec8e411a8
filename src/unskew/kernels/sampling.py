"""Negative sampling: a client's samples in a round are its positives, each with new negatives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block
from unskew.ragged import indptr_from_counts
from unskew.rng import Purpose, below, stream, value
from unskew.types import Cohort, Int32, Int64, Ragged, Samples

_NEGATIVES = int(Purpose.NEGATIVES)
"""Purpose number of the random streams that draw negatives."""


@jit
def _list_flagged(flag: NDArray[np.uint8], found: Int32) -> int:
    """Write the numbers of the flagged items, ascending, to ``found`` and return how many there
    are. Every number is written and unflagged ones are overwritten, which avoids a branch."""
    n = 0
    for item in range(len(flag)):
        found[n] = item
        n += flag[item]
    return n


@jit
def _draw(
    block: Int64, cohort: Cohort, negatives: Int64, samples: Samples, n_touched: Int64
) -> None:
    """Draw negatives and fill ``samples`` for the clients in ``block``. A client's touched items
    are written from its first sample's position on; ``n_touched`` receives their number."""
    found = np.empty(cohort.n_items + 1, np.int32)
    number = np.empty(cohort.n_items, np.int32)
    flag = np.empty(cohort.n_items, np.uint8)
    positives, excluded, row = cohort.positives, cohort.excluded, samples.row
    for c in block:
        flag[:] = 1
        for e in range(excluded.indptr[c], excluded.indptr[c + 1]):
            flag[excluded.items[e]] = 0
        size = _list_flagged(flag, found)
        flag[:] = 0
        key = stream(cohort.seed, cohort.round, cohort.users[c], _NEGATIVES)
        k, counter = negatives[c], 0
        first = out = samples.indptr[c]
        # Item numbers first; row numbers replace them once all touched items are known.
        for j in range(positives.indptr[c], positives.indptr[c + 1]):
            row[out] = positives.items[j]
            samples.label[out] = 1.0
            for i in range(1, k + 1):
                fresh = False
                while not fresh:
                    row[out + i] = found[below(value(key, counter), size)]
                    counter += 1
                    fresh = True
                    for earlier in range(1, i):
                        if row[out + earlier] == row[out + i]:
                            fresh = False
                samples.label[out + i] = 0.0
            for i in range(k + 1):
                flag[row[out + i]] = 1
            out += k + 1
        n = n_touched[c] = _list_flagged(flag, found)
        for i in range(n):
            number[found[i]] = i
            samples.touched.items[first + i] = found[i]
        for j in range(first, out):
            row[j] = number[row[j]]


def draw_samples(cohort: Cohort, negatives: int) -> Samples:
    """Samples of each client: its positives, each with ``negatives`` random items as negatives.

    A positive's negatives are distinct and not among the excluded items; a client with too few gets
    all there are. If the cohort already has samples, they are returned: drawing again would give
    the same. Treat them as read-only.
    """
    if cohort.samples is not None:
        return cohort.samples
    per_positive = np.minimum(negatives, cohort.n_items - cohort.excluded.counts())
    indptr = indptr_from_counts(cohort.positives.counts() * (1 + per_positive))
    row, label = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    samples = Samples(indptr, row, label, Ragged(indptr, np.empty_like(row)))
    n_touched = np.zeros(len(cohort.users), np.int64)
    for_each_block(samples.counts(), _draw, cohort, per_positive, samples, n_touched)
    touched_indptr = indptr_from_counts(n_touched)
    gaps = np.repeat(indptr[:-1] - touched_indptr[:-1], n_touched)
    touched = samples.touched.items[gaps + np.arange(len(gaps))]
    return samples._replace(touched=Ragged(touched_indptr, touched))
