"""Tables, charts and the HTML report: values in, text out. Trains nothing, fetches nothing."""

from __future__ import annotations

from unskew.report.chart import Chart, Panel, Series, draw_svg
from unskew.report.page import TITLE, render
from unskew.report.palette import Style, palette, styles, variant
from unskew.report.sections import (
    Chapter,
    Client,
    Exposure,
    Extras,
    Listing,
    Pick,
    Privacy,
)
from unskew.report.table import MISSING, Cell, Column, Table, to_html, to_markdown

__all__ = [
    "MISSING",
    "TITLE",
    "Cell",
    "Chapter",
    "Chart",
    "Client",
    "Column",
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
