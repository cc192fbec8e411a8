"""A chart as a value, drawn by matplotlib as SVG: a whole file, or inline for a page.

The same chart gives the same bytes. Methods differ by dash and marker as well as by colour.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Literal, NamedTuple

from unskew.report.palette import Style, styles, variant


class Series(NamedTuple):
    """Points of one name: a line, steps, a trail that marks its last point, or separate points."""

    label: str
    key: str
    """Decides colour, dash and marker: a method's name, or any other name."""
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["line", "step", "trail", "points"] = "line"
    sizes: Sequence[float] = ()
    """Areas of bubbles, from 0 to 1."""
    low: Sequence[float] = ()
    """Lower edge of a band around the line."""
    high: Sequence[float] = ()
    """Upper edge of the band."""
    notes: Sequence[str] = ()
    """A short text per point, drawn beside the first and the last if the panel has few series."""
    variant: int = 0
    """Other than 0: another dash and fill of the key's style, for a second series of the key."""

    def style(self, looks: Mapping[str, Style]) -> Style:
        return variant(looks[self.key], self.variant)


class Panel(NamedTuple):
    """One pair of axes. Without ``x_label`` it is a picture: no ticks, no grid."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    right: Series | None = None
    """Bars behind the lines, on an axis of their own at the right."""
    names: tuple[str, ...] = ()
    """Labels of the whole numbers 0, 1, ... on the horizontal axis."""
    from_zero: bool = False
    """Whether the vertical axis starts at 0."""
    log_x: bool = False


class Chart(NamedTuple):
    """Panels under one title and one legend."""

    title: str
    panels: tuple[Panel, ...]
    columns: int = 2


PANEL_WIDTH, PANEL_HEIGHT = 400, 270
"""Size of a panel in pixels of the SVG's own scale."""
MAX_BUBBLE_AREA = 1200.0
"""Largest area of a bubble, in square pixels."""
MAX_MARKERS_PER_LINE = 8
"""A line with many points gets a marker at evenly spaced ones only."""
MAX_POINTS_ALL_MARKED = 16
"""A line with up to this many points gets a marker at each."""
MAX_SERIES_WITH_NOTES = 4
"""In a panel with more series the notes would overlap and are left out."""
_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "x",
    "plus": "+",
    "wedge": "v",
    "left": "<",
    "right": ">",
    "star": "*",
}
_POINT_AREAS = {"other": 8.0, "interacted": 16.0, "user": 160.0, "best": 120.0}
"""Areas of points with a special key, in square pixels; others have 30."""
_INK, _GRID, _BACK = "#010203", "#040506", "#070809"
"""Placeholder colours of text, grid lines and background, replaced in the finished SVG."""
_FILE_COLOURS = {_INK: "#1b1d21", _GRID: "#d9dbdf", _BACK: "#ffffff"}
_PAGE_COLOURS = {_INK: "currentColor", _GRID: "var(--grid)", _BACK: "var(--card)"}


