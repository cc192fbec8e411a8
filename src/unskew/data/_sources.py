"""The data sets known by name: who publishes them, under what terms, and how to read their files.

The package contains none of these data. Sizes and SHA-256 of the publishers' archives were recorded
by TensorFlow Datasets (MovieLens) and by several public experiment scripts that agree (Last.fm).
A SHA-256 of None means that none was found; the first download is then trusted and its SHA-256
recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unskew.data._checks import Rules, columns_to_read, find_usual_name, quote_names
from unskew.data._rows import to_interactions
from unskew.data._tables import check_flat, read_bytes, read_table, read_text
from unskew.types import Interactions, UnskewError

_HETREC_PAPER = (
    "I. Cantador, P. Brusilovsky and T. Kuflik, 2nd Workshop on Information Heterogeneity and "
    "Fusion in Recommender Systems (HetRec 2011), RecSys 2011"
)
"""Citation for the HetRec 2011 data sets."""
_PLAIN_FILES = ("ratings.csv", "ratings.csv.gz")
"""Ratings files with a header line, read in place of the publisher's file if present."""


@dataclass(frozen=True)
class TextFormat:
    """Format of a publisher's text file; ``columns`` are its columns if it has no header line."""

    file: str
    separator: str
    columns: tuple[str, ...] | None = None
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Source:
    """A data set that can be loaded by name: its publisher, licence, archive and file formats."""

    name: str
    title: str
    url: str | None
    """The publisher's page or file; None for generated data."""
    licence: str
    citation: str
    min_user_rows: int = 10
    """Users with fewer rows are left out, as in the published comparisons."""
    archive: str | None = None
    """Path of the downloadable archive below ``base_url``; None where there is none."""
    base_url: str = "https://files.grouplens.org/datasets/"
    size: int | None = None
    """Bytes of the archive, where on record."""
    sha256: str | None = None
    """SHA-256 of the archive, where on record."""
    ratings: TextFormat | None = None
    titles: TextFormat | None = None
    clock_is_order: bool = False
    """True if the source has no timestamps and items' order of first appearance replaces them."""
    rating_is_label: bool = False
    """True if the rating column holds no ratings (Last.fm's tags), so that every row counts."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the publisher's files that are read, the ratings file first."""
        return tuple(part.file for part in (self.ratings, self.titles) if part is not None)


_SHA256 = {
    "ml-100k": "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
    "ml-1m": "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    "ml-latest-small": "696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
}
"""SHA-256 of the publishers' archives, by data set."""
_ARCHIVE_BYTES = {"ml-100k": 4_924_029, "ml-1m": 5_917_549, "ml-latest-small": 978_202}
"""Sizes of the publishers' archives in bytes, by data set."""
_COLUMNS = ("user", "item", "rating", "timestamp")
"""Columns of MovieLens ratings files that have no header line."""


def _movielens(name: str, ratings: TextFormat, titles: TextFormat, **about: Any) -> Source:
    """Make the ``Source`` of a MovieLens data set; ``about`` overrides MovieLens's usual fields."""
    edition = name.removeprefix("ml-")
    about = {
        "title": f"MovieLens {edition.upper()}",
        "url": f"https://grouplens.org/datasets/movielens/{edition}/",
        "licence": "research use with acknowledgement; no redistribution or commercial use "
        "without permission",
        "citation": "F. M. Harper and J. A. Konstan, The MovieLens Datasets: History and Context, "
        "ACM TiiS 5(4), 2015",
        "archive": f"movielens/{name}.zip",
        "size": _ARCHIVE_BYTES[name],
        "sha256": _SHA256[name],
        **about,
    }
    return Source(name, ratings=ratings, titles=titles, **about)


_SOURCES = (
    Source(
        name="demo",
        title="Generated films, users with drifting taste",
        url=None,
        licence="generated here; free of any terms",
        citation="unskew",
    ),
    Source(
        name="filmtrust",
        title="FilmTrust",
        url="https://guoguibing.github.io/librec/datasets.html",
        licence="none stated; its readme asks to cite the paper",
        citation="G. Guo, J. Zhang and N. Yorke-Smith, A Novel Bayesian Similarity Measure for "
        "Recommender Systems, IJCAI 2013",
        ratings=TextFormat("ratings.txt", " ", ("user", "item", "rating")),
        clock_is_order=True,
    ),
    _movielens(
        "ml-100k",
        TextFormat("u.data", "\t", _COLUMNS),
        TextFormat("u.item", "|", ("item", "title"), "latin-1"),
    ),
    _movielens(
        "ml-1m",
        TextFormat("ratings.dat", "::", _COLUMNS),
        TextFormat("movies.dat", "::", ("item", "title"), "latin-1"),
    ),
    Source(
        name="hetrec2011",
        title="HetRec 2011 MovieLens 2K",
        url="https://grouplens.org/datasets/hetrec-2011/",
        licence="non-commercial use; acknowledge MovieLens, IMDb, Rotten Tomatoes and HetRec 2011",
        citation=_HETREC_PAPER,
        archive="hetrec2011/hetrec2011-movielens-2k-v2.zip",
        ratings=TextFormat("user_ratedmovies-timestamps.dat", "\t"),
        titles=TextFormat("movies.dat", "\t", encoding="latin-1"),
    ),
    Source(
        name="lastfm-2k",
        title="HetRec 2011 Last.fm 2K, one row per user, artist and tag",
        url="https://grouplens.org/datasets/hetrec-2011/",
        licence="non-commercial use; acknowledge Last.fm and HetRec 2011",
        citation=_HETREC_PAPER,
        min_user_rows=5,
        archive="hetrec2011/hetrec2011-lastfm-2k.zip",
        sha256="6738f48195667ff03caaab4d32ca9a3133d8cc026b7c3cdaf6ce1010e913c59c",
        ratings=TextFormat("user_taggedartists-timestamps.dat", "\t"),
        titles=TextFormat("artists.dat", "\t"),
        rating_is_label=True,
    ),
    _movielens(
        "ml-latest-small",
        TextFormat("ratings.csv", ","),
        TextFormat("movies.csv", ","),
        title="MovieLens latest small (September 2018)",
        url="https://grouplens.org/datasets/movielens/latest/",
        licence="research use with acknowledgement; may be redistributed under the same terms; "
        "no commercial use without permission",
    ),
)
"""All data sets that can be loaded by name."""


