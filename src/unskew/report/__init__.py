"""Result rows in, one self-contained HTML page out. Trains nothing, fetches nothing."""

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
    Series,
)
from unskew.report._page import TITLE, render
from unskew.report._palette import palette

__all__ = [
    "TITLE",
    "Chapter",
    "Client",
    "Diagram",
    "Exposure",
    "Extras",
    "Listing",
    "Pick",
    "Privacy",
    "Series",
    "palette",
    "render",
]
