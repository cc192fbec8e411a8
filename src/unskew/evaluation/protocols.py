"""Evaluation protocols: rules for held-out items, training negatives and ranked candidates.

``paper``
    The usual evaluation in this line of research. Repeated (user, item) rows are kept. Training
    never draws a held-out item as a negative, but may draw the 99 candidates it is ranked against.
    So training can learn which item is held out; use results only to compare with the literature.
``leak-free``
    The default. Repeated rows are removed, training sees only the training items, and held-out
    items are ranked among all unseen items; metrics among sampled candidates are reported as well.
``time``
    As ``leak-free``, but all rows after a point in time, the same for all users, are held out, so
    no user trains on another user's future.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from unskew.jit import jit
from unskew.ragged import contains, distinct, lists_from_pairs, sets_from_pairs
from unskew.rng import Purpose, below, stream, value
from unskew.types import Bool, Int32, Int64, Interactions, Ragged, Split, UnskewError

_CANDIDATES = int(Purpose.CANDIDATES)
"""Identifier of the random stream that draws candidates, as a plain int for compiled code."""
LEAVE_ONE_OUT_MIN_ROWS = 3
"""Rows that a user needs to be evaluated: one each for training, validation and testing."""
TIME_TEST_SHARE = 0.1
"""Share of all rows, the latest ones, that a time split uses for testing."""
TIME_VALIDATION_SHARE = 0.1
"""Share of all rows, the latest before the test rows, that a time split uses for validation."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """Rules of an evaluation: held-out items, training negatives, ranked candidates."""

    name: str
    deduplicate: bool
    """True if only the first row of each (user, item) pair counts."""
    split: Literal["leave-one-out", "time"]
    """Held-out rows: each user's last two, or everything after one moment in time."""
    negatives_avoid: Literal["training", "everything"]
    """Items that training never draws as negatives: the user's training items, and under a leaky
    protocol its held-out items too."""
    rank_all: bool
    """True if the main metrics rank all unseen items, false if only the sampled candidates."""
    candidates: int = 99
    """Number of sampled candidates per user."""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise UnskewError(
                f"Protocol {self.name} asks for {self.candidates} candidates: give at least 1."
            )


PROTOCOLS: dict[str, EvaluationProtocol] = {
    protocol.name: protocol
    for protocol in (
        EvaluationProtocol("paper", False, "leave-one-out", "everything", rank_all=False),
        EvaluationProtocol("leak-free", True, "leave-one-out", "training", rank_all=True),
        EvaluationProtocol("time", True, "time", "training", rank_all=True),
    )
}
"""The evaluation protocols by name."""


def prepare(
    interactions: Interactions,
    protocol: str | EvaluationProtocol = "leak-free",
    seed: int = 0,
) -> Split:
    """Split interactions into training, validation and test; ``seed`` draws the candidates only."""
    if isinstance(protocol, str) and protocol not in PROTOCOLS:
        raise UnskewError(
            f"There is no evaluation protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}."
        )
    rules = PROTOCOLS[protocol] if isinstance(protocol, str) else protocol
    if rules.split == "time" and (interactions.clock != "time" or interactions.timestamps is None):
        raise UnskewError(
            f"The {rules.name} protocol needs real timestamps and {interactions.name} has none: "
            "use the leak-free protocol instead."
        )
    notes = list(interactions.notes)
    kept, clock = _keep_rows(interactions, rules.deduplicate, notes)
    cut = _cut_time if rules.split == "time" else _leave_one_out
    train, validation, test = cut(kept, clock, notes)

    # Users without a row to train on are left out; the catalogue is every kept item.
    trains = np.bincount(kept.users[train], minlength=len(kept.user_ids)) > 0
    users = (np.cumsum(trains) - 1)[kept.users]
    n_users, n_items = int(np.count_nonzero(trains)), len(kept.item_ids)
    in_time = np.lexsort((clock, kept.users))
    in_time = in_time[trains[kept.users[in_time]]]

    def lists(rows: Bool) -> Ragged:
        chosen = in_time[rows[in_time]]
        return lists_from_pairs(users[chosen], kept.items[chosen], n_users)

    known = sets_from_pairs(users[in_time], kept.items[in_time], n_users, n_items)
    train_lists, test_lists = lists(train), lists(test)
    seen = distinct(train_lists, n_items)
    both = int(np.count_nonzero(contains(seen, test_lists, n_items)))
    _note(notes, both, f"of {len(test_lists.items):,} test pairs also stand in training")
    if not validation.any():
        notes.append("nobody has validation items; the model of the last round is used")
    if not test.any():
        notes.append("nobody has test items, so there are no metrics")
    sampled = np.full((n_users, rules.candidates), -1, np.int32)
    _draw_candidates(known, n_items, seed, sampled)
    return Split(
        data=interactions.name,
        protocol=rules.name,
        user_ids=tuple(itertools.compress(kept.user_ids, trains)),
        item_ids=kept.item_ids,
        titles=kept.titles,
        train=train_lists,
        seen=seen,
        excluded=known if rules.negatives_avoid == "everything" else seen,
        validation=lists(validation),
        test=test_lists,
        sampled=sampled,
        rank_all=rules.rank_all,
        notes=tuple(notes),
    )


_Parts = tuple[Bool, Bool, Bool]
"""Three masks over rows: training, validation, test."""


