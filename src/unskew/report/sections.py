"""Report sections beyond the comparison of runs, and their input: one client, tables of a paper or
an audit, and the origin of runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import PureWindowsPath
from types import MappingProxyType
from typing import Any, NamedTuple

from unskew.display.chart import Chart, figure_html, figures_html
from unskew.display.palette import swatch
from unskew.display.table import MISSING, Table, inline, to_html
from unskew.report.comparison import Published
from unskew.report.entries import Entry, group_by
from unskew.runs import ClientView

MAX_TITLES = 24
"""Maximum number of a client's training items shown at once; further items are collapsed."""
MAX_UNFOLDED_RUNS = 12
"""Maximum number of runs whose commands and settings are listed ungrouped; else by data set."""


class Client(NamedTuple):
    """One client, with its items and the recommendations of each run."""

    data: str
    why: str
    """Why this client is shown, as words that end a sentence."""
    views: Mapping[int, ClientView]
    """Views by the run's position in the report's input. History is taken from the first."""


class Chapter(NamedTuple):
    """Tables and charts under one heading, such as a reproduced table or figure of the paper."""

    name: str
    title: str
    about: str
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


class Extras(NamedTuple):
    """Input of the report's sections beyond the comparison of runs; empty ones are left out."""

    published: Published = MappingProxyType({})
    client: Client | None = None
    privacy: Sequence[Chapter] = ()
    """Attacks on uploads, a chapter per data set and protocol."""
    chapters: Sequence[Chapter] = ()
    """The paper's tables and figures."""
    commands: Sequence[str] = ()
    """Commands of all rows on the page, if there are more than those of the runs."""
    device_page: tuple[str, str] | None = None
    """File name of a page beside the report that recommends in the browser, and its method."""


def chapters_html(chapters: Sequence[Chapter], folded: bool = False) -> str:
    """HTML of chapters with charts and tables; if ``folded``, the tables are collapsed."""
    parts = []
    for chapter in chapters:
        key = f"table-{chapter.name}"
        tables = ""
        for at, table in enumerate(chapter.tables, 1):
            part = f", {table.title[0].lower()}{table.title[1:]}" if table.title else ""
            captioned = table._replace(caption=f"{chapter.title}{part}.")
            tables += to_html(captioned, f"{key}-{at}", "paper")
        if folded:
            tables = f'<details class="run"><summary>As tables</summary>{tables}</details>'
        charts = ""
        for at, chart in enumerate(chapter.charts, 1):
            figures = [
                figure_html(panel, f"{key}-chart-{at}-{number}")
                for number, panel in enumerate(chart.panels, 1)
            ]
            charts += f"<h4>{escape(chart.title)}</h4>{figures_html(figures)}"
        parts.append(
            f'<section class="chapter" id="{key}" aria-labelledby="{key}-head">'
            f'<h3 id="{key}-head">{escape(chapter.title)}</h3>'
            f'<p class="note">{inline(chapter.about)}</p>'
            f"{charts + tables if folded else tables + charts}</section>"
        )
    return "".join(parts)


def client_html(client: Client, entries: Sequence[Entry]) -> str:
    """HTML of one client's items and of the recommendations that each run gives it."""
    first = next(iter(client.views.values()))
    boxes = "".join(
        _recommendations(first, client.views[entry.number], entry)
        for entry in entries
        if entry.number in client.views
    )
    return (
        f'<p class="note">Client <strong>{escape(first.user)}</strong> of {escape(client.data)}, '
        f"{escape(client.why)}. This part of the page holds that client's interactions: the page "
        "is a file on this computer and sends nothing, but whoever gets the file can read them "
        "(<code>--no-client</code> leaves them out).</p>"
        f"{_history(first)}"
        '<p class="note">Ten best of all items the run did not train this client on; the rank of '
        "the held-out item is among those too, so it is not the rank of a protocol that samples "
        f'candidates.</p><div class="panels lists">{boxes}</div>'
    )


