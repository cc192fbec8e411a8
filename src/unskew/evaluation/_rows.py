"""Rows on their way to a split: which are kept, how they are numbered, how they become lists.

Everything works on whole columns; a row keeps its place in the file's order throughout.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.types import Int64, Interactions, UnskewError


class KeptRows(NamedTuple):
    """The rows that count, in file order, with users and items numbered in order of first
    appearance among them. ``clock`` is the timestamp, or the row's place where there is none."""

    users: Int64
    items: Int64
    clock: Int64
    user_ids: tuple[str, ...]
    item_ids: tuple[str, ...]
    titles: tuple[str, ...] | None
    notes: tuple[str, ...]


def keep_rows(interactions: Interactions, deduplicate: bool) -> KeptRows:
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

    users, old_users = number_by_appearance(users[rows], len(interactions.user_ids))
    items, old_items = number_by_appearance(items[rows], len(interactions.item_ids))
    clock = rows if interactions.timestamps is None else interactions.timestamps[rows]
    titles = interactions.titles
    return KeptRows(
        users=users,
        items=items,
        clock=clock.astype(np.int64),
        user_ids=tuple(interactions.user_ids[old] for old in old_users.tolist()),
        item_ids=tuple(interactions.item_ids[old] for old in old_items.tolist()),
        titles=None if titles is None else tuple(titles[old] for old in old_items.tolist()),
        notes=tuple(notes),
    )


def number_by_appearance(codes: Int64, n_codes: int) -> tuple[Int64, Int64]:
    """Fresh numbers 0, 1, … in order of first appearance, and the old code behind each of them."""
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
