"""Split the rows of a data set into training, validation and test, by one of several rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from unskew.jit import jit
from unskew.numbering import number_by_appearance
from unskew.ragged import (
    count_owners,
    indptr_from_counts,
    order_by_owner,
    owners,
    ranges,
    user_blocks,
)
from unskew.types import Bool, Int8, Int32, Int64, Interactions, UnskewError

MIN_EVALUATED_ROWS = 3
"""Rows that a user needs to be evaluated: one each for training, validation and testing."""
PARTS = ("train", "validation", "test")
"""Names of the parts of a split, in the order of the numbers in ``Interactions.parts``."""


_SORTED_ROWS = 1 << 20
"""Rows that are sorted by time together, to bound the memory for their keys."""


class Rules(Protocol):
    """The part of a protocol that decides which rows are held out."""

    @property
    def validation_share(self) -> float: ...

    @property
    def test_share(self) -> float: ...

    @property
    def latest_of_ties(self) -> Literal["first", "last"]: ...


class Masks(NamedTuple):
    """Boolean masks that say which rows are for training, for validation and for testing."""

    train: Bool
    validation: Bool
    test: Bool


class Rows(NamedTuple):
    """The rows to split: user after user, each user's rows in order of time."""

    kept: Interactions
    clock: Int64
    """Time of each row."""
    indptr: Int64
    """Where each user begins in ``in_time``."""
    in_time: Int64
    """Row numbers, user after user; a user's rows with equal times stay in the order of the
    file."""


def sort_rows(kept: Interactions, clock: Int64) -> Rows:
    """Sort rows by user and time."""
    indptr = indptr_from_counts(count_owners(kept.users, len(kept.user_ids)))
    in_time = order_by_owner(kept.users, indptr)
    _sort_by_time(indptr, in_time, clock)
    return Rows(kept, clock, indptr, in_time)


def _sort_by_time(indptr: Int64, rows: Int64, clock: Int64) -> None:
    """Sort each user's rows by time, in place; the sort is stable."""
    for first, end in user_blocks(indptr, _SORTED_ROWS):
        own = rows[indptr[first] : indptr[end]]
        times, user = clock[own], owners(indptr[first : end + 1])
        if (np.diff(times)[np.diff(user) == 0] < 0).any():
            own[:] = own[np.lexsort((times, user))]


def leave_one_out(rows: Rows, rules: Rules, notes: list[str]) -> Masks:
    """Test on each user's latest row, validate on the one before, train on all earlier rows. Users
    with too few rows for that only train.
    """
    enough = _can_be_evaluated(np.diff(rows.indptr), notes)
    latest_first = _latest_first(rows, rules)
    starts = rows.indptr[:-1][enough]
    validation, test = np.zeros((2, len(latest_first)), bool)
    test[latest_first[starts]] = validation[latest_first[starts + 1]] = True
    return Masks(~validation & ~test, validation, test)


def cut_ratio(rows: Rows, rules: Rules, notes: list[str]) -> Masks:
    """Test on the latest rows of each user, validate on those before, train on all earlier rows.

    ``rules`` has the shares of each user's rows to hold out. Numbers of rows are rounded, but each
    part gets at least one row. Users with too few rows for that only train.
    """
    per_user = np.diff(rows.indptr)
    enough = _can_be_evaluated(per_user, notes)
    n_test = np.clip(np.floor(per_user * rules.test_share + 0.5), 1, per_user - 2)
    n_validation = np.floor(per_user * rules.validation_share + 0.5)
    n_validation = np.clip(n_validation, 1, per_user - n_test - 1)
    n_test, n_validation = (np.where(enough, n, 0).astype(np.int64) for n in (n_test, n_validation))
    latest_first, starts = _latest_first(rows, rules), rows.indptr[:-1]
    validation, test = np.zeros((2, len(latest_first)), bool)
    test[latest_first[ranges(starts, n_test)]] = True
    validation[latest_first[ranges(starts + n_test, n_validation)]] = True
    return Masks(~validation & ~test, validation, test)


