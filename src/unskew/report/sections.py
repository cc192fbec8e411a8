"""Sections beyond the comparison, and the values they show: attacks, one client, the paper's
tables, how runs were made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from unskew.report.chart import Chart, Panel, Series
from unskew.report.comparison import panels_html
from unskew.report.entries import Entry, count, group_by, mapping, sequence
from unskew.report.figure import figure_html
from unskew.report.palette import Style, swatch
from unskew.report.table import MISSING, Table, inline, to_html

MAX_TITLES = 24
"""Items of a client's history shown at once; the rest is folded."""
MAX_UNFOLDED_RUNS = 12
"""With more runs, their origins are folded by data set."""


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


def attacks(studies: Sequence[Privacy], looks: Mapping[str, Style]) -> str:
    """Success of attacks on uploads against quality: a chart and tables per study."""
    return "".join(_study(study, looks, f"privacy-{at}") for at, study in enumerate(studies, 1))


def _study(study: Privacy, looks: Mapping[str, Style], key: str) -> str:
    note = (
        "Up and left is good: useful and silent. The server watches a whole run; a line joins "
        "growing strengths of noise λ; unjoined points: it sees sums only (secure aggregation)."
    )
    title = f"Privacy against quality on {study.data}"
    panel = _exposure_panel(title, study.protocol, study.dots)
    figure = figure_html(panel, f"{key}-plot", looks, note=note)
    tables = "".join(
        to_html(table, f"{key}-{at}", "paper") for at, table in enumerate(study.tables, 1)
    )
    folded = (
        f'<details class="run"><summary>All attacks on {escape(study.data)} as a table</summary>'
        f"{tables}</details>"
    )
    return panels_html([figure]) + (folded if tables else "")


def _exposure_panel(title: str, protocol: str, dots: Sequence[Exposure]) -> Panel:
    """Quality against attack success: a line per method, points where the server sees sums only."""
    series = []
    for method in dict.fromkeys(dot.method for dot in dots):
        for secure in (False, True):
            same = [dot for dot in dots if dot.method == method and dot.secure is secure]
            line = Series(
                f"{method}, sums only" if secure else method,
                method,
                [dot.success for dot in same],
                [dot.quality for dot in same],
                "points" if secure else "line",
                notes=[dot.noise for dot in same],
                variant=int(secure),
            )
            series += [line] if same else []
    success = "personal AUC of the strongest attack (0.5: nothing)"
    axis = f"test NDCG@10 · {protocol} protocol"
    return Panel(title, success, axis, tuple(series), from_zero=True)


def chapters(made: Sequence[Chapter], looks: Mapping[str, Style]) -> str:
    """The paper's tables and charts."""
    return "".join(_chapter(chapter, looks) for chapter in made)


def _chapter(chapter: Chapter, looks: Mapping[str, Style]) -> str:
    key = f"table-{chapter.name}"
    tables = "".join(
        to_html(
            table._replace(caption=_caption(chapter.title, table.title)), f"{key}-{at}", "paper"
        )
        for at, table in enumerate(chapter.tables, 1)
    )
    charts = []
    for at, chart in enumerate(chapter.charts, 1):
        figures = [
            figure_html(panel, f"{key}-chart-{at}-{number}", looks)
            for number, panel in enumerate(chart.panels, 1)
        ]
        charts.append(f"<h4>{escape(chart.title)}</h4>{panels_html(figures)}")
    return (
        f'<section class="chapter" id="{key}" aria-labelledby="{key}-head">'
        f'<h3 id="{key}-head">{escape(chapter.title)}</h3>'
        f'<p class="note">{inline(chapter.about)}</p>{tables}{"".join(charts)}</section>'
    )


def _caption(chapter: str, table: str) -> str:
    return f"{chapter}, {table[0].lower()}{table[1:]}." if table else f"{chapter}."


def client_view(client: Client, entries: Sequence[Entry]) -> str:
    """One client's items and what each run recommends, runs in the order of the page."""
    order = {entry.number: at for at, entry in enumerate(entries)}
    lists = sorted(client.lists, key=lambda listing: order[listing.run])
    boxes = "".join(_listing(client, listing, entries[order[listing.run]]) for listing in lists)
    return (
        f'<p class="note">Client <strong>{escape(client.name)}</strong> of {escape(client.data)}, '
        f"{escape(client.why)}. This part of the page holds that client's interactions: the page "
        "is a file on this computer and sends nothing, but whoever gets the file can read them "
        "(<code>--no-client</code> leaves them out).</p>"
        f"{_history(client)}"
        '<p class="note">Ten best of all items the run did not train this client on; the rank of '
        "the held-out item is among those too, so it is not the rank of a protocol that samples "
        f'candidates.</p><div class="panels lists">{boxes}</div>'
    )


