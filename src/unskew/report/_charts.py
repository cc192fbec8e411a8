"""Learning curves as inline SVG, with legend and table for readers without mouse or screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from unskew.report._entries import Entry, Point, metric, sequence, text
from unskew.report.palette import Style

WIDTH, HEIGHT = 480, 310
LEFT, TOP, BOTTOM = 56, 34, 42
LABEL_GAP, LABEL_CHARACTERS = 16, 17
ROOM = (HEIGHT - BOTTOM - TOP) // LABEL_GAP + 1
"""For so many names at the ends of lines."""
MARKERS_PER_LINE = 8
MOST_BANDS = 4
"""With more lines than that, bands only hide each other."""


class Scale(NamedTuple):
    """Round and metric to a place in the picture."""

    first: int
    last: int
    top: float
    right: float

    def x(self, round: float) -> float:
        if self.first == self.last:
            return (LEFT + self.right) / 2
        return LEFT + (round - self.first) / (self.last - self.first) * (self.right - LEFT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - BOTTOM - TOP)


def panel(entries: Sequence[Entry], key: str) -> str:
    """One data set under one protocol: the curves, their legend and their values; nothing where no
    rounds were recorded."""
    first = entries[0]
    curves = [(entry, entry.curve()) for entry in entries]
    curves = [(entry, points) for entry, points in curves if points]
    if not curves:
        return ""
    tag = ' <span class="tag">leaks</span>' if first.leaky else ""
    head = f"<h4><code>{text(first.protocol)}</code>{tag}</h4>"
    legend = "".join(
        f'<li>{swatch(entry.style)}<span class="name">{text(entry.label)}</span></li>'
        for entry, _ in curves
    )
    return (
        f'<figure class="chart">{head}<ul class="legend">{legend}</ul>'
        f'<div class="plot">{_picture(curves, key)}<div class="tip" role="status" hidden></div>'
        f"</div><figcaption>{_reading(curves)}</figcaption>"
        f"{_values(curves, first)}</figure>"
    )


def _reading(curves: list[tuple[Entry, list[Point]]]) -> str:
    several = any(len(entry.seeds) > 1 for entry, _ in curves)
    if not several and not any(len(sequence(e.summary.get("seeds"))) > 1 for e, _ in curves):
        return "One seed per line."
    band = "; band: lowest to highest seed" if several and len(curves) <= MOST_BANDS else ""
    return f"Line: mean over seeds{band}."


def swatch(style: Style, joined: bool = True) -> str:
    """A bit of the run's line with its marker, for legends and tables."""
    line = (
        f'<path d="M1 6H29" class="line" stroke="{style.colour}" stroke-dasharray="{style.dash}"/>'
    )
    return (
        f'<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true">{line if joined else ""}'
        f"{marker(style, 15, 6)}</svg>"
    )


def marker(style: Style, x: float, y: float, r: float = 3.6) -> str:
    shapes = {
        "circle": f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        "square": f"M{x - r:.1f} {y - r:.1f}h{2 * r}v{2 * r}h{-2 * r}z",
        "triangle": f"M{x:.1f} {y - r - 0.6:.1f}l{r + 0.6} {2 * r}h{-2 * (r + 0.6)}z",
        "wedge": f"M{x:.1f} {y + r + 0.6:.1f}l{r + 0.6} {-2 * r}h{-2 * (r + 0.6)}z",
        "left": f"M{x - r:.1f} {y:.1f}l{2 * r} {-r}v{2 * r}z",
        "right": f"M{x + r:.1f} {y:.1f}l{-2 * r} {-r}v{2 * r}z",
        "diamond": f"M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l{-r - 1} {r + 1}l{-r - 1} {-r - 1}z",
        "cross": f"M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}",
        "plus": f"M{x - r - 0.6:.1f} {y:.1f}h{2 * r + 1.2}m{-r - 0.6} {-r - 0.6}v{2 * r + 1.2}",
    }
    filled = f' fill="{style.colour}"'
    if style.hollow or style.marker in ("cross", "plus"):
        filled = ' class="mark hollow"'
    classes = "" if "class" in filled else ' class="mark"'
    return f'<path{classes} d="{shapes[style.marker]}" stroke="{style.colour}"{filled}/>'


def ticks(top: float, most: int = 5) -> list[float]:
    """Round numbers from 0 to the first one not below ``top``."""
    if top <= 0:
        return [0.0, 1.0]
    step = 10.0 ** math.floor(math.log10(top / most))
    step *= next(m for m in (1, 2, 2.5, 5, 10) if math.ceil(top / (step * m) - 1e-9) <= most)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def digits_of(values: Sequence[float]) -> int:
    """Digits after the point that tell these values apart."""
    return max((len(f"{v:.10f}".rstrip("0").split(".")[1]) for v in values), default=0)


