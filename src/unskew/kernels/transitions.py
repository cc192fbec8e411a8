"""Linear models of sequences (slist, markov): sums over pairs of items in users' histories.

A history is a user's items in order of time. A sum over all pairs of positions of all histories is
an item-item matrix. Each of its rows is added up in float64 by one thread, in the order of the
data, so results do not depend on the number of threads. A history of n items costs n^2 additions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block
from unskew.ragged import indptr_from_counts, owners
from unskew.types import Float32, Float64, Int64, Ragged, Rows


class Fading(NamedTuple):
    """Weight of a past item by its age, the number of later items:
    k(age) = sum over r of share_r rate_r^age."""

    rates: Float64
    shares: Float64

    def terms(self, n: int) -> Float64:
        """share_r rate_r^age for every term r (rows) and the ages 0 ... n - 1 (columns)."""
        terms: Float64 = self.shares[:, None] * self.rates[:, None] ** np.arange(n)
        return terms

    def weights(self, n: int) -> Float64:
        """The weights k(0) ... k(n - 1)."""
        weights: Float64 = self.terms(n).sum(0)
        return weights


def fade_items(history: Ragged, n_items: int, fading: Fading) -> Rows:
    """Each user's distinct items, ascending, with their weights by age. The weights of repeated
    items add up."""
    counts, owner = history.counts(), owners(history.indptr)
    age = history.indptr[owner + 1] - 1 - np.arange(len(history.items))
    weights = fading.weights(int(counts.max(initial=0)))[age]
    keys, place = np.unique(owner * n_items + history.items, return_inverse=True)
    values = np.bincount(place, weights, len(keys)).astype(np.float32)
    indptr = indptr_from_counts(np.bincount(keys // n_items, minlength=len(counts)))
    return Rows(indptr, (keys % n_items).astype(np.int32), values[:, None])


class _Occurrences(NamedTuple):
    """Where each item occurs: item i at the entries ``entries[indptr[i]:indptr[i + 1]]`` of the
    flat history. ``owner`` is the user of each entry."""

    indptr: Int64
    entries: Int64
    owner: Int64


def _occurrences(history: Ragged, n_items: int) -> tuple[_Occurrences, Int64]:
    """The occurrences of the items, and the work per item: the total length of its users'
    histories."""
    owner = owners(history.indptr)
    indptr = indptr_from_counts(np.bincount(history.items, minlength=n_items))
    entries = np.argsort(history.items, kind="stable")
    work = np.bincount(history.items, history.counts()[owner], n_items).astype(np.int64)
    return _Occurrences(indptr, entries, owner), work


@jit
def _sum_pairs(
    block: Int64,
    history: Ragged,
    where: _Occurrences,
    after: Float64,
    before: Float64,
    out: Float32,
) -> None:
    total = np.zeros(out.shape[1])
    for item in block:
        total[:] = 0.0
        for entry in where.entries[where.indptr[item] : where.indptr[item + 1]]:
            user = where.owner[entry]
            low = max(history.indptr[user], entry - len(before) + 1)
            high = min(history.indptr[user + 1], entry + len(after))
            for other in range(low, entry):
                total[history.items[other]] += before[entry - other]
            for other in range(entry + 1, high):
                total[history.items[other]] += after[other - entry]
        for j in range(len(total)):
            out[item, j] = total[j]


def sum_pairs(history: Ragged, n_items: int, after: Float64, before: Float64) -> Float32:
    """Item-item matrix of weighted pairs. To the entry (i, j), every i and j in one history add
    ``after[d]`` if j comes d positions after i, and ``before[d]`` if it comes d positions before
    i. Distances beyond an array's end add nothing."""
    out = np.empty((n_items, n_items), np.float32)
    where, work = _occurrences(history, n_items)
    for_each_block(work, _sum_pairs, history, where, after, before, out)
    return out


@jit
def _sum_products(
    block: Int64,
    history: Ragged,
    where: _Occurrences,
    terms: Float64,
    tails: Float64,
    backward: float,
    out: Float32,
) -> None:
    total = np.zeros(out.shape[1])
    for item in block:
        total[:] = 0.0
        for entry in where.entries[where.indptr[item] : where.indptr[item + 1]]:
            user = where.owner[entry]
            start, last = history.indptr[user], history.indptr[user + 1] - 1
            for r in range(len(terms)):
                term, tail = terms[r], tails[r]
                ahead, behind = tail[last - entry], backward * tail[entry - start]
                for other in range(start, entry):
                    both = ahead + backward * tail[other - start]
                    total[history.items[other]] += term[entry - other] * both
                for other in range(entry, last + 1):
                    both = tail[last - other] + behind
                    total[history.items[other]] += term[other - entry] * both
        for j in range(len(total)):
            out[item, j] = total[j]


def sum_products(history: Ragged, n_items: int, fading: Fading, backward: float) -> Float32:
    """S^T S: the sum of s_t^T s_t over all users and all positions t but each user's last; s_t has
    k(age) at each item so far. Histories read backwards count with the weight ``backward``.

    Two items at the distance d in a history contribute at all later steps. With m steps from the
    later of the two to the last, this is

        sum over a < m of k(a) k(a + d) = sum over r of share_r rate_r^d tail_r(m),
        tail_r(m) = sum over a < m of rate_r^a k(a).
    """
    longest = int(history.counts().max(initial=0))
    terms = fading.terms(longest)
    powers = fading.rates[:, None] ** np.arange(longest)
    tails = np.zeros((len(terms), longest + 1))
    np.cumsum(powers * terms.sum(0), axis=1, out=tails[:, 1:])
    out = np.empty((n_items, n_items), np.float32)
    where, work = _occurrences(history, n_items)
    for_each_block(work, _sum_products, history, where, terms, tails, backward, out)
    return out
