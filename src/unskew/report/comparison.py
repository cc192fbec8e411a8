"""Sections that compare runs: both protocols, all figures, learning curves, noise, cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from unskew.report.chart import Panel, Series
from unskew.report.entries import (
    LEAK_FREE,
    LEAKY,
    Entry,
    Figure,
    amount,
    count,
    group_by,
    sequence,
)
from unskew.report.figure import figure_html
from unskew.report.palette import swatch
from unskew.report.table import MISSING, Cell, Column, Table, to_html

MAX_BANDS = 4
"""With more lines in a chart, bands over seeds hide each other and are left out."""
MAX_BARS = 12
"""With more runs of a data set, cost bars show one protocol only."""
METRICS = (("HR@10", "hr@10"), ("NDCG@10", "ndcg@10"))
Published = Mapping[tuple[str, str], tuple[float, float]]


class Pair(NamedTuple):
    """Two runs that differ in nothing but the protocol."""

    free: Entry
    paper: Entry

    @property
    def part(self) -> str | None:
        """The figures of both that rank the same kind of candidates, if there are any."""
        if all(entry.figure("sampled99", "ndcg@10").mean is not None for entry in self):
            return "sampled99"
        return "metrics" if self.free.ranking == self.paper.ranking else None

    def figures(self, name: str) -> tuple[Figure, Figure]:
        """Comparable figures under leak-free and paper; empty where they rank different things."""
        part = self.part
        if part is None:
            return Figure(None, None), Figure(None, None)
        return self.free.figure(part, name), self.paper.figure(part, name)

    @property
    def drop(self) -> float | None:
        """How much NDCG@10 falls when nothing leaks."""
        free, paper = self.figures("ndcg@10")
        return None if free.mean is None or paper.mean is None else paper.mean - free.mean


def find_pairs(entries: Sequence[Entry]) -> list[Pair]:
    """Each run under the paper's protocol with the first equal one under leak-free."""

    def setup(entry: Entry) -> tuple[object, ...]:
        return entry.data, entry.method, entry.summary.get("settings"), entry.noise

    free = [entry for entry in entries if entry.protocol == LEAK_FREE]
    matches = [
        (next((other for other in free if setup(other) == setup(paper)), None), paper)
        for paper in entries
        if paper.leaky
    ]
    return [Pair(other, paper) for other, paper in matches if other is not None]


def side_by_side(entries: Sequence[Entry], published: Published) -> str:
    """A chart of every data set that has such pairs, then a table of each."""
    charts, tables = [], []
    for number, (data, of_data) in enumerate(group_by(entries, "data").items(), 1):
        pairs = sorted(find_pairs(of_data), key=lambda pair: -(pair.drop or 0.0))
        if not pairs:
            continue
        panel = _drop_panel(data, pairs, published)
        looks = {pair.free.label: pair.free.style for pair in pairs}
        if panel.series:
            charts.append(figure_html(panel, f"sides-plot-{number}", looks, data))
        table = to_html(_pairs_table(pairs, published), f"sides-{number}", "sides")
        tables.append(f"<h3>{escape(data)}</h3>{table}")
    return panels_html(charts) + "".join(tables)


def _pairs_table(pairs: Sequence[Pair], published: Published) -> Table:
    printed = [published.get((pair.free.method, pair.free.data)) for pair in pairs]
    same = all(pair.part == "sampled99" for pair in pairs)
    ranked = "99 candidates" if same else "ranked alike"
    rankings = " / ".join(dict.fromkeys(pair.free.ranking for pair in pairs))
    groups = [f"`{LEAKY}` (leaks), {ranked}", f"`{LEAK_FREE}`, {ranked}"]
    columns = [Column("Method", "text")]
    if any(printed):
        columns += [Column(name, group="The paper prints") for name, _ in METRICS]
    columns += [Column(name, group=group) for group in groups for name, _ in METRICS]
    columns.append(Column("of NDCG@10", better="low", group="Change"))
    columns += [Column(name, group=f"`{LEAK_FREE}`, {rankings}") for name, _ in METRICS]
    rows = []
    for pair, values in zip(pairs, printed, strict=True):
        row = [name_cell(pair.free)]
        if any(printed):
            row += [Cell.number(value) for value in values or (None, None)]
        row += [pair.figures(name)[at].cell() for at in (1, 0) for _, name in METRICS]
        row.append(_change_cell(pair.drop))
        row += [pair.free.figure("metrics", name).cell() for _, name in METRICS]
        rows.append(row)
    how = (
        "The change is between figures among 99 sampled candidates, which is what both protocols "
        "have."
        if same
        else "A change stands only where both protocols rank the same kind of candidates."
    )
    own = f"At the right what `{LEAK_FREE}` reports itself: {rankings} ranked."
    return Table.of(columns, rows, caption=f"{how} {own}")


