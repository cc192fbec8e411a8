"""The paper's protocol beside the one that leaks nothing: a table and a picture per data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from unskew.report._charts import ROOM
from unskew.report._entries import LEAKY, Entry, Figure, grouped, mapping, metric, text
from unskew.report._plots import Line, Mark, Plot, plot
from unskew.report._sortable import Cell, Group, Head, sortable
from unskew.report._table import named, stacked

HONEST = "leak-free"
_METRICS = (("HR@10", "hr@10"), ("NDCG@10", "ndcg@10"))


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
        """Leak-free and paper, to be compared; nothing where they rank different things."""
        part = self.part
        if part is None:
            return Figure(None, None), Figure(None, None)
        return self.free.figure(part, name), self.paper.figure(part, name)

    @property
    def fall(self) -> float | None:
        """What NDCG@10 loses when nothing leaks."""
        free, paper = self.figures("ndcg@10")
        return None if free.mean is None or paper.mean is None else paper.mean - free.mean


def pairs_of(entries: Sequence[Entry]) -> list[Pair]:
    """Every run under the paper's protocol with the first leak-free one that equals it."""
    pairs = []
    for paper in (entry for entry in entries if entry.protocol == LEAKY):
        for free in entries:
            if free.protocol == HONEST and _what(free) == _what(paper):
                pairs.append(Pair(free, paper))
                break
    return pairs


def _what(entry: Entry) -> tuple[object, ...]:
    noise = mapping(entry.summary.get("privacy")).get("noise")
    return entry.data, entry.method, entry.summary.get("settings"), noise


def side_by_side(
    entries: Sequence[Entry], published: Mapping[tuple[str, str], tuple[float, float]]
) -> str:
    """Pictures of all data sets that have such pairs, then a table of each."""
    drawn, tables = [], []
    for number, (data, of_data) in enumerate(grouped(entries, "data").items(), 1):
        pairs = sorted(pairs_of(of_data), key=lambda pair: -(pair.fall or 0.0))
        if not pairs:
            continue
        printed = [published.get((pair.free.method, data)) for pair in pairs]
        drawn.append((f"sides-plot-{number}", _slopes(data, pairs, printed)))
        table = _table(pairs, printed, f"sides-{number}")
        tables.append(f"<h3>{text(data)}</h3>{table}")
    # All of them alike: names at the ends of lines where all have room for that, else legends.
    labelled = all(len(picture.lines) <= ROOM for _, picture in drawn)
    pictures = [
        plot(picture._replace(labelled=labelled), key) for key, picture in drawn if picture.lines
    ]
    shown = f'<div class="panels">{"".join(pictures)}</div>' if pictures else ""
    return shown + "".join(tables)


def _table(pairs: Sequence[Pair], printed: Sequence[tuple[float, float] | None], key: str) -> str:
    same = all(pair.part == "sampled99" for pair in pairs)
    ranked = "99 candidates" if same else "ranked alike"
    groups = [Group("", [Head("Method", "ascending", "word")])]
    if any(printed):
        groups.append(Group("The paper prints", _heads()))
    rankings = " / ".join(dict.fromkeys(pair.free.ranking for pair in pairs))
    groups += [
        Group(f'<code>{LEAKY}</code> <span class="tag">leaks</span>, {ranked}', _heads()),
        Group(f"<code>{HONEST}</code>, {ranked}", _heads()),
        Group("Change", [Head("of NDCG@10", "ascending")]),
        Group(f"<code>{HONEST}</code>, {text(rankings)}", _heads()),
    ]
    rows = []
    for pair, figures in zip(pairs, printed, strict=True):
        row = [named(pair.free)]
        if any(printed):
            row += [_printed(None if figures is None else figures[at]) for at in (0, 1)]
        row += [stacked(pair.figures(name)[1]) for _, name in _METRICS]
        row += [stacked(pair.figures(name)[0]) for _, name in _METRICS]
        row.append(_change(pair.fall))
        row += [stacked(pair.free.figure("metrics", name)) for _, name in _METRICS]
        rows.append(row)
    how = (
        "The change is between figures among 99 sampled candidates, which is what both protocols "
        "have."
        if same
        else "A change stands only where both protocols rank the same kind of candidates."
    )
    own = f"At the right what <code>{HONEST}</code> reports itself: {text(rankings)} ranked."
    return sortable(key, groups, rows, f"{how} {own}", "sides")


def _heads() -> list[Head]:
    return [Head(name) for name, _ in _METRICS]


def _printed(value: float | None) -> Cell:
    return Cell(metric(value), value)


def _change(fall: float | None) -> Cell:
    if fall is None:
        return Cell("–", None)
    shown = "0.0000" if abs(fall) < 5e-5 else f"{-fall:+.4f}".replace("-", "−")
    return Cell(shown, -fall)


def _slopes(
    data: str, pairs: Sequence[Pair], printed: Sequence[tuple[float, float] | None]
) -> Plot:
    """Lines from what the paper prints over what its protocol gives here to what is left."""
    known = [(pair, figures) for pair, figures in zip(pairs, printed, strict=True) if pair.part]
    names = [f"{LEAKY}, here", HONEST]
    if any(figures for _, figures in known):
        names.insert(0, "paper prints")
    lines = []
    for pair, figures in known:
        free, paper = pair.figures("ndcg@10")
        values = [None if figures is None else figures[1]] if len(names) == 3 else []
        values += [paper.mean, free.mean]
        marks = [
            Mark(at, value, f"{names[at]}: NDCG@10 {metric(value)}")
            for at, value in enumerate(values)
            if value is not None
        ]
        lines.append(Line(pair.free.label, pair.free.style, marks))
    same = all(pair.part == "sampled99" for pair, _ in known)
    ranked = "99 sampled candidates" if same else "the same both times"
    return Plot(
        f"How each method falls on {data} when nothing leaks",
        "",
        f"test NDCG@10 · ranked: {ranked}",
        lines,
        names,
        heading=text(data),
    )
