"""Charts as values; see ``unskew.report``."""

from unskew.report import Chart, Panel, Series

__all__ = ["Chart", "Panel", "Series"]
