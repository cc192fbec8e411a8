"""Report sections that compare runs: both protocols, all metrics, learning curves, noise, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from unskew.display.chart import Panel, Series, figure_html, figures_html, mean_line
from unskew.display.palette import swatch
from unskew.display.table import Cell, Column, Table, to_html
from unskew.report.entries import LEAK_FREE, LEAKY, Entry, amount, group_by, kilobytes

MAX_LINES_WITH_BANDS = 4
"""Maximum number of lines in a chart that shows the range over seeds as bands."""
MAX_RUNS_WITH_ALL_PROTOCOLS = 12
"""Cost charts of data sets with more runs than this show one protocol only."""
METRICS = {"HR@10": "hr@10", "NDCG@10": "ndcg@10"}
"""Keys of metrics in results, by their column head in tables."""
Published = Mapping[tuple[str, str], tuple[float, float]]
"""HR@10 and NDCG@10 as a paper prints them, by method and data set."""


class Pair(NamedTuple):
    """Two runs that differ only in the protocol (``leak-free``, ``paper``). They are compared by
    metrics among 99 sampled candidates, which every protocol has."""

    free: Entry
    paper: Entry

    @property
    def drop(self) -> float:
        """NDCG@10 among 99 sampled candidates under ``paper`` minus that under ``leak-free``."""
        paper, free = (entry.result.sampled99["ndcg@10"].mean for entry in (self.paper, self.free))
        return paper - free


def find_pairs(entries: Sequence[Entry]) -> list[Pair]:
    """Pairs of otherwise equal runs under ``paper`` and ``leak-free``, largest drop first."""

    def setup(entry: Entry) -> tuple[object, ...]:
        result = entry.result
        return result.data, result.method, result.settings, result.noise

    free = [entry for entry in entries if entry.result.protocol == LEAK_FREE]
    pairs = [
        Pair(same[0], paper)
        for paper in entries
        if paper.leaky and (same := [other for other in free if setup(other) == setup(paper)])
    ]
    return sorted(pairs, key=lambda pair: -pair.drop)


def side_by_side(entries: Sequence[Entry], published: Published) -> str:
    """HTML that compares the protocols ``paper`` and ``leak-free``: charts, then tables."""
    charts, tables = [], []
    for number, (data, of_data) in enumerate(group_by(entries, "data").items(), 1):
        if pairs := find_pairs(of_data):
            panel = _drop_panel(data, pairs, published)
            charts.append(figure_html(panel, f"sides-plot-{number}", data))
            table = to_html(_pairs_table(pairs, published), f"sides-{number}", "sides")
            tables.append(f"<h3>{escape(data)}</h3>{table}")
    return figures_html(charts) + "".join(tables)


def _pairs_table(pairs: Sequence[Pair], published: Published) -> Table:
    printed = [published.get((pair.free.result.method, pair.free.result.data)) for pair in pairs]
    rankings = " / ".join(dict.fromkeys(pair.free.result.ranking for pair in pairs))
    groups = ["The paper prints"] if any(printed) else []
    groups += [f"`{LEAKY}` (leaks), 99 candidates", f"`{LEAK_FREE}`, 99 candidates"]
    groups.append(f"`{LEAK_FREE}`, {rankings}")
    columns = [Column(name, group=group) for group in groups for name in METRICS]
    columns.insert(-2, Column("of NDCG@10", better="low", group="Change"))
    rows = []
    for pair, figures in zip(pairs, printed, strict=True):
        free, paper = pair.free.result, pair.paper.result
        row = [Cell.number(value) for value in figures or (None, None)] if any(printed) else []
        for table in (paper.sampled99, free.sampled99, free.metrics):
            row += [Cell.over_seeds(table[name]) for name in METRICS.values()]
        row.insert(-2, _change_cell(pair.drop))
        rows.append([pair.free.name_cell, *row])
    caption = (
        "The change is between figures among 99 sampled candidates, which is what both protocols "
        f"have. At the right what `{LEAK_FREE}` reports itself: {rankings} ranked."
    )
    return Table.of([Column("Method", "text"), *columns], rows, caption=caption)


def _change_cell(drop: float) -> Cell:
    text = "0.0000" if abs(drop) < 5e-5 else f"{-drop:+.4f}".replace("-", "−")
    return Cell(text, -drop)


def _drop_panel(data: str, pairs: Sequence[Pair], published: Published) -> Panel:
    """Panel with a line per method: NDCG@10 published, under ``paper``, under ``leak-free``."""
    names = ["paper prints", f"{LEAKY}, here", LEAK_FREE]
    if not any((pair.free.result.method, data) in published for pair in pairs):
        del names[0]
    lines = []
    for free, paper in pairs:
        printed = published.get((free.result.method, data))
        means = [entry.result.sampled99["ndcg@10"].mean for entry in (paper, free)]
        values = [*([] if printed is None else [printed[1]]), *means]
        places = range(len(names) - len(values), len(names))
        lines.append(Series(free.label, free.result.method, places, values, variant=free.variant))
    title = f"How each method falls on {data} when nothing leaks"
    axis = "test NDCG@10 · ranked: 99 sampled candidates"
    return Panel(title, "", axis, tuple(lines), names=tuple(names), from_zero=True)


def runs_table(entries: Sequence[Entry]) -> str:
    """HTML table of all runs' metrics and costs; the best per data set and protocol in bold."""
    words = ("Method", "Data", "Protocol", "What is ranked")
    parts = ("Best validation round", "Last round", "Among 99 sampled")
    costs = ("Rounds", "Seconds per round", "KB up", "KB down")
    columns = [
        *(Column(name, "text", group="Run") for name in words),
        *(Column(name, group=group) for group in parts for name in METRICS),
        *(Column(name, better="low", group="Cost") for name in costs),
    ]
    best = _best_entries(entries)
    rows = []
    for entry in entries:
        result, bold = entry.result, entry in best
        row = [
            entry.name_cell._replace(bold=bold),
            Cell(result.data, result.data.lower()),
            Cell(result.protocol, result.protocol.lower(), tag="leaks" if entry.leaky else ""),
            Cell(result.ranking, result.ranking.lower()),
        ]
        for table in (result.metrics, result.last_round, result.sampled99):
            row += [Cell.over_seeds(table[name]) for name in METRICS.values()]
        row[5] = row[5]._replace(bold=bold)
        row.append(Cell(f"{result.rounds:,}", result.rounds))
        rows.append([*row, *(Cell(amount(cost), cost) for cost in _costs(entry).values())])
    caption = (
        "Test metrics, mean ± standard deviation over seeds (a mean alone: one seed). Bold: the "
        "best NDCG@10 on its data under its protocol. KB: thousands of bytes per client and round. "
        "Leaks: training can find out the held-out item."
    )
    return to_html(Table.of(columns, rows, caption=caption), "all-runs", "runs")