def _change_cell(drop: float | None) -> Cell:
    if drop is None:
        return Cell(MISSING)
    text = "0.0000" if abs(drop) < 5e-5 else f"{-drop:+.4f}".replace("-", "−")
    return Cell(text, -drop)


def _drop_panel(data: str, pairs: Sequence[Pair], published: Published) -> Panel:
    """Lines from the printed figure over the paper's protocol here to leak-free."""
    known = [pair for pair in pairs if pair.part]
    printed = {pair: published.get((pair.free.method, data)) for pair in known}
    names = ["paper prints"] * any(printed.values()) + [f"{LEAKY}, here", LEAK_FREE]
    lines = []
    for pair in known:
        free, paper = pair.figures("ndcg@10")
        first = printed[pair]
        values = [None if first is None else first[1]] if len(names) == 3 else []
        points = [(x, y) for x, y in enumerate([*values, paper.mean, free.mean]) if y is not None]
        xs, ys = [float(x) for x, _ in points], [y for _, y in points]
        lines.append(Series(pair.free.label, pair.free.label, xs, ys))
    same = all(pair.part == "sampled99" for pair in known)
    ranked = "99 sampled candidates" if same else "the same both times"
    title = f"How each method falls on {data} when nothing leaks"
    axis = f"test NDCG@10 · ranked: {ranked}"
    return Panel(title, "", axis, tuple(lines), names=tuple(names), from_zero=True)


def runs_table(entries: Sequence[Entry]) -> str:
    """All runs with their figures and costs; the best of each data set and protocol in bold."""
    parts = {
        "Best validation round": "metrics",
        "Last round": "last_round",
        "Among 99 sampled": "sampled99",
    }
    words = ("Method", "Data", "Protocol", "What is ranked")
    costs = ("Rounds", "Seconds per round", "KB up", "KB down")
    columns = [
        *(Column(name, "text", group="Run") for name in words),
        *(Column(name, group=group) for group in parts for name, _ in METRICS),
        *(Column(name, better="low", group="Cost") for name in costs),
    ]
    best = _best_entries(entries)
    rows = []
    for entry in entries:
        row = [
            name_cell(entry, entry in best),
            Cell(entry.data, entry.data.lower()),
            Cell(entry.protocol, entry.protocol.lower(), tag="leaks" if entry.leaky else ""),
            Cell(entry.ranking, entry.ranking.lower()),
        ]
        for part in parts.values():
            for _, name in METRICS:
                bold = entry in best and (part, name) == ("metrics", "ndcg@10")
                row.append(entry.figure(part, name).cell(bold))
        row.append(Cell(count(entry.value("rounds")), entry.value("rounds")))
        row += [Cell(amount(value(entry)), value(entry)) for value in _COSTS.values()]
        rows.append(row)
    leaks = any(entry.leaky for entry in entries)
    caption = (
        "Test metrics, mean ± standard deviation over seeds (a mean alone: one seed). Bold: the "
        "best NDCG@10 on its data under its protocol. KB: thousands of bytes per client and round."
        + " Leaks: training can find out the held-out item."
        * leaks
    )
    return to_html(Table.of(columns, rows, caption=caption), "all-runs", "runs")


def name_cell(entry: Entry, bold: bool = False) -> Cell:
    return Cell(entry.label, entry.label.lower(), bold=bold, style=entry.style)


def _best_entries(entries: Sequence[Entry]) -> list[Entry]:
    """The best run of each data set and protocol that has several."""
    best = []
    for of_data in group_by(entries, "data").values():
        for rivals in group_by(of_data, "protocol").values():
            scores = [s for entry in rivals if (s := entry.score.mean) is not None]
            if len(scores) > 1:
                best += [entry for entry in rivals if entry.score.mean == max(scores)]
    return best


def learning_curves(entries: Sequence[Entry]) -> str:
    """A chart per data set and protocol; empty where no run recorded its rounds."""
    parts, number = [], 0
    for data, of_data in group_by(entries, "data").items():
        charts: list[str] = []
        for same in group_by(of_data, "protocol").values():
            number += 1
            recorded = [entry for entry in same if entry.curve()]
            charts += [_curves_figure(recorded, f"chart-{number}")] if recorded else []
        if not charts:
            continue
        several = len({entry.ranking for entry in of_data}) > 1 and len(charts) > 1
        warning = (
            '<p class="note">The panels have axes of their own: they rank different sets of items, '
            "so heights compare within a panel, not across.</p>"
        )
        users, items = (
            " / ".join(dict.fromkeys(count(entry.value(key)) for entry in of_data))
            for key in ("users", "items")
        )
        parts.append(
            f'<h3>{escape(data)} <span class="sizes">{users} users, {items} items</span></h3>'
            f"{warning if several else ''}{panels_html(charts)}"
        )
    return "".join(parts)