def sources() -> tuple[Source, ...]:
    """All data sets that can be loaded by name."""
    return _SOURCES


def find_source(name: str) -> Source | None:
    """The known data set of this name, or None."""
    return next((source for source in _SOURCES if source.name == name), None)


def data_folder(data_dir: str | os.PathLike[str] | None, name: str) -> Path | None:
    """Folder for your copy of a data set, below ``data_dir`` or else ``$UNSKEW_DATA``; None if
    neither is given."""
    root = data_dir if data_dir is not None else os.environ.get("UNSKEW_DATA")
    return Path(root).expanduser() / name if root else None


def cache_folder(name: str) -> Path:
    """Cache folder into which a data set is downloaded."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "unskew" / name


def ratings_file(folder: Path, source: Source) -> Path | None:
    """Ratings file in a folder: ``ratings.csv`` or else the publisher's file; None if neither."""
    names = [*_PLAIN_FILES, *source.files[:1]]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_source(
    path: Path,
    source: Source,
    columns: Mapping[str, str | None] | None,
    skip_bad_rows: bool,
    min_user_rows: int | None,
) -> Interactions:
    """Read a known data set from its ratings file, and item titles if the same folder has them."""
    rules = Rules(
        skip_bad_rows=skip_bad_rows,
        published=True,
        min_user_rows=min_user_rows or source.min_user_rows,
    )
    if source.rating_is_label:
        columns = {**(columns or {}), "rating": None}
    separator, names = None, None
    if path.name not in _PLAIN_FILES and source.ratings is not None:
        separator, names = source.ratings.separator, source.ratings.columns
    table = read_text(path, separator, names, columns_to_read(columns))
    interactions = to_interactions(table, source.name, columns, rules)
    if source.clock_is_order:
        # Items are numbered in order of first appearance, so their numbers serve as a clock.
        times = interactions.timestamps
        order = interactions.items.astype(np.int64) if times is None else times
        interactions = replace(interactions, timestamps=order, clock="order")
    titles = _read_titles_beside(path.parent, source)
    return interactions if titles is None else add_titles(interactions, titles)


def add_titles(interactions: Interactions, titles: Mapping[str, str]) -> Interactions:
    """Return the interactions with item titles; the title of an item without one is its label."""
    aligned = [titles.get(label) or label for label in interactions.item_ids]
    return replace(interactions, titles=aligned)


def read_titles(path: Path) -> dict[str, str]:
    """Read item titles, by item label, from a table with a header line."""
    table = read_table(path)
    names = table.frame.columns
    item = find_usual_name("item", names) or ("id" if "id" in names else None)
    title = find_usual_name("title", [name for name in names if name != item])
    if item is None or title is None:
        raise UnskewError(
            f"{path}, line 1: titles need the columns item and title, not {quote_names(names)}; "
            "rename the header"
        )
    if table.ragged:
        line, fields = table.ragged[0]
        raise UnskewError(
            f"{path}, line {line}: {fields} fields where the header has {len(names)}; "
            "put titles that contain the separator in quotes"
        )
    check_flat(path, table.frame.select(item, title))
    text = pl.col(item, title).cast(pl.String).fill_null("").str.strip_chars()
    columns = table.frame.select(text)
    return dict(zip(columns[item].to_list(), columns[title].to_list(), strict=True))


def has_titles(path: Path) -> bool:
    """Whether a table of items has a column of titles."""
    return find_usual_name("title", read_table(path).frame.columns) is not None


def _read_titles_beside(folder: Path, source: Source) -> dict[str, str] | None:
    """Item titles by label, from ``movies.csv`` or else the publisher's file in a folder; None if
    the folder has neither.

    In a publisher's file, label and title are the first two fields of every line. Bytes outside its
    encoding are replaced, because titles are only for display."""
    for plain in ("movies.csv", "movies.csv.gz"):
        if (folder / plain).is_file():
            return read_titles(folder / plain)
    layout = source.titles
    if layout is None or not (folder / layout.file).is_file():
        return None
    lines = read_bytes(folder / layout.file).decode(layout.encoding, errors="replace").splitlines()
    rows = [line.split(layout.separator) for line in lines[layout.columns is None :]]
    return {fields[0].strip(): fields[1].strip() for fields in rows if len(fields) >= 2}
