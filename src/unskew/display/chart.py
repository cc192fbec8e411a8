"""Charts as data, drawn by matplotlib: as SVG (a file, or inline for a page) or as a figure.

Drawing a chart twice gives identical bytes. Methods differ by dash, marker and colour.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from statistics import fmean
from typing import Any, Literal, NamedTuple

from unskew.display.palette import Style, style_of, swatch
from unskew.display.table import MISSING, Cell, Column, Table, inline, to_html


class Series(NamedTuple):
    """A named series: a line, steps, a trail with its last point marked, or separate points."""

    label: str
    key: str
    """Name that decides colour, dash and marker, usually a method's."""
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
    """A short text per point; drawn at the first and last point if the panel has few series."""
    variant: int = 0
    """Number of the series among those with the same key, which differ in dash, marker or fill."""

    @property
    def style(self) -> Style:
        """Colour, dash and marker of the series."""
        return style_of(self.key, self.variant)


def mean_line(
    label: str, key: str, curves: Sequence[Sequence[float]], variant: int = 0, banded: bool = True
) -> Series:
    """The mean over seeds of a value by round, with a band from the lowest to the highest seed."""
    by_round = list(zip(*curves, strict=False))
    mean, low, high = ([of(at) for at in by_round] for of in (fmean, min, max))
    line = Series(label, key, range(1, len(by_round) + 1), mean, variant=variant)
    return line._replace(low=low, high=high) if banded and low != high else line


class Panel(NamedTuple):
    """One pair of axes and its series. Without ``x_label`` it has no ticks and no grid."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    right: Series | None = None
    """Bars behind the lines, with a separate vertical axis on the right."""
    names: tuple[str, ...] = ()
    """Labels of the whole numbers 0, 1, ... on the horizontal axis."""
    from_zero: bool = False
    """True if the vertical axis starts at 0."""
    log_x: bool = False
    log_y: bool = False

    @property
    def all_series(self) -> tuple[Series, ...]:
        """The panel's series, with the bars on the right axis if there are any."""
        return (*self.series, *([self.right] if self.right else []))

    def x_text(self, x: float) -> str:
        """Label of a position on the horizontal axis."""
        return self.names[int(x)] if self.names else f"{x:.4g}"


class Chart(NamedTuple):
    """Panels under one title and one legend."""

    title: str
    panels: tuple[Panel, ...]
    columns: int = 2


PANEL_WIDTH, PANEL_HEIGHT = 400, 270
"""Size of a panel in SVG pixels."""
MAX_BUBBLE_AREA = 1200.0
"""Largest area of a bubble, in square pixels."""
MAX_MARKERS_PER_LINE = 8
"""Approximate maximum number of markers on a line with many points."""
MAX_POINTS_ALL_MARKED = 16
"""Lines with at most this many points have a marker at every point."""
MAX_LABEL_WIDTH = 36
"""Maximum characters in a line of an axis label; longer labels are wrapped."""
MAX_NOTE_WIDTH = 24
"""Maximum characters of the note (short text) beside a point; longer notes are shortened."""
MAX_SERIES_WITH_NOTES = 4
"""Panels with more series than this have no notes beside points, because notes would overlap."""
MAX_VECTOR_POINTS = 500
"""A series of more points is drawn as an image inside the SVG, which keeps the file small."""
_POINT_AREAS = {"other": 8.0, "interacted": 16.0, "user": 160.0, "best": 120.0}
"""Areas of points in square pixels by the key of their series; 30 for other keys."""
_INK, _GRID, _BACK = "#010203", "#040506", "#070809"
"""Placeholder colours of text, grid lines and background, replaced in the finished SVG."""
_FILE_COLOURS = {_INK: "#1b1d21", _GRID: "#d9dbdf", _BACK: "#ffffff"}
"""Final colours of text, grid and background in an SVG file, by placeholder colour."""
_SVG_NOISE = re.compile(
    r'<defs>\s*<clipPath.*?</defs>| clip-path="[^"]*"| id="(?!m[0-9a-f]{10}")[^"]*"'
    r'| transform="rotate\(-0 [^"]*"|font-family: [^;]*; |^\s+',
    re.DOTALL | re.MULTILINE,
)
"""Parts that are removed from matplotlib's SVG: clip paths, fonts, ids other than markers'."""
_PAGE_COLOURS = {_INK: "currentColor", _GRID: "var(--grid)", _BACK: "var(--card)"}
"""Final CSS colours of text, grid and background within a page, by placeholder colour."""


def draw_svg(chart: Chart) -> str:
    """The text of an SVG file of a chart on a white background, with title and legend."""
    svg = _draw(chart, *_layout(chart), "chart")
    return svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def draw_figure(chart: Chart) -> Any:
    """A matplotlib ``Figure`` of a chart, to show in a notebook, change, or save."""
    across, down, size = _layout(chart)
    with _style("figure", _FILE_COLOURS, bare=False):
        figure = _figure(chart, across, down, size, _FILE_COLOURS[_BACK])
    # A figure made without pyplot tells a notebook itself how it looks.
    figure._repr_svg_ = lambda: draw_svg(chart)
    return figure