def _history(view: ClientView) -> str:
    titles = [f"<li>{escape(title)}</li>" for title in view.history]
    folded = "".join(titles[MAX_TITLES:])
    more = (
        f'<details class="run"><summary>and {len(titles) - MAX_TITLES} more</summary>'
        f'<ul class="chips">{folded}</ul></details>'
    )
    held = "".join(
        f"<dt>Held out for {name}</dt><dd>{escape('; '.join(items)) or 'nothing'}</dd>"
        for name, items in (
            ("testing", [title for title, _ in view.test]),
            ("validation", view.validation),
        )
    )
    return (
        '<div class="history"><h3>Training items <span class="sizes">'
        f"{len(titles):,} items, by title</span></h3>"
        f'<ul class="chips">{"".join(titles[:MAX_TITLES])}</ul>{more if folded else ""}'
        f"<dl>{held}</dl></div>"
    )


def _recommendations(first: ClientView, view: ClientView, entry: Entry) -> str:
    tag = ' <span class="tag">leaks</span>' if entry.leaky else ""
    above = [title for title, _ in first.test]
    ranks = "; ".join(
        # The item is named only where it is not the one above the lists.
        f"{'The held-out item' if [title] == above else escape(title)}: "
        f"rank <strong>{rank:,}</strong>"
        for title, rank in view.test
    )
    found = f"{ranks} of {view.among:,}." if ranks else "This client has no held-out item."
    picks = ""
    for title, held in view.top:
        mark = f" <b>{'held out' if held == 'test' else held}</b>" if held else ""
        picks += f'<li class="{f"hit {held}" if held else ""}">{escape(title)}{mark}</li>'
    return (
        f'<figure class="picks"><h4><span class="name">{swatch(entry.style)}<span>'
        f"{escape(entry.label)}</span></span> "
        f'<span class="protocol"><code>{escape(entry.result.protocol)}</code>{tag}</span></h4>'
        f"<ol>{picks}</ol><figcaption>{found}</figcaption></figure>"
    )


def provenance(entries: Sequence[Entry], commands: Sequence[str] = ()) -> str:
    """HTML with command, settings, versions and checksums of every run, collapsed."""
    parts = [_run(entry) for entry in entries]
    if len(entries) > MAX_UNFOLDED_RUNS:
        parts = [
            f'<details class="group"><summary>{escape(data)}: {len(of_data)} runs</summary>'
            f"{''.join(_run(entry) for entry in of_data)}</details>"
            for data, of_data in group_by(entries, "data").items()
        ]
    if commands:
        lines = escape("\n".join(commands))
        parts.append(
            f'<details class="run commands"><summary>All {len(commands)} commands behind this page'
            f'</summary><pre tabindex="0"><code>{lines}</code></pre></details>'
        )
    return "".join(parts)


def _run(entry: Entry) -> str:
    result, memory = entry.result, entry.result.peak_rss_mb
    # The last part of the folder only, so that a shared page doesn't reveal where it lay.
    folder = escape(PureWindowsPath(result.run_dir).name) if result.run_dir else "not saved"
    checksums = result.model_sha256_per_seed or [result.model_sha256 or MISSING]
    facts = {
        "Settings": _settings(result.settings) or "the method's defaults",
        "Versions": _settings(result.versions) or MISSING,
        "Seeds": _list(result.seeds),
        "Best validation round per seed": _list(result.best_rounds),
        "Users, items": f"{result.users:,}, {result.items:,}",
        "Peak memory of the process": MISSING if memory is None else f"{memory:,.0f} MB",
        "Model checksum per seed (SHA-256)": _list(checksums),
        "Run folder": folder,
    }
    rows = "".join(f"<dt>{name}</dt><dd>{shown}</dd>" for name, shown in facts.items())
    command = "<p>No command: the run was started from Python.</p>"
    if result.command:
        command = f'<pre tabindex="0"><code>{escape(result.command)}</code></pre>'
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    told = f"<p>Notes on the data:</p><ul>{notes}</ul>" if notes else "<p>No notes on the data.</p>"
    title = escape(f"{entry.label} · {result.data} · {result.protocol}")
    return (
        f'<details class="run"><summary><span class="name">{swatch(entry.style)}<span>'
        f"{title}</span></span></summary>{command}<dl>{rows}</dl>{told}</details>"
    )


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"<code>{escape(str(key))} = {escape(str(value))}</code>" for key, value in values.items()
    )


def _list(values: Iterable[object]) -> str:
    return escape(", ".join(map(str, values))) or MISSING
