"""The committed document and pictures are what the committed rows give."""

from __future__ import annotations

import html
from pathlib import Path

from unskew.cli._figures import figures_of
from unskew.experiments import document, pooled, read_rows
from unskew.experiments.tables import STORES, TABLES, Chart

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs/figures"
STORED = {name: pooled(read_rows(ROOT / f"results/{name}.jsonl")) for name in STORES}


def words(chart: Chart) -> set[str]:
    """What a picture of the chart says, whichever way its lines are drawn."""
    series = {each.label for panel in chart.panels for each in panel.series}
    return series | {panel.title for panel in chart.panels}


def test_the_document_is_what_the_rows_give() -> None:
    figures = figures_of(STORED, FIGURES, ROOT / "docs")
    assert document(STORED, figures) == (ROOT / "docs/results.md").read_text()


def test_every_picture_is_there_with_all_its_lines_and_no_other() -> None:
    charts = {
        name: chart
        for table in TABLES.values()
        if table.charts is not None
        for name, chart in table.charts(STORED).items()
    }
    assert {path.stem for path in FIGURES.glob("*.svg")} == set(charts)
    for name, chart in charts.items():
        drawn = html.unescape((FIGURES / f"{name}.svg").read_text())
        assert [one for one in words(chart) if one not in drawn] == [], name
        assert (FIGURES / f"{name}.png").exists()
