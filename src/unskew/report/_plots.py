"""Charts of points, joined or not: a tooltip per point, by pointer and by arrow keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from unskew.report._charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    ROOM,
    TOP,
    WIDTH,
    digits_of,
    end_labels,
    marker,
    shortened,
    swatch,
    ticks,
)
from unskew.report._entries import text
from unskew.report.palette import Style

RADIUS, LARGEST = 4.2, 22.0
"""Of a point, and of the largest bubble."""
_EDGE = 14
"""Room between the frame and the outermost points."""


class Mark(NamedTuple):
    """A point, what is told about it, and its share of the largest area (0: a plain mark)."""

    x: float
    y: float
    told: str
    size: float = 0.0


class Line(NamedTuple):
    label: str
    style: Style
    marks: Sequence[Mark]
    joined: bool = True


class Plot(NamedTuple):
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    names: Sequence[str] = ()
    """Labels of the whole numbers on the horizontal axis, where it has no numbers."""
    labelled: bool = False
    """Whether lines have their names at their right ends."""
    note: str = ""
    heading: str = ""
    """As HTML, above the legend; the title where there is none."""


class _Frame(NamedTuple):
    low: float
    high: float
    top: float
    right: float

    def x(self, value: float) -> float:
        left, right = LEFT + _EDGE, self.right - _EDGE
        if self.low == self.high:
            return (left + right) / 2
        return left + (value - self.low) / (self.high - self.low) * (right - left)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - BOTTOM - TOP)


def plot(drawn: Plot, key: str) -> str:
    """A figure: legend, picture, note; every point can be pointed at or reached by keys."""
    lines = [line for line in drawn.lines if line.marks]
    legend = "".join(
        f'<li>{swatch(line.style, line.joined)}<span class="name">{text(line.label)}</span></li>'
        for line in lines
    )
    heading = drawn.heading or text(drawn.title)
    # Names at the ends of lines say all a legend says, if there is room for all of them.
    hidden = " unseen" if drawn.labelled and len(lines) <= ROOM else ""
    note = f"<figcaption>{drawn.note}</figcaption>" if drawn.note else ""
    rows = 2 + (not hidden) + bool(note)
    return (
        f'<figure class="chart dots rows-{rows}"><h4>{heading}</h4>'
        f'<ul class="legend{hidden}">{legend}</ul>'
        f'<div class="plot">{_picture(drawn, lines, key)}'
        f'<div class="tip" role="status" hidden></div></div>{note}</figure>'
    )


def _picture(drawn: Plot, lines: Sequence[Line], key: str) -> str:
    heights = ticks(max((mark.y for line in lines for mark in line.marks), default=1.0))
    widths = _widths(drawn, lines)
    right = WIDTH - (26.0 if drawn.names else 6.0)  # names are wider than numbers
    if drawn.labelled:
        right = WIDTH - 38 - 8.1 * max(len(shortened(line.label)) for line in lines)
    frame = _Frame(widths[0], widths[-1], heights[-1], right)
    bodies = "".join(_series(line, frame, at) for at, line in enumerate(lines))
    ends = ""
    if drawn.labelled:
        last = [max(line.marks, key=lambda mark: mark.x) for line in lines]
        places = [(frame.y(m.y), frame.x(m.x)) for m in last]
        ends = end_labels(
            [(*p, line.label, line.style) for p, line in zip(places, lines, strict=True)], right
        )
    told = "; ".join(f"{line.label}, {mark.told}" for line in lines for mark in line.marks)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" tabindex="0" '
        f'aria-labelledby="{key}-title {key}-desc"><title id="{key}-title">{text(drawn.title)}'
        f'</title><desc id="{key}-desc">{text(told)}. Arrow keys step through the points.</desc>'
        f'<text class="axis" x="0" y="15">{text(drawn.y_label)}</text>'
        f"{_axes(drawn, frame, heights, widths)}{bodies}{ends}"
        '<g class="cursor" aria-hidden="true"></g></svg>'
    )


def _widths(drawn: Plot, lines: Sequence[Line]) -> list[float]:
    """Places of the ticks on the horizontal axis."""
    if drawn.names:
        return [float(at) for at in range(len(drawn.names))]
    xs = [mark.x for line in lines for mark in line.marks] or [0.0]
    low, high = min(xs), max(xs)
    step = ticks(high - low or high or 1.0)[1]
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * at for at in range(first, last + 1)]


def _axes(drawn: Plot, frame: _Frame, heights: Sequence[float], widths: Sequence[float]) -> str:
    tall, wide = digits_of(heights), digits_of(widths)
    parts = [
        f'<path class="{"base" if value == 0 else "grid"}" d="M{LEFT} {frame.y(value):.1f}'
        f'H{frame.right:.1f}"/><text class="tick y" x="{LEFT - 6}" y="{frame.y(value):.1f}">'
        f"{value:.{tall}f}</text>"
        for value in heights
    ]
    names = drawn.names or [f"{value:.{wide}f}" for value in widths]
    for value, name in zip(widths, names, strict=True):
        parts.append(
            f'<path class="grid" d="M{frame.x(value):.1f} {TOP}V{HEIGHT - BOTTOM}"/>'
            f'<text class="tick x" x="{frame.x(value):.1f}" y="{HEIGHT - BOTTOM + 17}">'
            f"{text(name)}</text>"
        )
    middle = (LEFT + frame.right) / 2
    parts.append(
        f'<text class="axis x" x="{middle:.1f}" y="{HEIGHT - 4}">{text(drawn.x_label)}</text>'
    )
    return "".join(parts)


def _series(line: Line, frame: _Frame, at: int) -> str:
    style = line.style
    path = ""
    if line.joined and len(line.marks) > 1:
        places = "L".join(f"{frame.x(m.x):.1f} {frame.y(m.y):.1f}" for m in line.marks)
        path = (
            f'<path class="line" d="M{places}" stroke="{style.colour}" '
            f'stroke-dasharray="{style.dash}"/>'
        )
    marks = "".join(
        f'<g class="dot" data-line="{at}" data-x="{frame.x(m.x):.1f}" '
        f'data-y="{frame.y(m.y):.1f}" data-told="{text(m.told)}">{_bubble(m, style, frame)}'
        f"{marker(style, frame.x(m.x), frame.y(m.y), RADIUS)}</g>"
        for m in line.marks
    )
    return f'<g class="series">{path}{marks}</g>'


def _bubble(mark: Mark, style: Style, frame: _Frame) -> str:
    """Kept inside the picture where the point itself lies near its edge."""
    if mark.size <= 0:
        return ""
    radius = max(RADIUS, LARGEST * math.sqrt(mark.size))
    x, y = frame.x(mark.x), frame.y(mark.y)
    radius = min(radius, x - 2, WIDTH - x - 2, y - 2, HEIGHT - y - 2)
    return (
        f'<circle class="bubble" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" '
        f'fill="{style.colour}" stroke="{style.colour}"/>'
    )