def _latest_first(rows: Rows, rules: Rules) -> Int64:
    """Row numbers, user after user, each user's latest row first."""
    order = np.empty_like(rows.in_time)
    first = rules.latest_of_ties == "first"
    _reverse_times(rows.indptr, rows.in_time, rows.clock, first, order)
    return order


@jit
def _reverse_times(
    indptr: Int64, in_time: Int64, clock: Int64, keep_ties: bool, order: Int64
) -> None:
    """Reverse each user's rows, but leave rows of equal times in their order if ``keep_ties``."""
    for user in range(len(indptr) - 1):
        place, end = indptr[user], indptr[user + 1]
        while end > indptr[user]:
            start = end - 1
            while (
                keep_ties
                and start > indptr[user]
                and clock[in_time[start - 1]] == clock[in_time[start]]
            ):
                start -= 1
            for n in range(start, end):
                order[place] = in_time[n]
                place += 1
            end = start


def use_given(rows: Rows, rules: Rules, notes: list[str]) -> Masks:
    """Use the split that comes with the data (``Interactions.parts``)."""
    kept, parts = rows.kept, np.asarray(rows.kept.parts)
    masks = Masks(parts == 0, parts == 1, parts == 2)
    trains = count_owners(kept.users[masks.train], len(kept.user_ids)) > 0
    add_note(notes, int(np.count_nonzero(~trains)), "users without a training row left out")
    return masks


def _can_be_evaluated(rows_per_user: Int64, notes: list[str]) -> Bool:
    """Boolean mask of the users with enough rows to hold some out. A note counts other users."""
    enough: Bool = rows_per_user >= MIN_EVALUATED_ROWS
    add_note(
        notes,
        int(np.count_nonzero(~enough)),
        f"users with fewer than {MIN_EVALUATED_ROWS} rows train and get recommendations, but "
        "are not evaluated",
    )
    return enough


def cut_time(rows: Rows, rules: Rules, notes: list[str]) -> Masks:
    """Split into training, validation and test at two points in time, the same for all users.

    Rows with equal times go to the same (later) part, so slightly more rows than intended may be
    held out. Items without training rows are not held out.
    """
    kept, clock = rows.kept, rows.clock
    in_order = np.sort(clock)
    n_test = max(round(len(clock) * rules.test_share), 1)
    n_held_out = n_test + max(round(len(clock) * rules.validation_share), 1)
    starts = in_order[[0, -min(n_held_out, len(clock)), -n_test]]
    if not (np.diff(starts) > 0).all():
        raise UnskewError(
            f"{kept.name} has too few different timestamps to cut into training, validation and "
            "test by time: use the leak-free protocol instead."
        )
    train, test = clock < starts[1], clock >= starts[2]
    trained_on = (count_owners(kept.items[train], len(kept.item_ids)) > 0)[kept.items]
    trains = count_owners(kept.users[train], len(kept.user_ids)) > 0
    stays = trains[kept.users]
    add_note(
        notes, int(np.count_nonzero(~trains)), "users without a row before the time cut left out"
    )
    unknown = int(np.count_nonzero(stays & ~trained_on))
    add_note(notes, unknown, "later rows not held out: nobody had their item in training")
    return Masks(train, ~train & ~test & trained_on, test & trained_on)


