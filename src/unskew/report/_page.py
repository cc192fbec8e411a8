"""The page: sentences, tables, charts, costs and origins, in one file that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from unskew.report._chapters import chapters
from unskew.report._client import closely
from unskew.report._entries import Entry, grouped, methods_of, read, text
from unskew.report._extras import Extras
from unskew.report._privacy import by_noise, tradeoffs
from unskew.report._sections import cost_bars, learning_curves, provenance
from unskew.report._sides import side_by_side
from unskew.report._summary import summarise
from unskew.report._table import table
from unskew.report.palette import Style, styles, variant

TITLE = "Federated recommendation: the runs compared"
NOTHING = Extras()


class Section(NamedTuple):
    """A part of the page; without a body it is left out."""

    key: str
    title: str
    body: str
    about: str = ""


def render(runs: Sequence[Mapping[str, Any]], title: str = TITLE, extras: Extras = NOTHING) -> str:
    """An HTML page on finished runs, each ``{"summary": result, "rounds": {seed: rows}}``.

    ``summary`` is the object in a run's ``result.json``, ``rounds`` its rows by seed; ``extras``
    is what the page shows beside them. Values that are missing or not a number appear as a dash;
    the same input always gives the same page.
    """
    looks = _looks(runs, extras)
    entries = read(runs, looks)
    sections = [section for section in _sections(entries, extras, looks) if section.body]
    style, script = _asset("_page.css"), _asset("_page.js")
    links = "".join(f'<a href="#{s.key}">{text(s.title)}</a>' for s in sections[1:])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{text(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{text(title)}</h1><p class="sizes">{_contents(entries)}</p></header>\n'
        f"<main>\n{_section(sections[0])}"
        f'<nav aria-label="On this page">{links}</nav>\n'
        f"{''.join(_section(section) for section in sections[1:])}"
        '</main>\n<p class="unseen" role="status" id="sorted"></p>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(
    entries: Sequence[Entry], extras: Extras, looks: Mapping[str, Style]
) -> list[Section]:
    lead = "".join(f'<p class="lead">{sentence}</p>' for sentence in summarise(entries))
    return [
        Section("summary", "In short", lead),
        Section(
            "sides",
            "Side by side",
            side_by_side(entries, extras.published),
            "The same method with the same settings under both protocols. Under <code>paper</code> "
            "training never draws the held-out item as a negative and so learns which one it is: a "
            "line that falls steeply lived on that leak.",
        ),
        Section("runs", "All runs", table(entries)),
        Section("curves", "Learning curves", learning_curves(entries)),
        Section(
            "privacy",
            "Privacy against quality",
            tradeoffs(extras.privacy, looks) + by_noise(entries),
            "Noise on uploads hides what a client has, and costs quality. Attacks, where there are "
            "any, are a curious server's, which tries to tell a client's items from its uploads.",
        ),
        Section(
            "cost",
            "Cost",
            cost_bars(entries),
            "Seconds are the median time to simulate a whole round on one machine, without "
            "evaluation, as the run itself took it, whatever else the machine did; bytes are what "
            "one client taking part sends and receives.",
        ),
        Section(
            "client",
            "One client, closely",
            "" if extras.client is None else closely(extras.client, entries),
        ),
        Section(
            "tables",
            "The paper's tables, remade",
            chapters(extras.chapters, looks),
            "In brackets stands what the paper prints.",
        ),
        Section("origin", "How each run was made", provenance(entries, extras.commands)),
    ]


def _section(section: Section) -> str:
    about = f'<p class="note">{section.about}</p>' if section.about else ""
    return (
        f'<section id="{section.key}" aria-labelledby="{section.key}-head">'
        f'<h2 id="{section.key}-head">{text(section.title)}</h2>{about}{section.body}</section>\n'
    )


def _looks(runs: Sequence[Mapping[str, Any]], extras: Extras) -> dict[str, Style]:
    """One look per method wherever it stands; keys that are no run's method are hollow."""
    methods = {*methods_of(runs), *(dot.method for study in extras.privacy for dot in study.dots)}
    drawn = [d for chapter in extras.chapters for part in chapter.charts.values() for d in part]
    others = {series.key for diagram in drawn for series in diagram.series} - methods
    return {key: variant(style, 1) for key, style in styles(others).items()} | styles(methods)


def _contents(entries: Sequence[Entry]) -> str:
    counts = (
        (len(entries), "run", "runs"),
        (len(grouped(entries, "method")), "method", "methods"),
        (len(grouped(entries, "data")), "data set", "data sets"),
        (len(grouped(entries, "protocol")), "protocol", "protocols"),
    )
    return " · ".join(f"{n} {one if n == 1 else many}" for n, one, many in counts)


def _policy(script: str) -> str:
    """Nothing is fetched, and no script runs but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _asset(name: str) -> str:
    return files("unskew.report").joinpath(name).read_text(encoding="utf-8")
