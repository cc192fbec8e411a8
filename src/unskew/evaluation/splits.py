"""Split the rows of a data set into training, validation and test, by one of several rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple, Protocol

import numpy as np

from unskew.types import Bool, Int64, Interactions, UnskewError

MIN_EVALUATED_ROWS = 3
"""Rows that a user needs to be evaluated: one each for training, validation and testing."""
PARTS = ("train", "validation", "test")
"""Names of the parts of a split, in the order of the numbers in ``Interactions.parts``."""


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


def leave_one_out(kept: Interactions, clock: Int64, rules: Rules, notes: list[str]) -> Masks:
    """Test on each user's latest row, validate on the one before, train on all earlier rows. Users
    with too few rows for that only train.
    """
    per_user = np.bincount(kept.users, minlength=len(kept.user_ids))
    enough = _can_be_evaluated(per_user, notes)
    latest_first = _latest_first(kept, clock, rules)
    starts = (np.cumsum(per_user) - per_user)[enough]
    validation, test = np.zeros((2, len(clock)), bool)
    test[latest_first[starts]] = validation[latest_first[starts + 1]] = True
    return Masks(~validation & ~test, validation, test)


def cut_ratio(kept: Interactions, clock: Int64, rules: Rules, notes: list[str]) -> Masks:
    """Test on the latest rows of each user, validate on those before, train on all earlier rows.

    ``rules`` has the shares of each user's rows to hold out. Numbers of rows are rounded, but each
    part gets at least one row. Users with too few rows for that only train.
    """
    per_user = np.bincount(kept.users, minlength=len(kept.user_ids))
    enough = _can_be_evaluated(per_user, notes)
    n_test = np.clip(np.floor(per_user * rules.test_share + 0.5), 1, per_user - 2)
    n_validation = np.floor(per_user * rules.validation_share + 0.5)
    n_validation = np.clip(n_validation, 1, per_user - n_test - 1)
    latest_first = _latest_first(kept, clock, rules)
    starts, user = np.cumsum(per_user) - per_user, kept.users[latest_first]
    place = np.arange(len(clock)) - starts[user]
    validation, test = np.zeros((2, len(clock)), bool)
    test[latest_first] = enough[user] & (place < n_test[user])
    held_out = enough[user] & (place < (n_test + n_validation)[user])
    validation[latest_first] = held_out & ~test[latest_first]
    return Masks(~validation & ~test, validation, test)


def _latest_first(kept: Interactions, clock: Int64, rules: Rules) -> Int64:
    """Row numbers, user after user, each user's latest row first."""
    row = np.arange(len(clock))
    later = row if rules.latest_of_ties == "first" else -row
    return np.lexsort((later, -clock, kept.users))


def use_given(kept: Interactions, clock: Int64, rules: Rules, notes: list[str]) -> Masks:
    """Use the split that comes with the data (``Interactions.parts``)."""
    parts = np.asarray(kept.parts)
    masks = Masks(parts == 0, parts == 1, parts == 2)
    gone = len(kept.user_ids) - len(np.unique(kept.users[masks.train]))
    add_note(notes, gone, "users without a training row left out")
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


