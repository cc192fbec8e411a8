"""Evaluation protocols: what is held out, what training may draw as negatives, what is ranked.

``paper``
    How this line of research evaluates. Rows count as they stand, repeats included; training never
    draws a held-out item as a negative, though it does draw the 99 it is later ranked against.
    That tells training which item is held out, so its figures are for comparison with the
    literature only.
``leak-free``
    The default. Repeated pairs are removed, training knows nothing but the training items, and all
    unseen items are ranked; the sampled metrics stand beside.
``time``
    As ``leak-free``, with one moment for everybody: what happened after it is held out, so no user
    trains on another user's future.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.ragged import contains, distinct, lists_from_pairs, sets_from_pairs
from unskew.rng import Purpose, below, stream, value
from unskew.types import Bool, Int32, Int64, Interactions, Ragged, Split, UnskewError

_CANDIDATES = int(Purpose.CANDIDATES)
LEAVE_ONE_OUT_MIN_ROWS = 3
"""One row to test on, one to validate on, one to train on."""
TIME_TEST_SHARE = 0.1
"""The latest share of all rows, held out for testing under a time split."""
TIME_VALIDATION_SHARE = 0.1
"""The share of all rows just before it, held out for validation."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """All rules of an evaluation."""

    name: str
    deduplicate: bool
    """Whether only the first row of each (user, item) pair counts."""
    split: Literal["leave-one-out", "time"]
    """Each user's last two rows, or everything after one moment in time."""
    negatives_avoid: Literal["training", "everything"]
    """Items that training never draws as negatives: the user's training items, and under a leaky
    protocol its held-out items too."""
    rank_all: bool
    """Whether the headline metrics rank all unseen items or only the sampled candidates."""
    candidates: int = 99
    """How many sampled candidates each user has."""

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


class _Cut(NamedTuple):
    """Training, validation and test rows, with the same users and items."""

    user_ids: tuple[str, ...]
    train: Ragged
    validation: Ragged
    test: Ragged
    known: Ragged
    """Everything a user ever interacted with, as a sorted set."""
    notes: tuple[str, ...]


def prepare(
    interactions: Interactions,
    protocol: str | EvaluationProtocol = "leak-free",
    seed: int = 0,
) -> Split:
    """Split interactions by a protocol. ``seed`` decides the sampled candidates, nothing else."""
    rules = _rules(protocol)
    if rules.split == "time" and (interactions.clock != "time" or interactions.timestamps is None):
        raise UnskewError(
            f"The {rules.name} protocol needs real timestamps and {interactions.name} has none: "
            "use the leak-free protocol instead."
        )
    kept = _keep_rows(interactions, rules.deduplicate)
    n_items = len(kept.item_ids)
    cut = (_cut_time if rules.split == "time" else _leave_one_out)(interactions.name, kept)
    seen = distinct(cut.train, n_items)

    notes = kept.notes + cut.notes
    in_training = contains(seen, cut.test, n_items)
    if in_training.any():
        both = np.count_nonzero(in_training)
        notes += (f"{both:,} of {len(in_training):,} test pairs also stand in training",)

    return Split(
        data=interactions.name,
        protocol=rules.name,
        user_ids=cut.user_ids,
        item_ids=kept.item_ids,
        titles=kept.titles,
        train=cut.train,
        seen=seen,
        excluded=cut.known if rules.negatives_avoid == "everything" else seen,
        validation=cut.validation,
        test=cut.test,
        sampled=_draw_candidates(cut.known, n_items, rules.candidates, seed),
        rank_all=rules.rank_all,
        notes=notes,
    )


def _rules(protocol: str | EvaluationProtocol) -> EvaluationProtocol:
    if isinstance(protocol, EvaluationProtocol):
        return protocol
    if protocol not in PROTOCOLS:
        raise UnskewError(
            f"There is no evaluation protocol {protocol!r}: choose one of {', '.join(PROTOCOLS)}."
        )
    return PROTOCOLS[protocol]


def _leave_one_out(data: str, kept: _KeptRows) -> _Cut:
    """Test on each user's latest row, validate on the one before, train on the rest in time order.

    Of rows with equal times, the one that comes first in the file counts as the later one.
    """
    n_users, n_items = len(kept.user_ids), len(kept.item_ids)
    per_user = np.bincount(kept.users, minlength=n_users)
    short = np.flatnonzero(per_user < LEAVE_ONE_OUT_MIN_ROWS)
    if len(short):
        raise UnskewError(
            f"User {kept.user_ids[short[0]]} of {data} has {per_user[short[0]]} usable row(s) and "
            f"leave-one-out needs {LEAVE_ONE_OUT_MIN_ROWS}: set min_user_rows to "
            f"{LEAVE_ONE_OUT_MIN_ROWS} or more to leave such users out."
        )
    starts = np.cumsum(per_user) - per_user
    latest_first = np.lexsort((-kept.clock, kept.users))
    test, validation = latest_first[starts], latest_first[starts + 1]

    trains = np.ones(len(kept.users), bool)
    trains[test] = trains[validation] = False
    in_time = np.lexsort((kept.clock, kept.users))
    train = in_time[trains[in_time]]
    return _Cut(
        user_ids=kept.user_ids,
        train=lists_from_pairs(kept.users[train], kept.items[train], n_users),
        validation=lists_from_pairs(kept.users[validation], kept.items[validation], n_users),
        test=lists_from_pairs(kept.users[test], kept.items[test], n_users),
        known=sets_from_pairs(kept.users, kept.items, n_users, n_items),
        notes=(),
    )


