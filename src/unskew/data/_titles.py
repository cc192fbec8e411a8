"""Titles of items, from a file the user names or from the one that lies beside the ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from unskew.data._columns import find_alias, listed
from unskew.data._files import read_bytes
from unskew.data._registry import Source, TextFormat
from unskew.data._tables import read_table
from unskew.types import Interactions, UnskewError


def with_titles(interactions: Interactions, titles: Mapping[str, str]) -> Interactions:
    """A title for every item; an item without one keeps its label."""
    aligned: Sequence[str] = [titles.get(label) or label for label in interactions.item_ids]
    return replace(interactions, titles=aligned)


def read_titles(path: Path) -> dict[str, str]:
    """Item label → title, from a table with a header."""
    table = read_table(path)
    names = table.frame.columns
    item = find_alias("item", names) or ("id" if "id" in names else None)
    title = find_alias("title", [name for name in names if name != item])
    if item is None or title is None:
        raise UnskewError(
            f"{path}, line 1: titles need the columns item and title, not {listed(names)}; "
            "rename the header"
        )
    if table.ragged:
        line, fields = table.ragged[0]
        raise UnskewError(
            f"{path}, line {line}: {fields} fields where the header has {len(names)}; "
            "put titles that contain the separator in quotes"
        )
    text = pl.col(item, title).cast(pl.String).fill_null("").str.strip_chars()
    columns = table.frame.select(text)
    return dict(zip(columns[item].to_list(), columns[title].to_list(), strict=True))


def titles_beside(folder: Path, source: Source) -> dict[str, str] | None:
    """Titles from ``movies.csv`` or the publisher's own file in the folder, None without either."""
    for plain in ("movies.csv", "movies.csv.gz"):
        if (folder / plain).is_file():
            return read_titles(folder / plain)
    if source.titles is not None and (folder / source.titles.file).is_file():
        return _read_published(folder / source.titles.file, source.titles)
    return None


def _read_published(path: Path, layout: TextFormat) -> dict[str, str]:
    """Publishers' files start with label and title on every line; the rest does not matter here.
    Titles only decorate, so bytes outside the stated encoding are replaced, not refused."""
    lines = read_bytes(path).decode(layout.encoding, errors="replace").splitlines()
    titles = {}
    for line in lines[layout.columns is None :]:
        fields = line.split(layout.separator)
        if len(fields) >= 2:
            titles[fields[0].strip()] = fields[1].strip()
    return titles
