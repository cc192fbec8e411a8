"""Tables, charts and the HTML report on finished runs, without training or network access."""

from __future__ import annotations

from unskew.report.chart import Chart, Panel, Series, draw_svg
from unskew.report.entries import FinishedRun
from unskew.report.page import render
from unskew.report.sections import Chapter, Client, Extras
from unskew.report.table import MISSING, Cell, Column, Table, to_markdown

__all__ = [
    "MISSING",
    "Cell",
    "Chapter",
    "Chart",
    "Client",
    "Column",
    "Extras",
    "FinishedRun",
    "Panel",
    "Series",
    "Table",
    "draw_svg",
    "render",
    "to_markdown",
]
