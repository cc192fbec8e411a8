"""Result rows in, one self-contained HTML page out. Trains nothing, fetches nothing."""

from __future__ import annotations

from unskew.report._page import render
from unskew.report._palette import palette

__all__ = ["palette", "render"]
