"""The committed document and charts are what the committed rows give."""

from __future__ import annotations

import html
from pathlib import Path

from unskew.display import Chart, to_markdown
from unskew.paper import EXHIBITS, STORES, document, figure_paths, read_results
from unskew.paper.methods import order_table, side_by_side

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs/figures"
RESULTS = read_results(ROOT / "results", STORES)


def words(chart: Chart) -> set[str]:
    """Text in a chart, however its lines are drawn."""
    series = {each.label for panel in chart.panels for each in panel.series}
    return series | {panel.title for panel in chart.panels}


def test_the_document_is_what_the_rows_give() -> None:
    figures = figure_paths(RESULTS, FIGURES, ROOT / "docs")
    assert document(RESULTS, figures) == (ROOT / "docs/results.md").read_text()


def test_the_readme_has_the_tables_that_the_rows_give() -> None:
    text = (ROOT / "README.md").read_text()
    assert to_markdown(side_by_side(RESULTS, ("ml-1m",))) in text
    assert to_markdown(order_table(RESULTS)) in text


def test_the_commands_of_all_rows_are_listed() -> None:
    assert (ROOT / "results/commands.txt").read_text().splitlines() == RESULTS.commands()


def test_every_chart_is_there_with_all_its_lines_and_no_other() -> None:
    charts = {n: c for exhibit in EXHIBITS.values() for n, c in exhibit.charts(RESULTS).items()}
    assert {path.stem for path in FIGURES.glob("*.svg")} == set(charts)
    for name, chart in charts.items():
        drawn = html.unescape((FIGURES / f"{name}.svg").read_text())
        assert [one for one in words(chart) if one not in drawn] == [], name