def _leave_one_out(kept: Interactions, clock: Int64, notes: list[str]) -> _Parts:
    """Test on each user's latest row, validate on the one before, train on all earlier rows. Users
    with too few rows for that only train.

    Of rows with equal times, the one that comes first in the file counts as the later one.
    """
    per_user = np.bincount(kept.users, minlength=len(kept.user_ids))
    enough = _can_be_evaluated(per_user, notes)
    latest_first = np.lexsort((-clock, kept.users))
    starts = (np.cumsum(per_user) - per_user)[enough]
    validation, test = np.zeros((2, len(clock)), bool)
    test[latest_first[starts]] = validation[latest_first[starts + 1]] = True
    return ~validation & ~test, validation, test


def _can_be_evaluated(rows_per_user: Int64, notes: list[str]) -> Bool:
    """Which users have enough rows to hold some out; notes how many have not."""
    enough: Bool = rows_per_user >= LEAVE_ONE_OUT_MIN_ROWS
    _note(
        notes,
        int(np.count_nonzero(~enough)),
        f"users with fewer than {LEAVE_ONE_OUT_MIN_ROWS} rows train and get recommendations, but "
        "are not evaluated",
    )
    return enough


def _cut_time(kept: Interactions, clock: Int64, notes: list[str]) -> _Parts:
    """Split into training, validation and test at two points in time, the same for all users.

    Rows with equal times go to the same (later) part, so slightly more rows than intended may be
    held out. Items without training rows are not held out.
    """
    in_order = np.sort(clock)
    n_test = max(round(len(clock) * TIME_TEST_SHARE), 1)
    n_held_out = n_test + max(round(len(clock) * TIME_VALIDATION_SHARE), 1)
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
    _note(notes, gone, "users without a row before the time cut left out")
    unknown = int(np.count_nonzero(stays & ~trained_on))
    _note(notes, unknown, "later rows not held out: nobody had their item in training")
    return train, ~train & ~test & trained_on, test & trained_on


def _keep_rows(
    interactions: Interactions, deduplicate: bool, notes: list[str]
) -> tuple[Interactions, Int64]:
    """Drop non-positive ratings, then repeated rows if ``deduplicate``, then users with few rows.

    Returns the remaining rows in file order, with users and items numbered by first appearance, and
    the time of each row (its row number if the source has no times).
    """
    users = interactions.users.astype(np.int64)
    items = interactions.items.astype(np.int64)
    rows = np.arange(len(users))

    if interactions.ratings is not None:
        rows = np.flatnonzero(interactions.ratings > 0)
        _note(notes, len(users) - len(rows), "rows without a positive rating left out")

    if deduplicate:
        repeated = len(rows)
        pairs = users[rows] * max(len(interactions.item_ids), 1) + items[rows]
        rows = rows[np.sort(np.unique(pairs, return_index=True)[1])]
        _note(notes, repeated - len(rows), "repeated (user, item) rows left out")

    per_user = np.bincount(users[rows], minlength=len(interactions.user_ids))
    enough = per_user >= interactions.min_user_rows
    rows = rows[enough[users[rows]]]
    few = f"users with fewer than {interactions.min_user_rows} rows left out"
    _note(notes, int(np.count_nonzero(~enough)), few)
    if len(rows) == 0:
        raise UnskewError(
            f"No user of {interactions.name} has {interactions.min_user_rows} or more usable rows: "
            "lower min_user_rows or give a larger file."
        )

    users, old_users = _number_by_appearance(users[rows], len(interactions.user_ids))
    items, old_items = _number_by_appearance(items[rows], len(interactions.item_ids))
    titles = interactions.titles
    kept = replace(
        interactions,
        users=users.astype(np.int32),
        items=items.astype(np.int32),
        user_ids=tuple(interactions.user_ids[old] for old in old_users.tolist()),
        item_ids=tuple(interactions.item_ids[old] for old in old_items.tolist()),
        titles=None if titles is None else tuple(titles[old] for old in old_items.tolist()),
    )
    clock = rows if interactions.timestamps is None else interactions.timestamps[rows]
    return kept, clock.astype(np.int64)


def _number_by_appearance(codes: Int64, n_codes: int) -> tuple[Int64, Int64]:
    """Renumber codes as 0, 1, … by first appearance. Returns the new number of each entry and the
    old code of each number. ``n_codes`` is larger than every code."""
    first = np.full(n_codes, len(codes), np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    present = np.flatnonzero(first < len(codes))
    old = present[np.argsort(first[present])]
    fresh = np.full(n_codes, -1, np.int64)
    fresh[old] = np.arange(len(old))
    return fresh[codes], old


def _note(notes: list[str], count: int, what: str) -> None:
    if count:
        notes.append(f"{count:,} {what}")


@jit
def _draw_candidates(known: Ragged, n_items: int, seed: int, drawn: Int32) -> None:
    """Fill each user's row of ``drawn`` with random distinct items that are not in ``known``.

    A user's draw depends only on the seed, the user's number and the user's list. A user with too
    few eligible items gets all of them in ascending order; the remaining entries are not changed.
    """
    n_users, count = drawn.shape
    taken_by = np.full(n_items, -1, np.int64)
    for user in range(n_users):
        eligible = n_items
        for item in known.items[known.indptr[user] : known.indptr[user + 1]]:
            if taken_by[item] != user:
                taken_by[item] = user
                eligible -= 1
        n_drawn = 0
        if eligible <= count:
            for item in range(n_items):
                if taken_by[item] != user:
                    drawn[user, n_drawn] = item
                    n_drawn += 1
            continue
        state = stream(seed, 0, user, _CANDIDATES)
        counter = 0
        while n_drawn < count:
            item = below(value(state, counter), n_items)
            counter += 1
            if taken_by[item] != user:
                taken_by[item] = user
                drawn[user, n_drawn] = item
                n_drawn += 1
