"""Charts into SVG and PNG files by matplotlib, readable without colours too."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from unskew.experiments.tables._chart import Chart, Panel, Series
from unskew.files import write_atomically
from unskew.types import UnskewError


class Look(NamedTuple):
    """How a key is drawn; dash and marker tell it apart without its colour."""

    colour: str
    dash: tuple[float, ...] = ()
    marker: str = "o"
    filled: bool = True


_ITEMS = {
    "other": Look("#7f9fc9", marker="o", filled=False),
    "interacted": Look("#b3261e", marker="^"),
    "user": Look("#1b7f3b", marker="*"),
    "overhead": Look("#c9c9c9"),
}
"""Keys of the pictures of embeddings: light rings, dark triangles, one star."""
_SIZES = {"other": 8.0, "interacted": 16.0, "user": 160.0}
_LARGEST = 1200.0
"""A bubble's largest area in square points."""
_FEW = 40
"""A line with more points than this gets fewer markers than points."""


def draw(chart: Chart, stem: Path, look: Callable[[str], Look]) -> list[Path]:
    """Write ``stem``.svg and .png; the same chart gives the same files."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UnskewError(
            "Figures need matplotlib; install it with: pip install 'unskew[figures]'."
        ) from None
    across = min(chart.columns, len(chart.panels))
    down = -(-len(chart.panels) // across)
    written = []
    with matplotlib.rc_context({"svg.hashsalt": "unskew", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.2 * across + 0.6, 3.3 * down + 0.9), layout="constrained")
        figure.suptitle(textwrap.fill(chart.title, 45 * across), fontsize=12)
        axes = figure.subplots(down, across, squeeze=False).ravel()
        legend: dict[str, Any] = {}
        for at, axis in enumerate(axes):
            if at < len(chart.panels):
                legend |= _panel(axis, chart.panels[at], look)
            else:
                axis.set_visible(False)
        if legend:
            columns = min(len(legend), 3 * across)
            figure.legend(
                list(legend.values()),
                list(legend),
                loc="outside lower center",
                ncols=columns,
                fontsize=8,
                frameon=False,
            )
        for kind, metadata in (("svg", {"Date": None}), ("png", {"Software": None})):
            path = stem.with_name(f"{stem.name}.{kind}")

            def write(file: Any, kind: str = kind, metadata: Any = metadata) -> None:
                figure.savefig(file, format=kind, dpi=130, metadata=metadata)

            write_atomically(path, write)
            written.append(path)
    return written


def _panel(axis: Any, panel: Panel, look: Callable[[str], Look]) -> dict[str, Any]:
    """Draw a panel; what the legend says about it."""
    axis.set_title(panel.title, fontsize=10)
    axis.set_xlabel(panel.x_label, fontsize=9)
    axis.set_ylabel(panel.y_label, fontsize=9)
    axis.tick_params(labelsize=8)
    legend: dict[str, Any] = {}
    if panel.right is not None:
        bars, other = panel.right, axis.twinx()
        legend[bars.label] = other.bar(bars.x, bars.y, 0.5, color=_ITEMS["overhead"].colour)
        other.set_ylabel(bars.label, fontsize=9)
        other.tick_params(labelsize=8)
        other.set_zorder(axis.get_zorder() - 1)
        axis.patch.set_visible(False)
    for series in panel.series:
        legend[series.label] = _series(axis, series, _ITEMS.get(series.key) or look(series.key))
    if panel.names:
        axis.set_xticks(range(len(panel.names)), panel.names)
    if not panel.x_label:
        axis.set_xticks([])
        axis.set_yticks([])
    else:
        axis.grid(alpha=0.25, linewidth=0.5)
    return legend


def _series(axis: Any, series: Series, look: Look) -> Any:
    face = look.colour if look.filled else "none"
    if series.kind == "points":
        sizes: Any = _SIZES.get(series.key, 40.0)
        if series.sizes:
            sizes = [max(20.0, _LARGEST * size) for size in series.sizes]
            axis.margins(0.15)
        where = {"s": sizes, "marker": look.marker, "linewidths": 0.8, "alpha": 0.75}
        where["zorder"] = 2 - max(series.sizes, default=0)  # the small on top of the large
        axis.scatter(series.x, series.y, facecolors=face, edgecolors=look.colour, **where)
        small = {**where, "s": 30}
        return axis.scatter([], [], facecolors=face, edgecolors=look.colour, **small)
    every = max(1, len(series.x) // 8) if len(series.x) > _FEW or series.kind == "trail" else 1
    line = axis.plot(
        series.x,
        series.y,
        color=look.colour,
        linestyle=(0, look.dash) if look.dash else "-",
        linewidth=1.3,
        marker=look.marker,
        markerfacecolor=face,
        markersize=4,
        markevery=every,
    )[0]
    if series.kind == "trail" and len(series.x):
        # A trail ends in a larger mark, so that its direction can be seen.
        axis.plot(series.x[-1:], series.y[-1:], look.marker, color=look.colour, markersize=9)
    return line
