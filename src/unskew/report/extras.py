"""What a report shows beside its runs, as plain values that the caller gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unskew.report.chart import Chart
from unskew.report.table import Table


class Pick(NamedTuple):
    """A recommended item; ``held`` says what it was held out for: test, validation or nothing."""

    title: str
    held: str = ""


class Listing(NamedTuple):
    """What one run recommends to the client."""

    run: int
    """Position among the runs given to the report."""
    picks: Sequence[Pick]
    test: Sequence[tuple[str, int]]
    """The client's held-out items under the run's protocol, each with its rank."""
    among: int
    """Number of items that were ranked."""


class Client(NamedTuple):
    """One client: its training items, its held-out items and its recommendations."""

    name: str
    data: str
    why: str
    """How it was chosen, as the end of a sentence."""
    history: Sequence[str]
    validation: Sequence[str]
    test: Sequence[str]
    lists: Sequence[Listing]


class Exposure(NamedTuple):
    """A method under one strength of noise: success of the strongest attack, and quality."""

    method: str
    noise: str
    """For example "λ 0.5"."""
    success: float
    """Personal AUC of the strongest attack; 0.5 is a coin flip."""
    quality: float
    """NDCG@10 on test."""
    secure: bool
    """Whether the server saw sums only."""


class Privacy(NamedTuple):
    """Attacks on the uploads of one data set, and the same figures as tables."""

    data: str
    protocol: str
    dots: Sequence[Exposure]
    tables: Sequence[Table] = ()


class Chapter(NamedTuple):
    """A table or figure of the paper, remade."""

    name: str
    title: str
    about: str
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


class Extras(NamedTuple):
    """Everything beyond the runs; what is empty gets no section."""

    published: Mapping[tuple[str, str], tuple[float, float]] = {}
    """HR@10 and NDCG@10 as a paper prints them, by method and data set."""
    client: Client | None = None
    privacy: Sequence[Privacy] = ()
    chapters: Sequence[Chapter] = ()
    commands: Sequence[str] = ()
    """Commands of all rows on the page, where they are more than those of the runs."""
