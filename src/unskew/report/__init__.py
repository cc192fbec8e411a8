"""Tables, charts and the HTML report as values in and text out. Trains nothing, fetches nothing."""

from __future__ import annotations

from unskew.report._extras import (
    Chapter,
    Client,
    Diagram,
    Exposure,
    Extras,
    Listing,
    Pick,
    Privacy,
)
from unskew.report._page import TITLE, render
from unskew.report.chart import Chart, Panel, Series, draw_svg
from unskew.report.palette import Style, palette, styles, variant
from unskew.report.table import Cell, Column, Table, to_html, to_markdown

__all__ = [
    "TITLE",
    "Cell",
    "Chapter",
    "Chart",
    "Client",
    "Column",
    "Diagram",
    "Exposure",
    "Extras",
    "Listing",
    "Panel",
    "Pick",
    "Privacy",
    "Series",
    "Style",
    "Table",
    "draw_svg",
    "palette",
    "render",
    "styles",
    "to_html",
    "to_markdown",
    "variant",
]