def keep_rows(
    interactions: Interactions, deduplicate: bool, notes: list[str]
) -> tuple[Interactions, Int64]:
    """Drop non-positive ratings, then repeated rows if ``deduplicate``, then users with few rows.

    Returns the remaining rows in file order, with users and items numbered by first appearance (in
    the order given if the data is already split), and the time of each row. Without timestamps,
    the number of the row replaces the time.
    """
    users, items = interactions.users, interactions.items
    keep = np.ones(len(users), np.bool_)
    if interactions.ratings is not None:
        keep = interactions.ratings > 0
        add_note(notes, int(np.count_nonzero(~keep)), "rows without a positive rating left out")
    if deduplicate:
        repeated = _find_repeats(interactions, keep)
        keep &= ~repeated
        add_note(notes, int(np.count_nonzero(repeated)), "repeated (user, item) rows left out")
    per_user = count_owners(users if keep.all() else users[keep], len(interactions.user_ids))
    enough = per_user >= interactions.min_user_rows
    keep &= enough[users]
    few = f"users with fewer than {interactions.min_user_rows} rows left out"
    add_note(notes, int(np.count_nonzero(~enough)), few)
    if not keep.any():
        raise UnskewError(
            f"No user of {interactions.name} has {interactions.min_user_rows} or more usable rows: "
            "lower min_user_rows or give a larger file."
        )
    rows = slice(None) if keep.all() else np.flatnonzero(keep)
    if interactions.parts is None:
        users, old_users = number_by_appearance(users[rows])
        items, old_items = number_by_appearance(items[rows])
    else:  # the catalogue is given too
        users, old_users = _number_in_order(users[rows], enough & (per_user > 0))
        items, old_items = items[rows], np.arange(len(interactions.item_ids))

    def pick(values: Sequence[str], chosen: Int64) -> Sequence[str]:
        return tuple(values[old] for old in chosen.tolist())

    titles, features = interactions.titles, interactions.item_features
    kept = replace(
        interactions,
        users=users,
        items=items,
        user_ids=pick(interactions.user_ids, old_users),
        item_ids=pick(interactions.item_ids, old_items),
        ratings=None if interactions.ratings is None else interactions.ratings[rows],
        timestamps=None if interactions.timestamps is None else interactions.timestamps[rows],
        titles=None if titles is None else pick(titles, old_items),
        parts=None if interactions.parts is None else interactions.parts[rows],
        item_features=None if features is None else features[old_items],
    )
    clock = np.flatnonzero(keep) if kept.timestamps is None else kept.timestamps
    return kept, clock.astype(np.int64, copy=False)


def _find_repeats(interactions: Interactions, keep: Bool) -> Bool:
    """Which of the rows to keep repeat an earlier (user, item) pair. Raise an UnskewError if a pair
    stands in two parts of a given split."""
    users, items = interactions.users, interactions.items
    indptr = indptr_from_counts(count_owners(users, len(interactions.user_ids)))
    order = order_by_owner(users, indptr)
    repeated, n_items = np.zeros(len(users), np.bool_), len(interactions.item_ids)
    parts = np.zeros(len(users), np.int8) if interactions.parts is None else interactions.parts
    first, at = _mark_repeats(indptr, order, items, keep, parts, n_items, repeated)
    if at < len(users):
        raise UnskewError(
            f"User {interactions.user_ids[users[at]]} and item {interactions.item_ids[items[at]]} "
            f"of {interactions.name} stand in {PARTS[parts[first]]} and in {PARTS[parts[at]]}: "
            "remove the pair from one of them."
        )
    return repeated


@jit
def _mark_repeats(
    indptr: Int64,
    order: Int64,
    items: Int32,
    keep: Bool,
    parts: Int8,
    n_items: int,
    repeated: Bool,
) -> tuple[int, int]:
    """Mark repeated rows. Returns the first row whose pair stands in another part before, after
    that earlier row; ``len(items)`` if there is none."""
    taken_by, first = np.full(n_items, -1, np.int64), np.zeros(n_items, np.int64)
    earlier, clash = -1, len(items)
    for user in range(len(indptr) - 1):
        for row in order[indptr[user] : indptr[user + 1]]:
            item = items[row]
            if not keep[row]:
                continue
            if taken_by[item] != user:
                taken_by[item] = user
                first[item] = row
                continue
            repeated[row] = True
            if parts[row] != parts[first[item]] and row < clash:
                earlier, clash = first[item], row
    return earlier, clash


def _number_in_order(codes: Int32, present: Bool) -> tuple[Int32, Int64]:
    """Renumber codes as 0, 1, … in ascending order, without gaps; ``present`` says which codes
    there are. Returns the new number of each entry and the old code of each number."""
    fresh = (np.cumsum(present) - 1).astype(np.int32)
    return fresh[codes], np.flatnonzero(present)


def add_note(notes: list[str], count: int, what: str) -> None:
    if count:
        notes.append(f"{count:,} {what}")
