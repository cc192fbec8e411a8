"""The HTML report on finished runs, without training or network access."""

from __future__ import annotations

from unskew.report.entries import FinishedRun
from unskew.report.page import html_page, render
from unskew.report.sections import Chapter, Client, Extras

__all__ = ["Chapter", "Client", "Extras", "FinishedRun", "html_page", "render"]