def _history(client: Client) -> str:
    titles = [f"<li>{escape(title)}</li>" for title in client.history]
    folded = "".join(titles[MAX_TITLES:])
    more = (
        f'<details class="run"><summary>and {len(titles) - MAX_TITLES} more</summary>'
        f'<ul class="chips">{folded}</ul></details>'
    )
    held = "".join(
        f"<dt>Held out for {name}</dt><dd>{escape('; '.join(items)) or 'nothing'}</dd>"
        for name, items in (("testing", client.test), ("validation", client.validation))
    )
    return (
        '<div class="history"><h3>Training items <span class="sizes">'
        f"{count(len(titles))} items, by title</span></h3>"
        f'<ul class="chips">{"".join(titles[:MAX_TITLES])}</ul>{more if folded else ""}'
        f"<dl>{held}</dl></div>"
    )


def _listing(client: Client, listing: Listing, entry: Entry) -> str:
    tag = ' <span class="tag">leaks</span>' if entry.leaky else ""
    ranks = "; ".join(
        # The item is named only where it is not the one above the lists.
        f"{'The held-out item' if [title] == list(client.test) else escape(title)}: "
        f"rank <strong>{count(rank)}</strong>"
        for title, rank in listing.test
    )
    found = f"{ranks} of {count(listing.among)}." if ranks else "This client has no held-out item."
    return (
        f'<figure class="picks"><h4><span class="name">{swatch(entry.style)}<span>'
        f"{escape(entry.label)}</span></span> "
        f'<span class="protocol"><code>{escape(entry.protocol)}</code>{tag}</span></h4>'
        f"<ol>{''.join(map(_pick, listing.picks))}</ol><figcaption>{found}</figcaption></figure>"
    )


def _pick(pick: Pick) -> str:
    if not pick.held:
        return f"<li>{escape(pick.title)}</li>"
    mark = "held out" if pick.held == "test" else pick.held
    return f'<li class="hit {escape(pick.held)}">{escape(pick.title)} <b>{escape(mark)}</b></li>'


def provenance(entries: Sequence[Entry], commands: Sequence[str] = ()) -> str:
    """Command, settings, versions and checksums of every run, folded."""
    parts = ["".join(_run(entry) for entry in entries)]
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
    summary, memory = entry.summary, entry.value("peak_rss_mb")
    checksums = summary.get("model_sha256_per_seed") or summary.get("model_sha256")
    facts = {
        "Settings": _pairs(summary.get("settings")) or "the method's defaults",
        "Versions": _pairs(summary.get("versions")) or MISSING,
        "Seeds": _items(summary.get("seeds")),
        "Best validation round per seed": _items(summary.get("best_rounds")),
        "Users, items": f"{count(entry.value('users'))}, {count(entry.value('items'))}",
        "Peak memory of the process": MISSING if memory is None else f"{count(memory)} MB",
        "Model checksum per seed (SHA-256)": _items(
            [checksums] if isinstance(checksums, str) else checksums
        ),
        "Run folder": _folder_name(summary.get("run_dir")),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{shown}</dd>" for name, shown in facts.items())
    command = summary.get("command")
    shown = f'<pre tabindex="0"><code>{escape(str(command))}</code></pre>'
    notes = "".join(f"<li>{escape(str(note))}</li>" for note in sequence(summary.get("notes")))
    return (
        f'<details class="run"><summary><span class="name">{swatch(entry.style)}<span>'
        f"{escape(' · '.join((entry.label, entry.data, entry.protocol)))}</span></span></summary>"
        f"{shown if command else '<p>No command: the run was started from Python.</p>'}"
        f"<dl>{rows}</dl>"
        + (
            f"<p>Notes on the data:</p><ul>{notes}</ul>"
            if notes
            else "<p>No notes on the data.</p>"
        )
        + "</details>"
    )


def _pairs(values: Any) -> str:
    pairs = mapping(values).items()
    return ", ".join(f"<code>{escape(str(k))} = {escape(str(v))}</code>" for k, v in pairs)


def _items(values: Any) -> str:
    items = [MISSING if value is None else escape(str(value)) for value in sequence(values)]
    return ", ".join(items) or MISSING


def _folder_name(path: Any) -> str:
    """Last part of the path only, so that a shared page doesn't reveal where it lay."""
    names = [name for name in re.split(r"[/\\]", str(path or "")) if name]
    return escape(names[-1]) if names else "not saved"