def _best_entries(entries: Sequence[Entry]) -> list[Entry]:
    """Best run of each data set and protocol that has several runs."""
    best = []
    for of_data in group_by(entries, "data").values():
        for rivals in group_by(of_data, "protocol").values():
            highest = max(entry.score.mean for entry in rivals)
            best += [e for e in rivals if e.score.mean == highest and len(rivals) > 1]
    return best


def learning_curves(entries: Sequence[Entry]) -> str:
    """HTML charts of validation NDCG@10 by round, one per data set and protocol."""
    parts, number = [], 0
    for data, of_data in group_by([entry for entry in entries if entry.curves], "data").items():
        charts = []
        for same in group_by(of_data, "protocol").values():
            number += 1
            charts.append(_curves_figure(same, f"chart-{number}"))
        warning = (
            '<p class="note">The panels have axes of their own: they rank different sets of items, '
            "so heights compare within a panel, not across.</p>"
        )
        users, items = (
            " / ".join(dict.fromkeys(f"{getattr(entry.result, key):,}" for entry in of_data))
            for key in ("users", "items")
        )
        parts.append(
            f'<h3>{escape(data)} <span class="sizes">{users} users, {items} items</span></h3>'
            f"{warning if len(group_by(of_data, 'ranking')) > 1 else ''}{figures_html(charts)}"
        )
    return "".join(parts)