def _curves_figure(entries: Sequence[Entry], key: str) -> str:
    first = entries[0]
    several = any(len(entry.seeds) > 1 for entry in entries)
    averaged = several or any(len(sequence(e.summary.get("seeds"))) > 1 for e in entries)
    banded = several and len(entries) <= MAX_BANDS
    lines = []
    for entry in entries:
        rounds, mean, low, high = zip(*entry.curve(), strict=True)
        line = Series(entry.label, entry.label, rounds, mean)
        lines.append(line._replace(low=low, high=high) if banded and low != high else line)
    panel = Panel(
        f"Learning curves on {first.data}, {first.protocol} protocol",
        "round",
        f"validation NDCG@10 · ranked: {first.ranking}",
        tuple(lines),
        from_zero=True,
    )
    heading = f"`{first.protocol}`" + " (leaks)" * first.leaky
    band_note = "; band: lowest to highest seed" if banded else ""
    note = f"Line: mean over seeds{band_note}." if averaged else "One seed per line."
    return figure_html(panel, key, {e.label: e.style for e in entries}, heading, note)


def noise_charts(entries: Sequence[Entry]) -> str:
    """NDCG@10 against the strength of noise, for methods with runs that differ in it."""
    charts: list[str] = []
    for data, of_data in group_by(entries, "data").items():
        for protocol, alike in group_by(of_data, "protocol").items():
            lines, looks = [], {}
            for method, same in group_by(alike, "method").items():
                if len({entry.noise or 0.0 for entry in same}) < 2:
                    continue
                points = sorted(
                    (e.noise or 0.0, e.score.mean) for e in same if e.score.mean is not None
                )
                lines.append(Series(method, method, [x for x, _ in points], [y for _, y in points]))
                looks[method] = same[0].style
            title = f"Noise against quality on {data}, {protocol} protocol"
            axis = f"test NDCG@10 · ranked: {alike[0].ranking}"
            panel = Panel(title, "strength of noise λ", axis, tuple(lines), from_zero=True)
            charts += [figure_html(panel, f"noise-{len(charts) + 1}", looks)] if lines else []
    return panels_html(charts)


_COSTS: dict[str, Callable[[Entry], float | None]] = {
    "Seconds per simulated round": lambda entry: entry.value("seconds_per_round"),
    "KB up per client and round": lambda entry: entry.kilobytes("bytes_up"),
    "KB down per client and round": lambda entry: entry.kilobytes("bytes_down"),
}


def cost_bars(entries: Sequence[Entry]) -> str:
    """Bars of time and traffic per data set."""
    parts = []
    for data, of_data in group_by(entries, "data").items():
        protocols = group_by(of_data, "protocol")
        shown, note = of_data, ""
        if len(protocols) > 1 and len(of_data) > MAX_BARS:
            name, shown = max(protocols.items(), key=lambda part: len(part[1]))
            note = f' <span class="sizes"><code>{escape(name)}</code>, the others as above</span>'
        several = len(group_by(shown, "protocol")) > 1
        bars = "".join(_bars_html(name, value, shown, several) for name, value in _COSTS.items())
        parts.append(f'<h3>{escape(data)}{note}</h3><div class="panels thirds">{bars}</div>')
    return "".join(parts)


def _bars_html(
    name: str, value: Callable[[Entry], float | None], entries: Sequence[Entry], several: bool
) -> str:
    longest = max((value(entry) or 0.0 for entry in entries), default=0.0) or 1.0
    rows = []
    for entry in entries:
        protocol = f' <span class="protocol">{escape(entry.protocol)}</span>' if several else ""
        width = (value(entry) or 0.0) / longest * 100
        rows.append(
            f'<li><span class="name">{swatch(entry.style)}<span>{escape(entry.label)}{protocol}'
            '</span></span><svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" '
            f'aria-hidden="true"><rect class="rail" width="100" height="10"/><rect class="mark" '
            f'width="{width:.2f}" height="10" fill="{entry.style.colour}"/></svg>'
            f'<span class="number">{amount(value(entry))}</span></li>'
        )
    head = f"<figcaption>{escape(name)}</figcaption>"
    return f'<figure class="cost">{head}<ul>{"".join(rows)}</ul></figure>'


def panels_html(figures: Sequence[str]) -> str:
    """Figures side by side as far as the screen is wide."""
    return f'<div class="panels">{"".join(figures)}</div>' if figures else ""
