"""The data sets known by name: who publishes them, under what terms, and how to recognise them.

Nothing here is shipped. Sizes and SHA-256 sums of the publishers' archives are those recorded by
TensorFlow Datasets (MovieLens) and by several public experiment scripts that agree (Last.fm);
where no record was found the field is None and the first download is trusted and remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unskew.types import UnskewError

_GROUPLENS = "https://files.grouplens.org/datasets/"
_MOVIELENS_PAPER = (
    "F. M. Harper and J. A. Konstan, The MovieLens Datasets: History and Context, "
    "ACM TiiS 5(4), 2015"
)
_HETREC_PAPER = (
    "I. Cantador, P. Brusilovsky and T. Kuflik, 2nd Workshop on Information Heterogeneity and "
    "Fusion in Recommender Systems (HetRec 2011), RecSys 2011"
)
_RESEARCH = (
    "research use with acknowledgement; no redistribution or commercial use without permission"
)


@dataclass(frozen=True)
class TextFormat:
    """A publisher's file: its name, what separates its fields, and its columns if it has no
    header line of its own."""

    file: str
    separator: str
    columns: tuple[str, ...] | None = None
    encoding: str = "utf-8"


@dataclass(frozen=True)
class Source:
    """A data set known by name."""

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
    base_url: str = _GROUPLENS
    size: int | None = None
    """Bytes of the archive, where on record."""
    sha256: str | None = None
    """Of the archive, where on record; None means the first download is trusted and remembered."""
    ratings: TextFormat | None = None
    titles: TextFormat | None = None
    clock_is_order: bool = False
    rating_is_label: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The publisher's files that are read, ratings first."""
        return tuple(part.file for part in (self.ratings, self.titles) if part is not None)


_COLUMNS = ("user", "item", "rating", "timestamp")

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
    Source(
        name="ml-100k",
        title="MovieLens 100K",
        url="https://grouplens.org/datasets/movielens/100k/",
        licence=_RESEARCH,
        citation=_MOVIELENS_PAPER,
        archive="movielens/ml-100k.zip",
        size=4_924_029,
        sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        ratings=TextFormat("u.data", "\t", _COLUMNS),
        titles=TextFormat("u.item", "|", ("item", "title"), "latin-1"),
    ),
    Source(
        name="ml-1m",
        title="MovieLens 1M",
        url="https://grouplens.org/datasets/movielens/1m/",
        licence=_RESEARCH,
        citation=_MOVIELENS_PAPER,
        archive="movielens/ml-1m.zip",
        size=5_917_549,
        sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        ratings=TextFormat("ratings.dat", "::", _COLUMNS),
        titles=TextFormat("movies.dat", "::", ("item", "title"), "latin-1"),
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
    Source(
        name="ml-latest-small",
        title="MovieLens latest small (September 2018)",
        url="https://grouplens.org/datasets/movielens/latest/",
        licence="research use with acknowledgement; may be redistributed under the same terms; "
        "no commercial use without permission",
        citation=_MOVIELENS_PAPER,
        archive="movielens/ml-latest-small.zip",
        size=978_202,
        sha256="696d65a3dfceac7c45750ad32df2c259311949efec81f0f144fdfb91ebc9e436",
        ratings=TextFormat("ratings.csv", ","),
        titles=TextFormat("movies.csv", ","),
    ),
)

_BY_NAME: Mapping[str, Source] = {source.name: source for source in _SOURCES}


def sources() -> tuple[Source, ...]:
    """Every data set known by name."""
    return _SOURCES


def find(name: str) -> Source | None:
    return _BY_NAME.get(name)


def get(name: str) -> Source:
    source = _BY_NAME.get(name)
    if source is None:
        raise UnskewError(f"no data set is named {name!r}; choose from {', '.join(_BY_NAME)}")
    return source
