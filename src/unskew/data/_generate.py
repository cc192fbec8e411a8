"""Write generated interactions of any size to a file, in parts: ``unskew data make``.

The films, tastes, times and the heavy tail of rows per user are those of the film service in
``_films``. Drawing each film from all films, as ``_demo`` does, would cost users times items. Here
a user picks a film from a shortlist of 32: they are drawn by popularity, and the user takes one
that it has not watched, with a probability in proportion to exp(taste · style). So the cost follows
the rows.

The file has the columns ``user``, ``item`` and ``timestamp``, whole numbers, users one after the
other, each in order of time. The same sizes and seed give the same file on every machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from unskew.data._download import Progress
from unskew.data._films import (
    COHORT_USERS,
    DIMENSIONS,
    N_PHASES,
    Films,
    draw_row_counts,
    draw_tastes,
    draw_times,
    make_films,
)
from unskew.data._threads import map_ahead
from unskew.files import write_atomically
from unskew.jit import jit
from unskew.ragged import indptr_from_counts, user_blocks
from unskew.rng import Purpose, below, stream, value
from unskew.types import Float64, Int32, Int64, UnskewError

SHORTLIST = 32
"""Number of films from which a user picks the next one."""
_PART_ROWS = 1_000_000
"""Rows written at a time; a part may be larger by the rows of one user."""
_MIN_TICKETS = 1 << 20
"""Minimum number of tickets in the draw by popularity."""
_TICKETS_PER_ITEM = 16
"""Minimum number of tickets per film, on average."""
_MAX_COUNT = 2**31 - 1
"""Maximum number of users and of items: their numbers are 32-bit integers."""
_MAX_SEED = 2**63 - 1
"""Maximum seed, as for runs."""
_SCHEMA = {"user": pl.Int32(), "item": pl.Int32(), "timestamp": pl.Int64()}
"""Columns of the file."""
_BLOCK, _DEMO_DATA = 11, int(Purpose.DEMO_DATA)
"""Identifiers of the random streams that draw shortlists, as plain ints for compiled code."""


class _Service(NamedTuple):
    """Films, each user's number of rows, and the seed: all parts of a file are drawn from these."""

    films: Films
    tickets: Int32
    """Film numbers, each as often as its popularity says."""
    counts: Int64
    """Rows of each user."""
    seed: int


