from __future__ import annotations

import numpy as np
import pytest

from unskew import ragged
from unskew.ragged import (
    concatenate,
    contains,
    count_owners,
    distinct,
    filter_entries,
    indptr_from_counts,
    order_by_owner,
    owners,
    positions,
    select,
    user_blocks,
)
from unskew.types import Ragged, Rows

LISTS = Ragged(np.array([0, 3, 3, 5]), np.array([4, 1, 4, 0, 2], np.int32))
ROWS = Rows(*LISTS, np.arange(10, dtype=np.float32).reshape(5, 2))


def by_user(lists: Ragged | Rows) -> list[list[int]]:
    return [part.tolist() for part in np.split(lists.items, lists.indptr[1:-1])]


def test_counts_and_owners() -> None:
    assert indptr_from_counts([3, 0, 2]).tolist() == LISTS.indptr.tolist()
    assert owners(LISTS.indptr).tolist() == [0, 0, 0, 2, 2]
    assert indptr_from_counts([]).tolist() == [0]


def test_selecting_reorders_repeats_and_may_be_empty() -> None:
    chosen = select(ROWS, np.array([2, 1, 2]))
    assert by_user(chosen) == [[0, 2], [], [0, 2]]
    assert chosen.values[:, 0].tolist() == [6, 8, 6, 8]
    assert by_user(select(LISTS, np.array([1]))) == [[]]
    assert len(select(LISTS, np.zeros(0, np.int64)).items) == 0
    assert positions(LISTS.indptr, np.array([2, 0])).tolist() == [3, 4, 0, 1, 2]


def test_filtering_keeps_users_without_entries() -> None:
    left = filter_entries(ROWS, ROWS.items != 4)
    assert by_user(left) == [[1], [], [0, 2]]
    assert left.values[:, 0].tolist() == [2, 6, 8]


def test_concatenating_gives_all_users_in_order() -> None:
    both = concatenate([ROWS, select(ROWS, np.array([2]))])
    assert by_user(both) == [[4, 1, 4], [], [0, 2], [0, 2]]
    assert both.values[-1].tolist() == [8, 9]


def test_sets_are_sorted_without_repeats() -> None:
    sets = distinct(LISTS)
    assert by_user(sets) == [[1, 4], [], [0, 2]]
    asked = Ragged(np.array([0, 2, 3, 4]), np.array([4, 2, 4, 2], np.int32))
    assert contains(sets, asked).tolist() == [True, False, False, True]


def test_entries_are_put_user_after_user_in_the_order_they_have() -> None:
    owner = np.random.default_rng(0).integers(0, 9, 500).astype(np.int32)
    counts = count_owners(owner, 11)
    assert counts.tolist() == np.bincount(owner, minlength=11).tolist()
    order = order_by_owner(owner, indptr_from_counts(counts))
    assert order.tolist() == np.argsort(owner, kind="stable").tolist()


def test_blocks_of_users_are_bounded_but_never_empty() -> None:
    indptr = indptr_from_counts([2, 0, 3, 9, 1, 1])
    assert list(user_blocks(indptr, 4)) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert list(user_blocks(np.zeros(1, np.int64), 4)) == []


def test_sets_of_many_blocks_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    indptr = indptr_from_counts(rng.integers(0, 9, 50))
    lists = Ragged(indptr, rng.integers(0, 20, indptr[-1]).astype(np.int32))
    expected = [sorted(set(own)) for own in by_user(lists)]
    assert by_user(distinct(lists)) == expected
    monkeypatch.setattr(ragged, "_SORTED_ENTRIES", 5)
    assert by_user(distinct(lists)) == expected
