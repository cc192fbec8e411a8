"""A panel of a chart as an HTML figure: heading, legend, picture, and its values as a table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from unskew.report.chart import Panel, draw_inline, point_name
from unskew.report.palette import Style, swatch
from unskew.report.table import MISSING, Cell, Column, Table, inline, to_html


def figure_html(
    panel: Panel, key: str, looks: Mapping[str, Style], heading: str = "", note: str = ""
) -> str:
    """``key`` is the figure's id within the page; ``heading`` and ``note`` are Markdown text."""
    everything = (*panel.series, *([panel.right] if panel.right else []))
    legend = "".join(
        f"<li>{swatch(series.style(looks), series.kind != 'points')}"
        f'<span class="name">{escape(series.label)}</span></li>'
        for series in everything
    )
    return (
        f'<figure class="chart"><h4>{inline(heading or panel.title)}</h4>'
        f'<ul class="legend">{legend}</ul><div class="plot">{draw_inline(panel, key, looks)}</div>'
        f"<figcaption>{inline(note)}</figcaption>"
        '<details class="values"><summary>Values</summary>'
        f"{to_html(values_table(panel), f'{key}-values')}</details></figure>"
    )


def values_table(panel: Panel) -> Table:
    """Values of a panel: a column per line where all are lines, else a row per point."""
    series = (*panel.series, *([panel.right] if panel.right else []))
    largest = max((abs(y) for one in series for y in one.y), default=0.0)
    places = ".4f" if largest < 10 else ".4g"
    caption = f"{panel.title}: {panel.y_label}."
    first = Column((panel.x_label or "step").capitalize(), "number", "low")
    if all(one.kind == "line" and not one.notes for one in series):
        by_x = [dict(zip(one.x, one.y, strict=True)) for one in series]
        rows = [
            [
                Cell(point_name(panel, x), x),
                *(Cell(f"{y[x]:{places}}", y[x]) if x in y else Cell(MISSING) for y in by_x),
            ]
            for x in sorted(set().union(*by_x))
        ]
        return Table.of([first, *(Column(one.label) for one in series)], rows, caption=caption)
    columns = [Column("Series", "text"), first, Column(panel.y_label)]
    columns += [Column("Point", "text")] if any(one.notes for one in series) else []
    columns += [Column("Area, share of the largest")] if any(one.sizes for one in series) else []
    rows = []
    for one in series:
        for at, (x, y) in enumerate(zip(one.x, one.y, strict=True)):
            row = [Cell(one.label, one.label.lower()), Cell(point_name(panel, x), x)]
            row.append(Cell(f"{y:{places}}", y))
            row += [Cell(note, note) for note in one.notes[at : at + 1]]
            row += [Cell(f"{size:.0%}", size) for size in one.sizes[at : at + 1]]
            rows.append([*row, *[Cell(MISSING)] * (len(columns) - len(row))])
    return Table.of(columns, rows, caption=caption)
