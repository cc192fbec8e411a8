"""The counts by which papers describe a data set."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np

from unskew.types import Bool, Interactions

_TICKS_PER_SECOND = ((10**11, 1), (10**14, 10**3), (10**17, 10**6))
"""(bound, ticks): a median timestamp below ``bound`` counts so many ticks per second; nanoseconds
above the last bound."""


@dataclass(frozen=True)
class Statistics:
    """Counts of the rows that take part: ratings above zero, users with enough rows. A repeated
    (user, item) pair counts as often as it is in the file, as in published tables."""

    name: str
    n_users: int
    n_items: int
    n_rows: int
    n_pairs: int
    """Distinct (user, item) pairs."""
    sparsity: float
    """Share of the users × items grid without a row, from ``n_rows``."""
    rows_per_user_min: int
    rows_per_user_median: float
    rows_per_user_max: int
    clock: str
    first_time: str | None
    """Earliest and latest row as ISO dates (UTC); None where the clock is not time."""
    last_time: str | None
    min_user_rows: int
    n_users_read: int
    """Users, items and rows in the file, before any were left out."""
    n_items_read: int
    n_rows_read: int


def info(interactions: Interactions) -> Statistics:
    """Count the rows, users and items that take part."""
    users, items = interactions.users, interactions.items
    keep: Bool = np.ones(len(users), np.bool_)
    if interactions.ratings is not None:
        keep = interactions.ratings > 0
    per_user = np.bincount(users[keep], minlength=len(interactions.user_ids))
    keep &= (per_user >= interactions.min_user_rows)[users]
    per_user = per_user[per_user >= interactions.min_user_rows]
    n_users, n_rows = len(per_user), int(keep.sum())
    n_items = len(np.unique(items[keep]))
    pairs = users[keep].astype(np.int64) * len(interactions.item_ids) + items[keep]
    first, last = _date_range(interactions, keep)
    cells = n_users * n_items
    return Statistics(
        name=interactions.name,
        n_users=n_users,
        n_items=n_items,
        n_rows=n_rows,
        n_pairs=len(np.unique(pairs)),
        sparsity=1.0 - n_rows / cells if cells else 1.0,
        rows_per_user_min=int(per_user.min()) if n_users else 0,
        rows_per_user_median=float(np.median(per_user)) if n_users else 0.0,
        rows_per_user_max=int(per_user.max()) if n_users else 0,
        clock=interactions.clock,
        first_time=first,
        last_time=last,
        min_user_rows=interactions.min_user_rows,
        n_users_read=len(interactions.user_ids),
        n_items_read=len(interactions.item_ids),
        n_rows_read=len(users),
    )


def _date_range(interactions: Interactions, keep: Bool) -> tuple[str | None, str | None]:
    if interactions.clock != "time" or interactions.timestamps is None or not keep.any():
        return None, None
    times = interactions.timestamps[keep]
    middle = abs(int(np.median(times)))
    scale = next((ticks for bound, ticks in _TICKS_PER_SECOND if middle < bound), 10**9)
    return _iso_date(int(times.min()) // scale), _iso_date(int(times.max()) // scale)


def _iso_date(seconds: int) -> str | None:
    try:
        return (date(1970, 1, 1) + timedelta(days=seconds // 86_400)).isoformat()
    except OverflowError:
        return None