def _cut_time(data: str, kept: _KeptRows) -> _Cut:
    """Split at two moments that are the same for all users.

    Rows with equal times go to the same (later) part, so the held-out shares are met or exceeded.
    The catalogue is every kept item. Users without training rows are left out, and items that
    nobody trained on are not held out.
    """
    n_items = len(kept.item_ids)
    validation_starts, test_starts = _moments(data, kept.clock)
    trains = kept.clock < validation_starts
    tests = kept.clock >= test_starts
    validates = ~trains & ~tests

    has_training = np.zeros(len(kept.user_ids), bool)
    has_training[kept.users[trains]] = True
    trained_on = np.zeros(n_items, bool)
    trained_on[kept.items[trains]] = True
    fresh_number = np.cumsum(has_training) - 1
    n_users = int(np.count_nonzero(has_training))
    stays = has_training[kept.users]
    asked_for = stays & trained_on[kept.items]

    def part(rows: Bool) -> Ragged:
        chosen = np.flatnonzero(rows)
        chosen = chosen[np.lexsort((kept.clock[chosen], kept.users[chosen]))]
        return lists_from_pairs(fresh_number[kept.users[chosen]], kept.items[chosen], n_users)

    notes = []
    gone = len(kept.user_ids) - n_users
    if gone:
        notes.append(f"{gone:,} users without a row before the time cut left out")
    unknown = int(np.count_nonzero(stays & ~trained_on[kept.items]))
    if unknown:
        notes.append(f"{unknown:,} later rows not held out: nobody had their item in training")
    return _Cut(
        user_ids=tuple(name for name, has in zip(kept.user_ids, has_training, strict=True) if has),
        train=part(trains),
        validation=part(validates & asked_for),
        test=part(tests & asked_for),
        known=sets_from_pairs(fresh_number[kept.users[stays]], kept.items[stays], n_users, n_items),
        notes=tuple(notes),
    )


def _moments(data: str, clock: Int64) -> tuple[int, int]:
    """The times at which validation and testing start."""
    in_order = np.sort(clock)
    n_test = max(round(len(clock) * TIME_TEST_SHARE), 1)
    n_validation = max(round(len(clock) * TIME_VALIDATION_SHARE), 1)
    if len(clock) > n_test + n_validation:
        test_starts = in_order[-n_test]
        validation_starts = in_order[-n_test - n_validation]
        if in_order[0] < validation_starts < test_starts:
            return int(validation_starts), int(test_starts)
    raise UnskewError(
        f"{data} has too few different timestamps to cut into training, validation and test by "
        "time: use the leak-free protocol instead."
    )


class _KeptRows(NamedTuple):
    """The usable rows in file order, with users and items numbered by first appearance. ``clock``
    is the timestamp, or the row number in sources without one."""

    users: Int64
    items: Int64
    clock: Int64
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    titles: tuple[str, ...] | None
    notes: tuple[str, ...]


def _keep_rows(interactions: Interactions, deduplicate: bool) -> _KeptRows:
    """Keep positive ratings, then (if asked) each pair's first row, then users with enough rows."""
    notes = list(interactions.notes)
    users = interactions.users.astype(np.int64)
    items = interactions.items.astype(np.int64)
    rows = np.arange(len(users))

    if interactions.ratings is not None:
        positive = interactions.ratings > 0
        rows = rows[positive]
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
    clock = rows if interactions.timestamps is None else interactions.timestamps[rows]
    titles = interactions.titles
    return _KeptRows(
        users=users,
        items=items,
        clock=clock.astype(np.int64),
        user_ids=tuple(interactions.user_ids[old] for old in old_users.tolist()),
        item_ids=tuple(interactions.item_ids[old] for old in old_items.tolist()),
        titles=None if titles is None else tuple(titles[old] for old in old_items.tolist()),
        notes=tuple(notes),
    )


def _number_by_appearance(codes: Int64, n_codes: int) -> tuple[Int64, Int64]:
    """New numbers 0, 1, … in order of first appearance, and the old code of each."""
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


def _draw_candidates(known: Ragged, n_items: int, count: int, seed: int) -> Int32:
    """``count`` distinct items per user, uniform over all items outside the user's ``known`` list.

    A user's draw depends on the seed, the user's number and its own list only. A user with no more
    than ``count`` eligible items gets all of them in ascending order, then -1.
    """
    n_users = len(known.indptr) - 1
    drawn = np.full((n_users, count), -1, np.int32)
    _draw(known.indptr, known.items, n_items, seed, drawn)
    return drawn


def _draw_kernel(indptr: Int64, known: Int32, n_items: int, seed: int, drawn: Int32) -> None:
    n_users, count = drawn.shape
    taken_by = np.full(n_items, -1, np.int64)
    for user in range(n_users):
        eligible = n_items
        for entry in range(indptr[user], indptr[user + 1]):
            if taken_by[known[entry]] != user:
                taken_by[known[entry]] = user
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


_draw = jit(_draw_kernel)