def draw_svg(chart: Chart, looks: Mapping[str, Style] | None = None) -> str:
    """The chart as an SVG file on white, with title and legend."""
    looks = looks or chart_styles(chart)
    across = min(chart.columns, len(chart.panels))
    down = -(-len(chart.panels) // across)
    # Room above for the title and below for rows of three legend entries per column.
    entries = len({series.label for series in all_series(chart)})
    height = down * (PANEL_HEIGHT + 20) + 30 + 16 * -(-entries // (3 * across))
    drawn = _draw(
        chart, looks, (across, down), (across * PANEL_WIDTH + 20, height), False, "unskew"
    )
    return _finished(drawn, chart, "chart", _FILE_COLOURS, ' xmlns="http://www.w3.org/2000/svg"')


def draw_inline(panel: Panel, key: str, looks: Mapping[str, Style]) -> str:
    """One panel as inline SVG in the colours of its page, without heading and legend.

    ``key`` is the id of the chart within the page.
    """
    chart = Chart(panel.title, (panel,))
    drawn = _draw(chart, looks, (1, 1), (PANEL_WIDTH, PANEL_HEIGHT), True, key)
    return _finished(drawn, chart, key, _PAGE_COLOURS, "")


def chart_styles(chart: Chart) -> dict[str, Style]:
    """Style of every key in the chart."""
    return styles(series.key for series in all_series(chart))


def all_series(chart: Chart) -> list[Series]:
    """Series of all panels, with those on a right axis."""
    return [
        series
        for panel in chart.panels
        for series in (*panel.series, *([panel.right] if panel.right else []))
    ]


def _draw(
    chart: Chart,
    looks: Mapping[str, Style],
    grid: tuple[int, int],
    size: tuple[int, int],
    bare: bool,
    salt: str,
) -> str:
    """The SVG as matplotlib writes it; ``bare``: without title and legend."""
    from matplotlib import style
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": salt,
        "text.parse_math": False,
        "lines.scale_dashes": False,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "figure.facecolor": "none" if bare else _BACK,
        "grid.color": _GRID,
        "font.family": "DejaVu Sans",
        "font.size": 12,
        "xtick.major.size": 0,
        "xtick.major.pad": 6,
        "ytick.major.size": 0,
        "axes.labelsize": 12,
        "axes.titlesize": 12,
        "xtick.labelsize": 12,
        "ytick.labelsize": 12,
        "legend.fontsize": 12,
        "figure.titlesize": 14,
    }
    inked = ("text", "axes.label", "axes.title", "xtick.", "ytick.")
    settings |= {f"{name}{'.' * (name == 'text')}color": _INK for name in inked}
    settings |= {"axes.edgecolor": _INK}
    with style.context(["default", settings]), warnings.catch_warnings():
        # Text is laid out in a font that may lack a glyph; the viewer's font draws it.
        warnings.filterwarnings("ignore", "Glyph")
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")
        axes = figure.subplots(grid[1], grid[0], squeeze=False).ravel()
        legend: dict[str, Any] = {}
        for axis, panel in zip(axes, chart.panels, strict=False):
            legend |= _draw_panel(axis, panel, looks, bare)
        for axis in axes[len(chart.panels) :]:
            axis.set_visible(False)
        if not bare:
            figure.suptitle(textwrap.fill(chart.title, 50 * grid[0]))
            figure.legend(
                list(legend.values()),
                list(legend),
                loc="outside lower center",
                ncols=min(len(legend), 3 * grid[0]) or 1,
                frameon=False,
            )
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _draw_panel(axis: Any, panel: Panel, looks: Mapping[str, Style], bare: bool) -> dict[str, Any]:
    """Draw a panel and return its legend: matplotlib's artists by label."""
    axis.set_xlabel(panel.x_label)
    if bare:
        axis.set_title(panel.y_label, loc="left")
    else:
        axis.set_title(panel.title)
        axis.set_ylabel(panel.y_label)
    legend: dict[str, Any] = {}
    if panel.right is not None:
        bars, other = panel.right, axis.twinx()
        colour = bars.style(looks).colour
        legend[bars.label] = other.bar(bars.x, bars.y, 0.5, color=colour, alpha=0.35)
        other.set_ylabel(bars.label)
        other.set_zorder(axis.get_zorder() - 1)
    else:
        axis.spines["right"].set_visible(False)
    for at, series in enumerate(panel.series):
        legend[series.label] = _draw_series(axis, series, series.style(looks), at)
        if len(panel.series) <= MAX_SERIES_WITH_NOTES:
            _draw_notes(axis, series)
    if panel.log_x:
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    if panel.names:
        axis.set_xticks(range(len(panel.names)), panel.names)
        axis.margins(x=0.18)
    if panel.from_zero:
        axis.set_ylim(bottom=0)
    if panel.x_label or panel.names:
        axis.grid(linewidth=0.8)
        axis.set_axisbelow(True)
    else:
        axis.set_xticks([])
        axis.set_yticks([])
    return legend


def _draw_series(axis: Any, series: Series, style: Style, at: int) -> Any:
    """Draw a series and return what the legend shows of it."""
    face = _BACK if style.hollow else style.colour
    marker = _MARKERS[style.marker]
    if series.kind == "points":
        look = {"marker": marker, "linewidths": 1.4, "alpha": 0.85}
        look |= {"c": style.colour} if marker in "x+" else {"fc": face, "ec": style.colour}
        sizes: Any = _POINT_AREAS.get(series.key, 30.0)
        if series.sizes:
            sizes = [max(20.0, MAX_BUBBLE_AREA * size) for size in series.sizes]
            axis.margins(0.15)
        # Small bubbles on top of large ones.
        order = 2 - max(series.sizes, default=0)
        axis.scatter(series.x, series.y, s=sizes, zorder=order, **look)
        return axis.scatter([], [], s=30, **look)
    dash: Any = (0, tuple(map(float, style.dash.split()))) if style.dash else "-"
    if series.kind == "step":
        return axis.step(series.x, series.y, where="post", color=style.colour, linestyle=dash)[0]
    few = series.kind == "line" and len(series.x) <= MAX_POINTS_ALL_MARKED
    every = 1 if few else max(1, len(series.x) // MAX_MARKERS_PER_LINE)
    line = axis.plot(
        series.x,
        series.y,
        color=style.colour,
        linestyle=dash,
        linewidth=1.8,
        marker=marker,
        markerfacecolor=face,
        markersize=6,
        # Lines that run together show their markers in turn.
        markevery=(at % every, every),
    )[0]
    if series.low and series.high:
        axis.fill_between(
            series.x, series.low, series.high, color=style.colour, alpha=0.14, linewidth=0
        )
    if series.kind == "trail" and len(series.x):
        axis.plot(series.x[-1:], series.y[-1:], marker, color=style.colour, markersize=10)
    return line


def _draw_notes(axis: Any, series: Series) -> None:
    """Write the notes of the first and the last point beside them."""
    for at in {0, len(series.notes) - 1} if series.notes else ():
        place = (series.x[at], series.y[at])
        axis.annotate(series.notes[at], place, (-5, 5), textcoords="offset points", ha="right")


def _finished(
    drawn: str, chart: Chart, key: str, colours: Mapping[str, str], attributes: str
) -> str:
    """The SVG reduced to shapes and text, with a title and a description for screen readers."""
    size = re.search(r'viewBox="([^"]*)"', drawn)
    assert size is not None
    body = drawn[drawn.index(">", size.end()) + 1 :]
    for noise in (
        r"<metadata>.*?</metadata>",
        r"<style.*?</style>",
        r"<clipPath.*?</clipPath>",
        r"<!--.*?-->",
        r' clip-path="[^"]*"',
        r' id="(?!m[0-9a-f]{10}")[^"]*"',
        r"<defs>\s*</defs>",
        r' transform="rotate\(-0 [^"]*"',
        r"font-family: [^;\"]*; ",
    ):
        body = re.sub(noise, "", body, flags=re.DOTALL)
    body = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1", body.replace("xlink:href", "href"))
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: _shortened(found[0]), body)
    body = re.sub(r"\s*\n\s*", "\n", body)
    for placeholder, colour in colours.items():
        body = body.replace(placeholder, colour)
    return (
        f'<svg{attributes} viewBox="{size[1]}" role="img" stroke-linejoin="round" '
        f'font-family="system-ui, sans-serif" aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{escape(chart.title)}</title>'
        f'<desc id="{key}-desc">{escape(_description(chart))}</desc>{body.strip()}\n'
    )


def _shortened(attribute: str) -> str:
    """Coordinates with one decimal, and without line breaks."""
    rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", attribute)
    return re.sub(r"\s*\n\s*", "", rounded)


def _description(chart: Chart) -> str:
    """The first and last point of every series in words."""
    said = []
    for panel in chart.panels:
        for series in panel.series if panel.x_label or panel.names else ():
            if not len(series.x):
                continue
            ends = [
                f"{series.y[at]:.4g} at {point_name(panel, series.x[at])}"
                for at in ((0, -1) if len(series.x) > 1 else (0,))
            ]
            said.append(f"{panel.title}, {series.label}: {panel.y_label} {' to '.join(ends)}.")
    return " ".join(said)


def point_name(panel: Panel, x: float) -> str:
    """A place on the horizontal axis in words."""
    return panel.names[int(x)] if panel.names else f"{x:.4g}"