def cut_time(kept: Interactions, clock: Int64, rules: Rules, notes: list[str]) -> Masks:
    """Split into training, validation and test at two points in time, the same for all users.

    Rows with equal times go to the same (later) part, so slightly more rows than intended may be
    held out. Items without training rows are not held out.
    """
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
    trained_on = np.isin(kept.items, kept.items[train])
    stays = np.isin(kept.users, kept.users[train])
    gone = len(kept.user_ids) - len(np.unique(kept.users[train]))
    add_note(notes, gone, "users without a row before the time cut left out")
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
    users = interactions.users.astype(np.int64)
    items = interactions.items.astype(np.int64)
    rows = np.arange(len(users))

    if interactions.ratings is not None:
        rows = np.flatnonzero(interactions.ratings > 0)
        add_note(notes, len(users) - len(rows), "rows without a positive rating left out")

    if deduplicate:
        repeated = len(rows)
        _check_overlap(interactions, rows)
        pairs = users[rows] * max(len(interactions.item_ids), 1) + items[rows]
        rows = rows[np.sort(np.unique(pairs, return_index=True)[1])]
        add_note(notes, repeated - len(rows), "repeated (user, item) rows left out")

    per_user = np.bincount(users[rows], minlength=len(interactions.user_ids))
    enough = per_user >= interactions.min_user_rows
    rows = rows[enough[users[rows]]]
    few = f"users with fewer than {interactions.min_user_rows} rows left out"
    add_note(notes, int(np.count_nonzero(~enough)), few)
    if len(rows) == 0:
        raise UnskewError(
            f"No user of {interactions.name} has {interactions.min_user_rows} or more usable rows: "
            "lower min_user_rows or give a larger file."
        )

    number = _number_by_appearance if interactions.parts is None else _number_in_order
    users, old_users = number(users[rows], len(interactions.user_ids))
    if interactions.parts is None:
        items, old_items = number(items[rows], len(interactions.item_ids))
    else:  # the catalogue is given too
        items, old_items = items[rows], np.arange(len(interactions.item_ids))
    titles, features = interactions.titles, interactions.item_features
    kept = replace(
        interactions,
        users=users.astype(np.int32),
        items=items.astype(np.int32),
        user_ids=tuple(interactions.user_ids[old] for old in old_users.tolist()),
        item_ids=tuple(interactions.item_ids[old] for old in old_items.tolist()),
        ratings=None if interactions.ratings is None else interactions.ratings[rows],
        timestamps=None if interactions.timestamps is None else interactions.timestamps[rows],
        titles=None if titles is None else tuple(titles[old] for old in old_items.tolist()),
        parts=None if interactions.parts is None else interactions.parts[rows],
        item_features=None if features is None else features[old_items],
    )
    clock = rows if kept.timestamps is None else kept.timestamps
    return kept, clock.astype(np.int64)


def _check_overlap(interactions: Interactions, rows: Int64) -> None:
    """Raise an UnskewError if a (user, item) pair stands in two parts of a given split."""
    if interactions.parts is None:
        return
    users, items = interactions.users[rows].astype(np.int64), interactions.items[rows]
    pairs, parts = users * len(interactions.item_ids) + items, interactions.parts[rows]
    _, first, pair = np.unique(pairs, return_index=True, return_inverse=True)
    twice = np.flatnonzero(parts != parts[first[pair]])
    if len(twice):
        at = int(twice[0])
        one, other = PARTS[parts[first[pair[at]]]], PARTS[parts[at]]
        raise UnskewError(
            f"User {interactions.user_ids[users[at]]} and item {interactions.item_ids[items[at]]} "
            f"of {interactions.name} stand in {one} and in {other}: remove the pair from one of "
            "them."
        )


def _number_in_order(codes: Int64, n_codes: int) -> tuple[Int64, Int64]:
    """Renumber codes (user or item numbers) as 0, 1, … in ascending order, without gaps. Returns
    the new number of each entry and the old code of each number."""
    old, fresh = np.unique(codes, return_inverse=True)
    return fresh, old


def _number_by_appearance(codes: Int64, n_codes: int) -> tuple[Int64, Int64]:
    """Renumber codes (user or item numbers) as 0, 1, … by first appearance. Returns the new number
    of each entry and the old code of each number. ``n_codes`` is larger than every code."""
    first = np.full(n_codes, len(codes), np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    present = np.flatnonzero(first < len(codes))
    old = present[np.argsort(first[present])]
    fresh = np.full(n_codes, -1, np.int64)
    fresh[old] = np.arange(len(old))
    return fresh[codes], old


def add_note(notes: list[str], count: int, what: str) -> None:
    if count:
        notes.append(f"{count:,} {what}")