def _curves_figure(entries: Sequence[Entry], key: str) -> str:
    """HTML figure of the learning curves on one data set and protocol, as means over seeds."""
    result = entries[0].result
    several = any(len(entry.curves) > 1 for entry in entries)
    banded = several and len(entries) <= MAX_LINES_WITH_BANDS
    lines = [
        mean_line(entry.label, entry.result.method, entry.curves, entry.variant, banded)
        for entry in entries
    ]
    panel = Panel(
        f"Learning curves on {result.data}, {result.protocol} protocol",
        "round",
        f"validation NDCG@10 · ranked: {result.ranking}",
        tuple(lines),
        from_zero=True,
    )
    heading = f"`{result.protocol}`" + " (leaks)" * entries[0].leaky
    averaged = any(len(entry.result.seeds) > 1 for entry in entries)
    band_note = "; band: lowest to highest seed" if banded else ""
    note = f"Line: mean over seeds{band_note}." if averaged else "One seed per line."
    return figure_html(panel, key, heading, note)


def noise_charts(entries: Sequence[Entry]) -> str:
    """HTML charts of NDCG@10 against noise strength, for methods run at several strengths."""
    charts: list[str] = []
    for data, of_data in group_by(entries, "data").items():
        for protocol, alike in group_by(of_data, "protocol").items():
            lines = []
            for method, same in group_by(alike, "method").items():
                points = sorted((entry.result.noise, entry.score.mean) for entry in same)
                noises, means = zip(*points, strict=True)
                lines += [Series(method, method, noises, means)] if len(set(noises)) > 1 else []
            title = f"Noise against quality on {data}, {protocol} protocol"
            axis = f"test NDCG@10 · ranked: {alike[0].result.ranking}"
            panel = Panel(title, "strength of noise λ", axis, tuple(lines), from_zero=True)
            charts += [figure_html(panel, f"noise-{len(charts) + 1}")] if lines else []
    return figures_html(charts)


def _costs(entry: Entry) -> dict[str, float | None]:
    return {
        "Seconds per simulated round": entry.result.seconds_per_round,
        "KB up per client and round": kilobytes(entry.result.bytes_up),
        "KB down per client and round": kilobytes(entry.result.bytes_down),
    }


def cost_bars(entries: Sequence[Entry]) -> str:
    """HTML bar charts of seconds per round and kilobytes up and down, per data set."""
    parts = []
    for data, of_data in group_by(entries, "data").items():
        protocols = group_by(of_data, "protocol")
        shown, note = of_data, ""
        if len(protocols) > 1 and len(of_data) > MAX_RUNS_WITH_ALL_PROTOCOLS:
            name, shown = max(protocols.items(), key=lambda part: len(part[1]))
            note = f' <span class="sizes"><code>{escape(name)}</code>, the others as above</span>'
        bars = "".join(_bars_html(name, shown) for name in _costs(shown[0]))
        parts.append(f'<h3>{escape(data)}{note}</h3><div class="panels thirds">{bars}</div>')
    return "".join(parts)


def _bars_html(cost: str, entries: Sequence[Entry]) -> str:
    values = [_costs(entry)[cost] for entry in entries]
    longest = max(value or 0.0 for value in values) or 1.0
    several = len(group_by(entries, "protocol")) > 1
    rows = []
    for entry, value in zip(entries, values, strict=True):
        protocol = f' <span class="protocol">{escape(entry.result.protocol)}</span>'
        width = (value or 0.0) / longest * 100
        rows.append(
            f'<li><span class="name">{swatch(entry.style)}<span>{escape(entry.label)}'
            f"{protocol if several else ''}</span></span>"
            f'<span class="bar"><span class="mark" style="width:{width:.2f}%;'
            f'background:{entry.style.colour}"></span></span>'
            f'<span class="number">{amount(value)}</span></li>'
        )
    head = f"<figcaption>{escape(cost)}</figcaption>"
    return f'<figure class="cost">{head}<ul>{"".join(rows)}</ul></figure>'
