"""The paper's tables and charts, as whoever made them wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from unskew.report._entries import text
from unskew.report._extras import Chapter, Diagram
from unskew.report._markdown import convert, inline
from unskew.report._plots import Line, Mark, Plot, plot
from unskew.report.palette import Style


def chapters(made: Sequence[Chapter], looks: Mapping[str, Style]) -> str:
    return "".join(_chapter(chapter, looks) for chapter in made)


def _chapter(chapter: Chapter, looks: Mapping[str, Style]) -> str:
    charts, key = [], f"table-{chapter.name}"
    for at, (title, diagrams) in enumerate(chapter.charts.items(), 1):
        drawn = "".join(
            _diagram(diagram, looks, f"{key}-chart-{at}-{number}")
            for number, diagram in enumerate(diagrams, 1)
        )
        charts.append(f'<h4>{text(title)}</h4><div class="panels">{drawn}</div>')
    return (
        f'<section class="chapter" id="{key}" aria-labelledby="{key}-head">'
        f'<h3 id="{key}-head">{text(chapter.title)}</h3><p class="note">{inline(chapter.about)}</p>'
        f"{convert(chapter.markdown, key, chapter.title)}"
        f"{''.join(charts)}</section>"
    )


def _diagram(diagram: Diagram, looks: Mapping[str, Style], key: str) -> str:
    lines = []
    for series in diagram.series:
        sizes = [*series.sizes, *([0.0] * (len(series.x) - len(series.sizes)))]
        marks = []
        for x, y, size in zip(series.x, series.y, sizes, strict=True):
            place = diagram.names[int(x)] if diagram.names else f"{x:.4g}"
            area = f", area {size:.0%} of the largest" if series.sizes else ""
            marks.append(Mark(x, y, f"{diagram.x_label} {place}: {y:.4g}{area}", size))
        lines.append(Line(series.label, looks[series.key], marks, series.joined))
    return plot(Plot(diagram.title, diagram.x_label, diagram.y_label, lines, diagram.names), key)
