"""Tables and charts as data objects, drawn as Markdown, LaTeX, HTML, SVG or matplotlib figures."""

from __future__ import annotations

from unskew.display.chart import Chart, Panel, Series, draw_figure, draw_svg, mean_line
from unskew.display.table import (
    MISSING,
    Cell,
    Column,
    Table,
    to_latex,
    to_markdown,
    to_plain_html,
)

__all__ = [
    "MISSING",
    "Cell",
    "Chart",
    "Column",
    "Panel",
    "Series",
    "Table",
    "draw_figure",
    "draw_svg",
    "mean_line",
    "to_latex",
    "to_markdown",
    "to_plain_html",
]
