"""Reading a data set known by name from the folder it was found in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from unskew.data._problems import Rules
from unskew.data._registry import Source
from unskew.data._rows import to_interactions, with_order_as_clock
from unskew.data._tables import Table, read_text
from unskew.data._titles import titles_beside, with_titles
from unskew.types import Interactions

_PLAIN = ("ratings.csv", "ratings.csv.gz")


def data_folder(data_dir: str | os.PathLike[str] | None, name: str) -> Path | None:
    """Where the user keeps this data set: below ``data_dir``, or else below ``$UNSKEW_DATA``."""
    root = data_dir if data_dir is not None else os.environ.get("UNSKEW_DATA")
    return Path(root).expanduser() / name if root else None


def cache_folder(name: str) -> Path:
    """Where downloads of this data set are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "unskew" / name


def ratings_file(folder: Path, source: Source) -> Path | None:
    """The file to read in a folder: a plain CSV first, the publisher's own otherwise."""
    names = [*_PLAIN, *([source.ratings.file] if source.ratings else [])]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_named(
    path: Path,
    source: Source,
    columns: Mapping[str, str | None] | None,
    skip_bad_rows: bool,
    min_user_rows: int | None,
) -> Interactions:
    """All rows of the data set as published, with titles if they lie beside it."""
    rules = Rules(
        skip_bad_rows=skip_bad_rows,
        published=True,
        ignore_ratings=source.rating_is_label,
        min_user_rows=min_user_rows or source.min_user_rows,
    )
    interactions = to_interactions(_table(path, source), source.name, columns, rules)
    if source.clock_is_order:
        interactions = with_order_as_clock(interactions)
    titles = titles_beside(path.parent, source)
    return interactions if titles is None else with_titles(interactions, titles)


def _table(path: Path, source: Source) -> Table:
    if path.name in _PLAIN or source.ratings is None:
        return read_text(path)
    return read_text(path, source.ratings.separator, source.ratings.columns)