def draw_inline(panel: Panel, key: str) -> str:
    """Inline SVG of one panel in the colours of the HTML page, without heading and legend. ``key``
    is the id of the chart within the page."""
    chart = Chart(panel.title, (panel,))
    return _draw(chart, 1, 1, (PANEL_WIDTH, PANEL_HEIGHT), key, bare=True)


def _layout(chart: Chart) -> tuple[int, int, tuple[int, int]]:
    """Number of columns and rows of a chart's panels, and the chart's size in pixels."""
    across = min(chart.columns, len(chart.panels))
    down = -(-len(chart.panels) // across)
    # Space above for the title and below for rows of three legend entries per column.
    entries = len({series.label for panel in chart.panels for series in panel.all_series})
    height = down * (PANEL_HEIGHT + 20) + 30 + 16 * -(-entries // (3 * across))
    return across, down, (across * PANEL_WIDTH + 20, height)


@contextmanager
def _style(key: str, colours: Mapping[str, str], bare: bool) -> Iterator[None]:
    """Use matplotlib's settings for this package's charts within a ``with`` block. ``colours`` maps
    the placeholder colours of text, grid and background to the colours used. ``key`` makes ids
    within an SVG repeatable."""
    from matplotlib import style

    inked = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color")
    settings = dict.fromkeys((*inked, "axes.edgecolor"), colours[_INK]) | {
        "svg.fonttype": "none",
        "svg.hashsalt": key,
        "text.parse_math": False,
        "lines.scale_dashes": False,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "figure.facecolor": "none" if bare else colours[_BACK],
        "grid.color": colours[_GRID],
        "font.family": "DejaVu Sans",
        "font.size": 12,
        "axes.titlesize": "medium",
        "xtick.major.size": 0,
        "xtick.major.pad": 6,
        "ytick.major.size": 0,
    }
    with style.context(["default", settings]), warnings.catch_warnings():
        # Text is laid out in a font that may lack a glyph; the viewer's font draws it.
        warnings.filterwarnings("ignore", "Glyph")
        yield


def _figure(
    chart: Chart, across: int, down: int, size: tuple[int, int], back: str, bare: bool = False
) -> Any:
    """A matplotlib figure of a chart; ``back`` is the colour inside hollow markers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    legend: dict[str, Any] = {}
    for axis, panel in zip(axes, chart.panels, strict=False):
        legend |= _draw_panel(axis, panel, back, bare)
    for axis in axes[len(chart.panels) :]:
        axis.set_visible(False)
    if not bare:
        figure.suptitle(textwrap.fill(chart.title, 50 * across))
        figure.legend(
            list(legend.values()),
            list(legend),
            loc="outside lower center",
            ncols=min(len(legend), 3 * across) or 1,
            frameon=False,
        )
    return figure


def _draw(
    chart: Chart, across: int, down: int, size: tuple[int, int], key: str, bare: bool = False
) -> str:
    """SVG of a chart, with a title and description for screen readers. If ``bare``, it has the
    colours of the HTML page and no heading, legend and background."""
    file = io.StringIO()
    with _style(key, {name: name for name in _FILE_COLOURS}, bare):
        _figure(chart, across, down, size, _BACK, bare).savefig(file, format="svg", dpi=100)
    drawn = file.getvalue().replace("xlink:href", "href")
    body = _SVG_NOISE.sub("", drawn[drawn.index("<g ") :])
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda found: _round_coordinates(found[0]), body)
    for placeholder, colour in (_PAGE_COLOURS if bare else _FILE_COLOURS).items():
        body = body.replace(placeholder, colour)
    return (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" stroke-linejoin="round" '
        f'font-family="system-ui, sans-serif" aria-labelledby="{key}-title {key}-desc">'
        f'<title id="{key}-title">{escape(chart.title)}</title>'
        f'<desc id="{key}-desc">{escape(_description(chart))}</desc>{body}'
    )


def _draw_panel(axis: Any, panel: Panel, back: str, bare: bool) -> dict[str, Any]:
    """Draw a panel with matplotlib and return its legend handles by label."""
    axis.set_xlabel(textwrap.fill(panel.x_label, MAX_LABEL_WIDTH))
    if bare:
        axis.set_title(panel.y_label, loc="left")
    else:
        axis.set_title(panel.title)
        axis.set_ylabel(textwrap.fill(panel.y_label, MAX_LABEL_WIDTH))
    legend: dict[str, Any] = {}
    if panel.right is not None:
        bars, other = panel.right, axis.twinx()
        legend[bars.label] = other.bar(bars.x, bars.y, 0.5, color=bars.style.colour, alpha=0.35)
        other.set_ylabel(bars.label)
        other.set_zorder(axis.get_zorder() - 1)
    else:
        axis.spines["right"].set_visible(False)
    for at, series in enumerate(panel.series):
        legend[series.label] = _draw_series(axis, series, at, back)
        # The notes of the first and the last point stand beside them.
        few = len(panel.series) <= MAX_SERIES_WITH_NOTES
        for end in {0, len(series.notes) - 1} if few and series.notes else ():
            place = (series.x[end], series.y[end])
            note = textwrap.shorten(series.notes[end], MAX_NOTE_WIDTH)
            axis.annotate(note, place, (-5, 5), textcoords="offset points", ha="right")
    for scaled, name in ((panel.log_x, "x"), (panel.log_y, "y")):
        if scaled:
            axis.set(**{f"{name}scale": "log"})
            getattr(axis, f"{name}axis").set_major_formatter("{x:g}")
            getattr(axis, f"{name}axis").set_minor_formatter("")
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


def _draw_series(axis: Any, series: Series, at: int, back: str) -> Any:
    """Draw series number ``at`` of a panel with matplotlib and return its legend handle."""
    style, marker = series.style, series.style.marker
    face = back if style.hollow else style.colour
    if series.kind == "points":
        look = {"marker": marker, "linewidths": 1.4, "alpha": 0.85}
        look |= {"c": style.colour} if marker in "x+" else {"fc": face, "ec": style.colour}
        sizes: Any = _POINT_AREAS.get(series.key, 30.0)
        if series.sizes:
            sizes = [max(20.0, MAX_BUBBLE_AREA * size) for size in series.sizes]
            axis.margins(0.15)
        # Small bubbles on top of large ones.
        order = 2 - max(series.sizes, default=0)
        cloud = len(series.x) > MAX_VECTOR_POINTS
        if cloud and style.hollow:
            look["fc"] = _FILE_COLOURS[_BACK]
        axis.scatter(series.x, series.y, s=sizes, zorder=order, rasterized=cloud, **look)
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


def _round_coordinates(attribute: str) -> str:
    """Round the coordinates in an SVG attribute to one decimal and remove line breaks."""
    rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}", attribute)
    return rounded.replace("\n", "")


def _description(chart: Chart) -> str:
    """A chart in words, for screen readers: the first and the last point of every series."""
    said = []
    for panel in chart.panels:
        for series in panel.series if panel.x_label or panel.names else ():
            points = list(zip(series.x, series.y, strict=True))
            ends = dict.fromkeys([*points[:1], *points[-1:]])
            words = " to ".join(f"{y:.4g} at {panel.x_text(x)}" for x, y in ends)
            said.append(f"{panel.title}, {series.label}: {panel.y_label} {words}.")
    return " ".join(said)


def figure_html(panel: Panel, key: str, heading: str = "", note: str = "") -> str:
    """A panel as an HTML figure: heading, legend, chart, note, and its values as a table. ``key``
    is the figure's id within the page; ``heading`` and ``note`` are Markdown text."""
    legend = "".join(
        f"<li>{swatch(series.style, series.kind != 'points')}"
        f'<span class="name">{escape(series.label)}</span></li>'
        for series in panel.all_series
    )
    return (
        f'<figure class="chart"><h4>{inline(heading or panel.title)}</h4>'
        f'<ul class="legend">{legend}</ul><div class="plot">{draw_inline(panel, key)}</div>'
        f"<figcaption>{inline(note)}</figcaption>"
        '<details class="values"><summary>Values</summary>'
        f"{to_html(_values_table(panel), f'{key}-values')}</details></figure>"
    )


def figures_html(figures: Sequence[str]) -> str:
    """HTML that puts figures side by side, as many as the screen's width allows."""
    return f'<div class="panels">{"".join(figures)}</div>' if figures else ""


def _values_table(panel: Panel) -> Table:
    """A panel's values as a table: a row per x and a column per series if all series are lines,
    else a row per point."""
    series = panel.all_series
    largest = max((abs(y) for one in series for y in one.y), default=0.0)
    places = ".4f" if largest < 10 else ".4g"
    caption = f"{panel.title}: {panel.y_label}."
    first = Column((panel.x_label or "step").capitalize(), "number", "low")
    if all(one.kind == "line" and not one.notes for one in series):
        by_x = [dict(zip(one.x, one.y, strict=True)) for one in series]
        rows = [
            [
                Cell(panel.x_text(x), x),
                *(Cell(f"{y[x]:{places}}", y[x]) if x in y else Cell(MISSING) for y in by_x),
            ]
            for x in sorted(set().union(*by_x))
        ]
        return Table.of([first, *(Column(one.label) for one in series)], rows, caption=caption)
    columns = [Column("Series", "text"), first, Column(panel.y_label), Column("Point", "text")]
    points: list[list[Cell | str]] = [
        [one.label, Cell(panel.x_text(x), x), Cell(f"{y:{places}}", y), _point_note(one, at)]
        for one in series
        for at, (x, y) in enumerate(zip(one.x, one.y, strict=True))
    ]
    return Table.of(columns, points, caption=caption)


def _point_note(series: Series, at: int) -> str:
    """Text about a point in the table of values: its note, or for a bubble its area in percent of
    the largest."""
    if series.sizes:
        return f"{series.sizes[at]:.0%} of the largest area"
    return series.notes[at] if series.notes else MISSING
