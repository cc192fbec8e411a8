"""Evaluation protocols: rules for held-out items, training negatives and ranked candidates.

``paper``
    The usual evaluation in this line of research. Repeated (user, item) rows are kept. Training
    never draws a held-out item as a negative, but may draw the 99 items that it is ranked against.
    So training can learn which item is held out; use results only to compare with the literature.
``leak-free``
    The default. Repeated rows are removed, training sees only the training items, and held-out
    items are ranked among all unseen items; metrics among sampled candidates are reported as well.
``time``
    As ``leak-free``, but all rows after a point in time, the same for all users, are held out, so
    no user trains on another user's future.
``sequential``
    As ``leak-free``, with two rules of the literature on sequence models: rows with equal times
    stay in the order of the file, and the validation item is part of the history from which the
    test item is predicted.
``ratio``
    As ``leak-free``, but the latest 10 % of each user's rows are tested on, and the 10 % before
    them are for validation.

Data that comes already split (``Interactions.parts``) keeps its parts; the protocol then only says
which negatives training may draw and what is ranked.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from unskew.evaluation.splits import (
    PARTS,
    add_note,
    cut_ratio,
    cut_time,
    keep_rows,
    leave_one_out,
    sort_rows,
    use_given,
)
from unskew.jit import jit
from unskew.ragged import contains, count_owners, distinct, indptr_from_counts
from unskew.rng import Purpose, below, stream, value
from unskew.types import Bool, Int32, Int64, Interactions, Ragged, Split, UnskewError

_CANDIDATES = int(Purpose.CANDIDATES)
"""Identifier of the random stream that draws candidates, as a plain int for compiled code."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """Rules of an evaluation: held-out items, training negatives, ranked candidates."""

    name: str
    deduplicate: bool
    """True if only the first row of each (user, item) pair counts."""
    split: Literal["leave-one-out", "time", "ratio"]
    """Held-out rows: each user's last two, everything after one moment in time, or the last rows of
    each user by share."""
    negatives_avoid: Literal["training", "everything"]
    """Items that training never draws as negatives: the user's training items, and under a leaky
    protocol its held-out items too."""
    rank_all: bool
    """True if the main metrics rank all unseen items, false if only the sampled candidates."""
    candidates: int = 99
    """Number of sampled candidates per user."""
    validation_share: float = 0.1
    """Share of rows for validation, if the split is "time" (of all) or "ratio" (of each user's)."""
    test_share: float = 0.1
    """Share of the rows to test on, if the split is "time" or "ratio"."""
    latest_of_ties: Literal["first", "last"] = "first"
    """The row that counts as the latest among a user's rows with equal times: the first one in the
    file (the paper's rule) or the last one."""
    validation_in_history: bool = False
    """True if a user's history includes the validation items when the test items are predicted."""

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise UnskewError(
                f"Protocol {self.name} asks for {self.candidates} candidates: give at least 1."
            )
        shares = self.validation_share, self.test_share
        if min(shares) <= 0 or sum(shares) >= 1:
            raise UnskewError(
                f"Protocol {self.name} holds out the shares {shares[0]} and {shares[1]}: both must "
                "be above 0 and together below 1."
            )


PROTOCOLS: dict[str, EvaluationProtocol] = {
    protocol.name: protocol
    for protocol in (
        EvaluationProtocol("paper", False, "leave-one-out", "everything", rank_all=False),
        EvaluationProtocol("leak-free", True, "leave-one-out", "training", rank_all=True),
        EvaluationProtocol(
            "sequential",
            True,
            "leave-one-out",
            "training",
            rank_all=True,
            latest_of_ties="last",
            validation_in_history=True,
        ),
        EvaluationProtocol("time", True, "time", "training", rank_all=True),
        EvaluationProtocol("ratio", True, "ratio", "training", rank_all=True),
    )
}
"""The built-in evaluation protocols by name."""


_CUTS = {"leave-one-out": leave_one_out, "time": cut_time, "ratio": cut_ratio}
"""Function that splits the rows, by kind of split."""


class _Division(NamedTuple):
    """The usable rows of a data set, and which of them are in which part of the split."""

    kept: Interactions
    in_time: Int64
    """Row numbers, user after user, each user's in order of time."""
    rows: dict[str, Int64]
    """For each part its rows, in the same order."""
    trains: Bool
    """Which users have a training row; the others are left out of all parts."""


def prepare(
    interactions: Interactions,
    protocol: str | EvaluationProtocol = "leak-free",
    seed: int = 0,
) -> Split:
    """Split interactions into training, validation and test. ``seed`` affects only the random draw
    of ranked candidates."""
    rules, notes = find_protocol(protocol), list(interactions.notes)
    kept, in_time, rows, trains = _divide(interactions, rules, notes)
    n_users, n_items = int(np.count_nonzero(trains)), len(kept.item_ids)

    def lists(rows: Int64) -> Ragged:
        counts = _count_rows(kept.users, rows, len(trains))[trains]
        return Ragged(indptr_from_counts(counts), kept.items[rows])

    known = distinct(lists(in_time))  # also later items that are not held out
    train, validation, test = (lists(rows[part]) for part in PARTS)
    seen = distinct(train)
    both = int(np.count_nonzero(contains(seen, test)))
    add_note(notes, both, f"of {len(test.items):,} test pairs also stand in training")
    if not len(validation.items):
        notes.append("nobody has validation items; the model of the last round is used")
    if not len(test.items):
        notes.append("nobody has test items, so there are no metrics")
    sampled = np.full((n_users, rules.candidates), -1, np.int32)
    _draw_candidates(known, n_items, seed, sampled)
    times, ratings = kept.timestamps, kept.ratings
    if times is not None:
        times = None if kept.clock == "order" else times[rows["train"]]
    return Split(
        data=interactions.name,
        protocol=rules.name,
        user_ids=tuple(itertools.compress(kept.user_ids, trains)),
        item_ids=kept.item_ids,
        titles=kept.titles,
        train=train,
        seen=seen,
        excluded=known if rules.negatives_avoid == "everything" else seen,
        validation=validation,
        test=test,
        sampled=sampled,
        rank_all=rules.rank_all,
        notes=tuple(notes),
        train_ratings=None if ratings is None else ratings[rows["train"]],
        train_timestamps=times,
        period=_period(times),
        item_features=kept.item_features,
        validation_in_history=rules.validation_in_history,
    )


def _period(times: Int64 | None) -> tuple[int, int] | None:
    """Oldest and newest of these times; None without times, or if all are equal."""
    if times is None or not len(times) or times.min() == times.max():
        return None
    return int(times.min()), int(times.max())


def find_protocol(protocol: str | EvaluationProtocol) -> EvaluationProtocol:
    """The protocol of this name; a protocol object is returned as it is."""
    if not isinstance(protocol, str):
        return protocol
    if protocol not in PROTOCOLS:
        raise UnskewError(
            f'There is no protocol "{protocol}"; choose one of {", ".join(PROTOCOLS)}.'
        )
    return PROTOCOLS[protocol]


def split_frames(
    interactions: Interactions, protocol: str | EvaluationProtocol = "leak-free"
) -> dict[str, pl.DataFrame]:
    """The split of a protocol as tables of labels: "train", "validation" and "test" with user, item
    and, where known, rating and timestamp, each user's rows in order of time; "users" and "items"
    in the order of their numbers."""
    kept, _, rows, trains = _divide(interactions, find_protocol(protocol), [])
    users, items = pl.Series(kept.user_ids), pl.Series(kept.item_ids)
    frames = {}
    for part in PARTS:
        own = rows[part]
        columns: dict[str, Any] = {"user": users[kept.users[own]], "item": items[kept.items[own]]}
        if kept.ratings is not None:
            columns["rating"] = kept.ratings[own]
        if kept.timestamps is not None and kept.clock == "time":
            columns["timestamp"] = kept.timestamps[own]
        frames[part] = pl.DataFrame(columns)
    frames["users"] = pl.DataFrame({"user": users.filter(pl.Series(trains))})
    frames["items"] = pl.DataFrame({"item": items, "title": list(kept.titles or kept.item_ids)})
    return frames


def _divide(interactions: Interactions, rules: EvaluationProtocol, notes: list[str]) -> _Division:
    timeless = interactions.clock != "time" or interactions.timestamps is None
    if interactions.parts is not None and rules.split != "leave-one-out":
        raise UnskewError(
            f"{interactions.name} is already split and the {rules.name} protocol would split it "
            "again: use the leak-free protocol instead."
        )
    if rules.split == "time" and timeless:
        raise UnskewError(
            f"The {rules.name} protocol needs real timestamps and {interactions.name} has none: "
            "use the leak-free protocol instead."
        )
    kept, clock = keep_rows(interactions, rules.deduplicate, notes)
    cut = _CUTS[rules.split] if kept.parts is None else use_given
    sorted_rows = sort_rows(kept, clock)
    masks, in_time = cut(sorted_rows, rules, notes), sorted_rows.in_time
    # Users without a row to train on are left out; the catalogue is every kept item.
    trains = count_owners(kept.users[masks.train], len(kept.user_ids)) > 0
    if not trains.all():
        in_time = in_time[trains[kept.users[in_time]]]
    rows = {part: in_time[mask[in_time]] for part, mask in zip(PARTS, masks, strict=True)}
    return _Division(kept, in_time, rows, trains)


@jit
def _count_rows(users: Int32, rows: Int64, n_users: int) -> Int64:
    """Number of ``rows`` of each user."""
    counts = np.zeros(n_users, np.int64)
    for row in rows:
        counts[users[row]] += 1
    return counts


@jit
def _draw_candidates(known: Ragged, n_items: int, seed: int, drawn: Int32) -> None:
    """Fill each user's row of ``drawn`` with random distinct items that are not in ``known``.

    A user's draw depends only on the seed, the user's number and the user's items in ``known``. If
    a user has too few other items, all of them are drawn, in ascending order, and the remaining
    entries of the row are not changed.
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