def _picture(curves: list[tuple[Entry, list[Point]]], key: str) -> str:
    first = curves[0][0]
    longest = max(len(shortened(entry.label)) for entry, _ in curves)
    values = ticks(max(point.high for _, points in curves for point in points))
    rounds = [point.round for _, points in curves for point in points]
    scale = Scale(min(rounds), max(rounds), values[-1], WIDTH - 38 - 8.1 * longest)
    axis = f"validation NDCG@10 · ranked: {first.ranking}"
    banded = len(curves) <= MOST_BANDS
    lines = "".join(_line(e, points, scale, at, banded) for at, (e, points) in enumerate(curves))
    said = "; ".join(
        f"{entry.label}: {metric(points[-1].mean)} in round {points[-1].round}, highest "
        f"{metric(max(point.mean for point in points))}"
        for entry, points in curves
    )
    ends = [
        (scale.y(points[-1].mean), scale.x(points[-1].round), entry.label, entry.style)
        for entry, points in curves
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" '
        f'aria-labelledby="{key}-title {key}-desc" data-first="{scale.first}" '
        f'data-last="{scale.last}" data-left="{scale.x(scale.first):.1f}" '
        f'data-right="{scale.x(scale.last):.1f}" data-zero="{scale.y(0):.1f}" '
        f'data-top="{scale.y(scale.top):.1f}" data-max="{scale.top:.6g}">'
        f'<title id="{key}-title">Learning curves on {text(first.data)}, {text(first.protocol)} '
        f'protocol</title><desc id="{key}-desc">{text(axis)}. {text(said)}. Arrow keys step '
        f"through the rounds.</desc>"
        f'<text class="axis" x="0" y="15">{text(axis)}</text>'
        f"{_axes(scale, values)}{lines}{end_labels(ends, scale.right)}"
        f'<g class="cursor" aria-hidden="true"></g></svg>'
    )


def _axes(scale: Scale, values: list[float]) -> str:
    digits = digits_of(values)
    parts = [
        f'<path class="{"base" if value == 0 else "grid"}" d="M{LEFT} {scale.y(value):.1f}'
        f'H{scale.right:.1f}"/><text class="tick y" x="{LEFT - 6}" y="{scale.y(value):.1f}">'
        f"{value:.{digits}f}</text>"
        for value in values
    ]
    step = math.ceil(ticks(max(scale.last - scale.first, 1), 6)[1])
    rounds = [r for r in range(scale.first, scale.last + 1) if r % step == 0 or r == scale.first]
    if len(rounds) > 1 and rounds[1] - rounds[0] < step * 0.6:
        del rounds[0]
    parts += [
        f'<text class="tick x" x="{scale.x(r):.1f}" y="{HEIGHT - BOTTOM + 17}">{r}</text>'
        for r in rounds
    ]
    middle = (LEFT + scale.right) / 2
    parts.append(f'<text class="axis x" x="{middle:.1f}" y="{HEIGHT - 4}">round</text>')
    return "".join(parts)


def _line(entry: Entry, points: list[Point], scale: Scale, at: int, banded: bool) -> str:
    style = entry.style
    places = [(scale.x(p.round), scale.y(p.mean)) for p in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    band = ""
    if banded and any(p.high > p.low for p in points):
        there = [f"{scale.x(p.round):.1f} {scale.y(p.high):.1f}" for p in points]
        back = [f"{scale.x(p.round):.1f} {scale.y(p.low):.1f}" for p in reversed(points)]
        band = f'<path class="band" fill="{style.colour}" d="M{"L".join(there + back)}z"/>'
    every = max(1, math.ceil(len(points) / MARKERS_PER_LINE))
    chosen = [place for i, place in enumerate(places) if (i + at) % every == 0]
    chosen = chosen if places[-1] in chosen else [*chosen, places[-1]]
    return (
        f'<g class="series">{band}<path class="line" d="{path}" stroke="{style.colour}" '
        f'stroke-dasharray="{style.dash}"/>{"".join(marker(style, x, y) for x, y in chosen)}</g>'
    )


def end_labels(ends: Sequence[tuple[float, float, str, Style]], right: float) -> str:
    """Names (y, x, name, style) at the ends of lines, moved apart where they would overlap."""
    ends = sorted(ends[:ROOM], key=lambda end: end[0])
    placed: list[float] = []
    for y, *_ in ends:
        placed.append(max(y, placed[-1] + LABEL_GAP) if placed else max(y, TOP))
    limit = float(HEIGHT - BOTTOM)
    for i in range(len(placed) - 1, -1, -1):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - LABEL_GAP
    x = right + 18
    return "".join(
        f'<path class="leader" d="M{end + 5:.1f} {y:.1f}L{x - 5:.1f} {label_y:.1f}"/>'
        f"{marker(style, x + 2, label_y, 3.0)}"
        f'<text class="label" x="{x + 10:.1f}" y="{label_y:.1f}">{text(shortened(name))}</text>'
        for (y, end, name, style), label_y in zip(ends, placed, strict=True)
    )


def shortened(label: str) -> str:
    return label if len(label) <= LABEL_CHARACTERS else label[: LABEL_CHARACTERS - 1] + "…"


def _values(curves: list[tuple[Entry, list[Point]]], first: Entry) -> str:
    """The same values as a table; the tooltip reads them from here."""
    heads = "".join(f'<th scope="col">{text(entry.label)}</th>' for entry, _ in curves)
    by_round = [{point.round: point.mean for point in points} for _, points in curves]
    rows = "".join(
        f'<tr><th scope="row">{r}</th>'
        + "".join(
            f'<td data-key="{f"{means[r]:.6g}" if r in means else ""}">{metric(means.get(r))}</td>'
            for means in by_round
        )
        + "</tr>"
        for r in sorted(set().union(*by_round))
    )
    name = f"Validation NDCG@10 by round, {first.data}, {first.protocol}"
    return (
        '<details class="values"><summary>Values by round</summary>'
        f'<div class="scroll tall" role="region" tabindex="0" aria-label="{text(name)}"><table>'
        f'<caption class="unseen">{text(name)}</caption><thead><tr><th scope="col">Round</th>'
        f"{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )
