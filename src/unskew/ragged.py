"""Operations on ragged arrays: a list of entries per user, all lists stored in one flat array.

User ``u`` has the entries ``indptr[u]:indptr[u + 1]`` of every flat array. The two types are
``Ragged`` (items) and ``Rows`` (items with a vector each).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from unskew.jit import jit
from unskew.types import Bool, Int32, Int64, Ragged, Rows

_Lists = TypeVar("_Lists", Ragged, Rows)
_SORTED_ENTRIES = 1 << 20
"""Entries that are sorted at a time, to bound the memory for their keys."""


def indptr_from_counts(counts: Int64 | Sequence[int]) -> Int64:
    """Offsets of the users' entries in a flat array, from counts per user: 0, c0, c0 + c1, ..."""
    indptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def owners(indptr: Int64) -> Int64:
    """For each entry of a flat array, the number of the user to whom it belongs."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def positions(indptr: Int64, users: Int64) -> Int64:
    """Indices, in the flat arrays, of all entries of these ``users``, user after user."""
    return ranges(indptr[users], indptr[users + 1] - indptr[users])


def ranges(starts: Int64, counts: Int64) -> Int64:
    """The numbers ``start, start + 1, …``, as many as ``counts`` says, for each of ``starts``."""
    first = starts - np.cumsum(counts) + counts
    return np.repeat(first, counts) + np.arange(int(counts.sum()))


def select(lists: _Lists, users: Int64) -> _Lists:
    """A ragged array with the entries of only these ``users``, in this order."""
    indptr = indptr_from_counts(lists.indptr[users + 1] - lists.indptr[users])
    place = positions(lists.indptr, users)
    return _rebuild(lists, indptr, (flat[place] for flat in lists[1:]))


def filter_entries(lists: _Lists, keep: Bool) -> _Lists:
    """Keep the entries whose ``keep`` is true. A user without such entries gets an empty list."""
    n_users = len(lists.indptr) - 1
    counts = np.bincount(owners(lists.indptr)[keep], minlength=n_users)
    return _rebuild(lists, indptr_from_counts(counts), (flat[keep] for flat in lists[1:]))


def concatenate(parts: Sequence[_Lists]) -> _Lists:
    """One ragged array with the users of all parts, in the order of the parts."""
    indptr = indptr_from_counts(np.concatenate([np.diff(part.indptr) for part in parts]))
    flats = (np.concatenate(flat) for flat in zip(*(part[1:] for part in parts), strict=True))
    return _rebuild(parts[0], indptr, flats)


def empty_lists(n_users: int) -> Ragged:
    """A ragged array with an empty list for each user."""
    return Ragged(np.zeros(n_users + 1, np.int64), np.zeros(0, np.int32))


def append_lists(first: Ragged, second: Ragged) -> Ragged:
    """Each user's list in ``first`` followed by the user's list in ``second``."""
    owner = np.concatenate([owners(first.indptr), owners(second.indptr)])
    items = np.concatenate([first.items, second.items])
    order = np.argsort(owner, kind="stable")
    return Ragged(first.indptr + second.indptr, items[order])


def distinct(lists: Ragged) -> Ragged:
    """Each user's distinct items in ascending order."""
    items, counts = np.empty_like(lists.items), np.empty(len(lists.indptr) - 1, np.int64)
    n = 0
    for first, end in user_blocks(lists.indptr, _SORTED_ENTRIES):
        indptr = lists.indptr[first : end + 1]
        keys = np.sort(owners(indptr) << 32 | lists.items[indptr[0] : indptr[-1]])
        keys = keys[np.diff(keys, prepend=-1) != 0]
        counts[first:end] = np.bincount(keys >> 32, minlength=end - first)
        items[n : n + len(keys)] = keys & 0xFFFFFFFF
        n += len(keys)
    return Ragged(indptr_from_counts(counts), items[:n])


def user_blocks(indptr: Int64, entries: int) -> Iterator[tuple[int, int]]:
    """Divide the users into ranges (first, end) with at most ``entries`` entries each, or one
    user."""
    first, n_users = 0, len(indptr) - 1
    while first < n_users:
        end = int(np.searchsorted(indptr, indptr[first] + entries, side="right")) - 1
        yield first, max(end, first + 1)
        first = max(end, first + 1)


@jit
def contains(sets: Ragged, lists: Ragged) -> Bool:
    """For each entry of ``lists``, whether the same user's list in ``sets``, ascending, has it."""
    found = np.zeros(len(lists.items), np.bool_)
    for user in range(len(lists.indptr) - 1):
        for n in range(lists.indptr[user], lists.indptr[user + 1]):
            low, high = sets.indptr[user], sets.indptr[user + 1]
            while low < high:
                middle = (low + high) // 2
                if sets.items[middle] < lists.items[n]:
                    low = middle + 1
                else:
                    high = middle
            found[n] = low < sets.indptr[user + 1] and sets.items[low] == lists.items[n]
    return found


@jit
def count_owners(owner: Int32, n_users: int) -> Int64:
    """Number of entries of each user."""
    counts = np.zeros(n_users, np.int64)
    for user in owner:
        counts[user] += 1
    return counts


@jit
def order_by_owner(owner: Int32, indptr: Int64) -> Int64:
    """Order of entries that puts them user after user, those of a user in the order they have.
    ``indptr`` has the offsets of the users' entries in this order."""
    order = np.empty(len(owner), np.int64)
    place = indptr.copy()
    for n in range(len(owner)):
        order[place[owner[n]]] = n
        place[owner[n]] += 1
    return order


def _rebuild(like: _Lists, indptr: Int64, flats: Iterable[Any]) -> _Lists:
    return type(like)(indptr, *flats)
