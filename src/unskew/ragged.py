"""Operations on ragged arrays: a list of entries per user, all lists stored in one flat array.

User ``u`` has the entries ``indptr[u]:indptr[u + 1]`` of every flat array. The two types are
``Ragged`` (items) and ``Rows`` (items with a vector each).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from unskew.types import Bool, Int32, Int64, Ragged, Rows

_Lists = TypeVar("_Lists", Ragged, Rows)


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
    counts = indptr[users + 1] - indptr[users]
    starts = indptr[users] - np.cumsum(counts) + counts
    return np.repeat(starts, counts) + np.arange(int(counts.sum()))


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


def lists_from_pairs(users: Int64, items: Int64 | Int32, n_users: int) -> Ragged:
    """Each user's list of items, in the given order, from (user, item) pairs sorted by user."""
    counts = np.bincount(users, minlength=n_users)
    return Ragged(indptr_from_counts(counts), items.astype(np.int32))


def sets_from_pairs(users: Int64, items: Int64 | Int32, n_users: int, n_items: int) -> Ragged:
    """Each user's distinct items in ascending order, from (user, item) pairs in any order."""
    keys = np.sort(users * n_items + items)
    keys = keys[np.diff(keys, prepend=-1) != 0]
    return lists_from_pairs(keys // n_items, keys % n_items, n_users)


def append_lists(first: Ragged, second: Ragged) -> Ragged:
    """Each user's list in ``first`` followed by the user's list in ``second``."""
    owner = np.concatenate([owners(first.indptr), owners(second.indptr)])
    items = np.concatenate([first.items, second.items])
    order = np.argsort(owner, kind="stable")
    return Ragged(first.indptr + second.indptr, items[order])


def distinct(lists: Ragged, n_items: int) -> Ragged:
    """Each user's distinct items in ascending order."""
    return sets_from_pairs(owners(lists.indptr), lists.items, len(lists.indptr) - 1, n_items)


def contains(sets: Ragged, lists: Ragged, n_items: int) -> Bool:
    """For each entry of ``lists``, whether the same user's list in ``sets``, ascending, has it."""
    present, wanted = _keys(sets, n_items), _keys(lists, n_items)
    place = np.minimum(np.searchsorted(present, wanted), len(present) - 1)
    found: Bool = present[place] == wanted
    return found


def _rebuild(like: _Lists, indptr: Int64, flats: Iterable[Any]) -> _Lists:
    return type(like)(indptr, *flats)


def _keys(lists: Ragged, n_items: int) -> Int64:
    return owners(lists.indptr) * n_items + lists.items