def generate(
    path: str | os.PathLike[str],
    users: int,
    items: int,
    rows: int,
    seed: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Write generated interactions to a CSV or Parquet file, by its ending.

    Every user has at least one row, and nobody has an item twice; an item that nobody drew is not
    in the file. ``progress`` is called with the number of rows written and to write. Memory does
    not grow with the rows.
    """
    path = Path(path)
    write = {".csv": _write_csv, ".parquet": _write_parquet}.get(path.suffix.lower())
    if write is None:
        raise UnskewError(f"{path}: the name must end in .csv or .parquet; give another name.")
    _check_sizes(users, items, rows)
    if not 0 <= seed <= _MAX_SEED:
        raise UnskewError(f"The seed {seed} is not from 0 to 2^63 - 1; give another one.")
    films = make_films(items, seed)
    weights = np.concatenate(
        [draw_row_counts(cohort, seed) for cohort in range(-(-users // COHORT_USERS))]
    )[:users]
    service = _Service(films, _tickets(films.popularity), _share_rows(weights, items, rows), seed)
    try:
        write_atomically(path, partial(write, _frames(service, progress)))
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnskewError(
            f"{path}: cannot be written ({reason}); check the path, its permissions and free space."
        ) from error
    return path


def _check_sizes(users: int, items: int, rows: int) -> None:
    for what, count in (("users", users), ("items", items)):
        if not 1 <= count <= _MAX_COUNT:
            raise UnskewError(f"{count} {what}: give a number from 1 to {_MAX_COUNT:,}.")
    if rows < users:
        raise UnskewError(
            f"{rows:,} rows are too few for {users:,} users: give at least one row per user."
        )
    if rows > users * items:
        raise UnskewError(
            f"{rows:,} rows are too many: {users:,} users and {items:,} items make "
            f"{users * items:,} different pairs; give fewer rows or more items."
        )


def _share_rows(weights: Int64, most: int, rows: int) -> Int64:
    """Divide ``rows`` among users in proportion to ``weights``, at least 1 and at most ``most``
    each."""
    counts = np.ones(len(weights), np.int64)
    while left := rows - int(counts.sum()):
        total = np.cumsum(weights * (counts < most))
        shares = np.diff(np.floor(total / total[-1] * left), prepend=0.0)
        counts = np.minimum(counts + shares.astype(np.int64), most)
    return counts


def _tickets(popularity: Float64) -> Int32:
    """Film numbers for a draw by popularity: each film at least once and in proportion."""
    total = max(_MIN_TICKETS, _TICKETS_PER_ITEM * len(popularity))
    copies = 1 + (popularity * (total / np.cumsum(popularity)[-1])).astype(np.int64)
    return np.repeat(np.arange(len(popularity), dtype=np.int32), copies)


def _frames(service: _Service, progress: Progress | None) -> Iterator[pl.DataFrame]:
    """The rows in parts, user after user."""
    indptr, done = indptr_from_counts(service.counts), 0
    for frame in map_ahead(partial(_draw_part, service), user_blocks(indptr, _PART_ROWS)):
        yield frame
        done += frame.height
        if progress is not None:
            progress(done, int(indptr[-1]))


def _draw_part(service: _Service, users: tuple[int, int]) -> pl.DataFrame:
    """The rows of a range of users (first, end)."""
    first, end = users
    films, tickets, counts, seed = service
    counts = counts[first:end]
    cohorts = range(first // COHORT_USERS, (end - 1) // COHORT_USERS + 1)
    tastes = zip(*(draw_tastes(films, cohort, seed) for cohort in cohorts), strict=True)
    skip = first - cohorts.start * COHORT_USERS
    early, late = (np.concatenate(taste)[skip : skip + len(counts)] for taste in tastes)
    indptr, items = indptr_from_counts(counts), np.empty(counts.sum(), np.int32)
    _draw_items(seed, first, indptr, early, late, films.styles, tickets, items)
    return pl.DataFrame(
        {
            "user": np.repeat(np.arange(first, end, dtype=np.int32), counts),
            "item": items,
            "timestamp": draw_times(counts, first, seed),
        }
    )


@jit
def _draw_items(
    seed: int,
    first_user: int,
    indptr: Int64,
    early: Float64,
    late: Float64,
    styles: Float64,
    tickets: Int32,
    items: Int32,
) -> None:
    """Fill ``items`` with each user's items in the order watched, without repeats. If a user has
    watched all of a shortlist, it takes the next item by number after the first of the list."""
    n_items = len(styles)
    taken_by = np.full(n_items, -1, np.int64)
    taste = np.empty(DIMENSIONS)
    shortlist, weights = np.empty(SHORTLIST, np.int64), np.empty(SHORTLIST)
    for user in range(len(indptr) - 1):
        state = stream(seed, _BLOCK, first_user + user, _DEMO_DATA)
        counter, count = 0, indptr[user + 1] - indptr[user]
        for n in range(count):
            share = (n * N_PHASES // count) / (N_PHASES - 1)
            for k in range(DIMENSIONS):
                taste[k] = early[user, k] * (1.0 - share) + late[user, k] * share
            for s in range(SHORTLIST):
                item = tickets[below(value(state, counter + s), len(tickets))]
                affinity = 0.0
                for k in range(DIMENSIONS):
                    affinity += taste[k] * styles[item, k]
                shortlist[s] = item
                weights[s] = 0.0 if taken_by[item] == user else 1.0 + affinity * (1.0 / 1024.0)
            for s in range(SHORTLIST):  # exp(x) = (1 + x/1024)^1024, as in `_films.exp`
                power = max(weights[s], 0.0)
                for _ in range(10):
                    power *= power
                weights[s] = power
            total = 0.0
            for s in range(SHORTLIST):
                total += weights[s]
            left = total * (value(state, counter + SHORTLIST) >> np.uint64(11)) * 2.0**-53
            counter += SHORTLIST + 1
            item = shortlist[0]
            for s in range(SHORTLIST):
                if weights[s] > 0.0:
                    item = shortlist[s]
                    left -= weights[s]
                    if left < 0.0:
                        break
            while taken_by[item] == user:
                item = (item + 1) % n_items
            taken_by[item] = user
            items[indptr[user] + n] = item


def _write_csv(frames: Iterator[pl.DataFrame], file: BinaryIO) -> None:
    for number, frame in enumerate(frames):
        frame.write_csv(file, include_header=number == 0)


def _write_parquet(frames: Iterator[pl.DataFrame], file: BinaryIO) -> None:
    """Write row group after row group, which polars does only for a source of its own engine."""

    def source(*_: Any) -> Iterator[pl.DataFrame]:
        return frames

    try:
        register_io_source(source, schema=_SCHEMA).sink_parquet(file)
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt):  # polars raises it a second time
            time.sleep(0)
        raise
