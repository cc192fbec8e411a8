"""What a page may show beside its runs, as plain values: whoever calls gathers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Pick(NamedTuple):
    """An item in a list of recommendations; ``held`` says what it was held out for, if it was."""

    title: str
    held: str = ""


class Listing(NamedTuple):
    """What one run recommends to the client."""

    run: int
    """Its place among the runs given to the page."""
    picks: Sequence[Pick]
    test: Sequence[tuple[str, int]]
    """The client's held-out items under the run's protocol and the rank of each."""
    among: int
    """How many items were ranked."""


class Client(NamedTuple):
    """One client looked at closely."""

    name: str
    data: str
    why: str
    """How it was chosen, as the end of a sentence."""
    history: Sequence[str]
    validation: Sequence[str]
    test: Sequence[str]
    lists: Sequence[Listing]


class Exposure(NamedTuple):
    """A method under one strength of noise: what an attack finds out, and how good it still is."""

    method: str
    noise: str
    """As it is to be told, for example "λ 0.5"."""
    success: float
    """Personal AUC of the strongest attack; 0.5 is nothing."""
    quality: float
    """NDCG@10 on test."""
    secure: bool
    """Whether the server saw sums only."""


class Privacy(NamedTuple):
    """Attacks on the uploads of one data set, and the same figures as a Markdown table."""

    data: str
    protocol: str
    dots: Sequence[Exposure]
    table: str


class Series(NamedTuple):
    """Points of one name: joined by a line or each by itself. ``key`` decides how it looks: a
    method's name, or any other that is always to look the same; ``sizes``, from 0 to 1, are
    areas."""

    label: str
    key: str
    x: Sequence[float]
    y: Sequence[float]
    joined: bool = True
    sizes: Sequence[float] = ()


class Diagram(NamedTuple):
    """A chart of several series."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    names: Sequence[str] = ()
    """Labels of the whole numbers on the horizontal axis, where it has no numbers."""


class Chapter(NamedTuple):
    """A table of the paper: Markdown, and charts by their title."""

    name: str
    title: str
    about: str
    markdown: str
    charts: Mapping[str, Sequence[Diagram]] = {}


class Extras(NamedTuple):
    """Everything beyond the runs; whatever is missing has no section."""

    published: Mapping[tuple[str, str], tuple[float, float]] = {}
    """HR@10 and NDCG@10 as a paper prints them, by method and data set."""
    client: Client | None = None
    privacy: Sequence[Privacy] = ()
    chapters: Sequence[Chapter] = ()
    commands: Sequence[str] = ()
    """Of all rows on the page, where they are more than the runs'."""
