"""Data: read interactions by name or from any file, download or generate data, compute statistics.

>>> from unskew import data
>>> interactions = data.load("demo")
>>> data.info(interactions).n_users
1000
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data._checks import Rules, columns_to_read, did_you_mean
from unskew.data._demo import demo
from unskew.data._download import Progress, fetch, verify
from unskew.data._features import with_item_features
from unskew.data._frames import table_from_memory
from unskew.data._generate import generate
from unskew.data._own_splits import Format, find_split_files, load_split, write_split
from unskew.data._rows import ticks_per_second, to_interactions
from unskew.data._sources import (
    Source,
    add_titles,
    cache_folder,
    data_folder,
    find_source,
    has_titles,
    ratings_file,
    read_source,
    read_titles,
    sources,
)
from unskew.data._tables import read_table
from unskew.types import Bool, Interactions, UnskewError

__all__ = [
    "Format",
    "Source",
    "Statistics",
    "cache_folder",
    "check_source",
    "fetch",
    "generate",
    "info",
    "load",
    "load_split",
    "sources",
    "with_titles",
    "write_split",
]


@dataclass(frozen=True)
class Statistics:
    """Counts of a data set, leaving out ratings of zero or less and users with too few rows. A
    repeated (user, item) pair counts as often as it is in the file, as in published tables."""

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


def load(
    data: Any,
    *,
    name: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    columns: Mapping[str, str | None] | None = None,
    skip_bad_rows: bool = False,
    min_user_rows: int | None = None,
    titles: str | os.PathLike[str] | None = None,
    item_features: Any = None,
    progress: Progress | None = None,
) -> Interactions:
    """Read all interactions of a data set known by name, of a file, or of an object in memory.

    A name is looked up below ``data_dir`` (or ``$UNSKEW_DATA``), then in the cache, then downloaded
    from its publisher. A path may be CSV, TSV or other delimited text, gzip of these, Parquet,
    RecBole's ``.inter``, or a folder with the files of a split (see `load_split`). In memory,
    ``data`` is a pandas or polars frame, a SciPy sparse matrix (rows are users, columns items,
    values ratings), or a list of tuples (user, item) with a rating and a timestamp if there are
    any. ``columns`` says which column is the ``user``, ``item``, ``rating`` and ``timestamp`` where
    their names are unusual (None: the column is not used).

    Labels become text: user 42 and user "42" are the same. A bad row raises an `UnskewError` that
    names its line, unless ``skip_bad_rows`` drops such rows and counts them in
    ``Interactions.notes``. Users with fewer than ``min_user_rows`` rows are left out; the default
    is a property of a data set known by name, and 1 for other data. ``item_features`` is a file or
    frame with a column of items and columns of numbers, for methods that need item features.
    ``name`` is the name of your data in results.
    """
    if min_user_rows is not None and min_user_rows < 1:
        raise UnskewError(f"min_user_rows is {min_user_rows}; it must be at least 1")
    source = find_source(data) if isinstance(data, str) else None
    if source is None:
        rules = Rules(skip_bad_rows=skip_bad_rows, min_user_rows=min_user_rows or 1)
        interactions = _load_own(data, name, columns, rules)
    elif source.name == "demo":
        interactions = demo()
        if min_user_rows is not None:
            interactions = replace(interactions, min_user_rows=min_user_rows)
    else:
        path = _find_ratings(source, data_dir, progress)
        interactions = read_source(path, source, columns, skip_bad_rows, min_user_rows)
    if titles is not None:
        interactions = with_titles(interactions, titles)
    if item_features is not None:
        interactions = with_item_features(interactions, item_features)
    return interactions


def with_titles(interactions: Interactions, titles: str | os.PathLike[str]) -> Interactions:
    """Return the interactions with item titles read from a file."""
    return add_titles(interactions, read_titles(Path(titles)))


def _load_own(
    data: Any, name: str | None, columns: Mapping[str, str | None] | None, rules: Rules
) -> Interactions:
    """Read data other than a data set known by name: a file, a folder with the files of a split,
    or an object in memory."""
    if not isinstance(data, str | os.PathLike):
        name = name or "data"
        return to_interactions(table_from_memory(data, name), name, columns, rules)
    check_source(data)
    path = Path(os.path.expanduser(data))
    if not os.path.isdir(path):
        stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
        table = read_table(path, columns_to_read(columns))
        return to_interactions(table, name or stem, columns, rules)
    files: dict[str, Any] = dict(find_split_files(path))
    interactions = load_split(
        **files,
        name=name or path.resolve().name,
        columns=columns,
        skip_bad_rows=rules.skip_bad_rows,
        min_user_rows=rules.min_user_rows,
    )
    if "items" in files and has_titles(files["items"]):
        interactions = with_titles(interactions, files["items"])
    return interactions


def info(interactions: Interactions) -> Statistics:
    """Count users, items and rows, leaving out ratings <= 0 and users with too few rows."""
    users, items, n_read = interactions.users, interactions.items, len(interactions.user_ids)
    keep: Bool = np.ones(len(users), np.bool_)
    if interactions.ratings is not None:
        keep = interactions.ratings > 0
    per_user = np.bincount(users[keep], minlength=n_read)
    keep &= (per_user >= interactions.min_user_rows)[users]
    per_user = per_user[per_user >= interactions.min_user_rows]
    n_users, n_rows, n_items = len(per_user), int(keep.sum()), len(np.unique(items[keep]))
    least, median, most = np.quantile(per_user, (0.0, 0.5, 1.0)) if n_users else np.zeros(3)
    first, last = _date_range(interactions, keep)
    return Statistics(
        name=interactions.name,
        n_users=n_users,
        n_items=n_items,
        n_rows=n_rows,
        n_pairs=len(
            np.unique(users[keep].astype(np.int64) * len(interactions.item_ids) + items[keep])
        ),
        sparsity=1.0 - n_rows / max(n_users * n_items, 1),
        rows_per_user_min=int(least),
        rows_per_user_median=float(median),
        rows_per_user_max=int(most),
        clock=interactions.clock,
        first_time=first,
        last_time=last,
        min_user_rows=interactions.min_user_rows,
        n_users_read=n_read,
        n_items_read=len(interactions.item_ids),
        n_rows_read=len(users),
    )


def check_source(given: str | os.PathLike[str]) -> None:
    """Raise an error unless ``given`` is the name of a known data set or the path of a file or
    folder that exists. The file is not read."""
    path = Path(os.path.expanduser(given))
    if (isinstance(given, str) and find_source(given)) or os.path.exists(path):
        return
    if path.name != str(given) or path.suffix:
        raise UnskewError(f"{path}: no such file; check the path")
    names = [source.name for source in sources()]
    raise UnskewError(
        f"{str(given)!r} is neither a file nor a known data set{did_you_mean(str(given), names)}; "
        f"the known ones are {', '.join(names)}"
    )


def _find_ratings(
    source: Source, data_dir: str | os.PathLike[str] | None, progress: Progress | None
) -> Path:
    """Path of a data set's ratings file, below ``data_dir`` or in the cache; downloads it if it is
    in neither."""
    own, cache = data_folder(data_dir, source.name), cache_folder(source.name)
    path = ratings_file(own, source) if own is not None else None
    if path is not None:
        return path
    path = ratings_file(cache, source)
    if path is None:
        return fetch(source.name, progress=progress) / source.files[0]
    verify(cache)
    return path


def _date_range(interactions: Interactions, keep: Bool) -> tuple[str | None, str | None]:
    """ISO dates of the earliest and latest row where ``keep`` is true; None if the data has no real
    timestamps."""
    if interactions.clock != "time" or interactions.timestamps is None or not keep.any():
        return None, None
    times = interactions.timestamps[keep]
    days = np.array([times.min(), times.max()]) // (86_400 * ticks_per_second(times))
    try:
        first, last = (date(1970, 1, 1) + timedelta(days=int(day)) for day in days)
    except OverflowError:
        return None, None
    return first.isoformat(), last.isoformat()
