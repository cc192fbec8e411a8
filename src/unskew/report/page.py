"""The report: one self-contained HTML page that fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

from unskew.report.comparison import (
    cost_bars,
    learning_curves,
    noise_charts,
    runs_table,
    side_by_side,
)
from unskew.report.entries import Entry, FinishedRun, group_by, read_entries
from unskew.report.sections import Extras, chapters_html, client_html, provenance
from unskew.report.summary import summarise
from unskew.types import UnskewError

TITLE = "Federated recommendation: the runs compared"
"""Default title of the report."""
NO_EXTRAS = Extras()
"""Default input of ``render``: no sections beyond the comparison of runs."""


class Section(NamedTuple):
    """A section of the HTML report; a section without a body is left out."""

    key: str
    title: str
    body: str
    about: str = ""


def render(runs: Sequence[FinishedRun], title: str = TITLE, extras: Extras = NO_EXTRAS) -> str:
    """The HTML report on finished runs; the same input always gives the same text. ``extras`` is
    the input of sections beyond the comparison of runs."""
    if not runs:
        raise UnskewError("There is no run to report on; give at least one finished run.")
    entries = read_entries(runs)
    sections = [section for section in _sections(entries, extras) if section.body]
    links = "".join(f'<a href="#{s.key}">{escape(s.title)}</a>' for s in sections[1:])
    body = (
        f'<header><h1>{escape(title)}</h1><p class="sizes">{_counts(entries)}</p>'
        f"{_demo_link(extras)}</header>\n"
        f"<main>\n{_section_html(sections[0])}"
        f'<nav aria-label="On this page">{links}</nav>\n'
        f"{''.join(_section_html(section) for section in sections[1:])}"
        '</main>\n<p class="unseen" role="status" id="sorted"></p>\n'
    )
    return html_page(title, body, _asset("page.js"))


def html_page(title: str, body: str, script: str, style: str = "") -> str:
    """A self-contained HTML page in the report's style that can request nothing. ``style`` is
    added to the report's; ``body`` may have data in scripts that are not JavaScript."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{_asset('page.css')}{style}</style>\n</head>\n"
        f"<body>\n{body}<script>{script}</script>\n</body>\n</html>\n"
    )


def _sections(entries: Sequence[Entry], extras: Extras) -> list[Section]:
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
        Section("runs", "All runs", runs_table(entries)),
        Section("curves", "Learning curves", learning_curves(entries)),
        Section(
            "privacy",
            "Privacy against quality",
            chapters_html(extras.privacy, folded=True) + noise_charts(entries),
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
            "" if extras.client is None else client_html(extras.client, entries),
        ),
        Section(
            "tables",
            "The paper's tables, remade",
            chapters_html(extras.chapters),
            "In brackets stands what the paper prints.",
        ),
        Section("origin", "How each run was made", provenance(entries, extras.commands)),
    ]


def _section_html(section: Section) -> str:
    about = f'<p class="note">{section.about}</p>' if section.about else ""
    return (
        f'<section id="{section.key}" aria-labelledby="{section.key}-head">'
        f'<h2 id="{section.key}-head">{escape(section.title)}</h2>{about}{section.body}</section>\n'
    )


def _demo_link(extras: Extras) -> str:
    """Link to a page beside the report that recommends in the browser, if there is one."""
    if extras.device_page is None:
        return ""
    name, method = map(escape, extras.device_page)
    return (
        f'<p><a href="{name}">Try {method} in your browser</a>: tick films and watch the '
        "recommendations change, computed on your device.</p>"
    )


def _counts(entries: Sequence[Entry]) -> str:
    numbers = {"run": len(entries)} | {
        name: len(group_by(entries, field))
        for name, field in (("method", "method"), ("data set", "data"), ("protocol", "protocol"))
    }
    return " · ".join(f"{n} {name}{'s' * (n != 1)}" for name, n in numbers.items())


def _policy(script: str) -> str:
    """A content security policy that allows no requests and only the page's own script."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; "
        f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )


def _asset(name: str) -> str:
    return files("unskew.report").joinpath(name).read_text(encoding="utf-8")
