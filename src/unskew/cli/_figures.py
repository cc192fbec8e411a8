"""Drawing the figures of `unskew reproduce` in the report's colours."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from unskew.cli._output import stderr
from unskew.experiments.tables import TABLES, Chart, Look, Stores, Table, draw
from unskew.methods import METHODS
from unskew.report._palette import Style, styles, variant
from unskew.types import UnskewError

_MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "cross": "X",
    "plus": "P",
    "wedge": "v",
}


def draw_figures(tables: Sequence[Table], stores: Stores, folder: Path, quick: bool) -> int:
    """Draw the figures of these tables; how many could not be."""
    failures = 0
    for table in tables:
        charts = table.charts(stores) if table.charts is not None else {}
        for name, chart in charts.items():
            marked = chart._replace(title=f"QUICK RUN: {chart.title}") if quick else chart
            try:
                draw(marked, folder / name, looks(marked))
            except UnskewError as error:
                failures += 1
                stderr.print(f"unskew: {name}: {error}", markup=False)
                break
    return failures


def figures_of(stores: Stores, folder: Path, seen_from: Path) -> dict[str, list[str]]:
    """The pictures there are, by table, as seen from a folder."""
    where = Path(os.path.relpath(folder, seen_from)).as_posix()
    return {
        table.name: [
            f"{where}/{name}.svg"
            for name in table.charts(stores)
            if (folder / f"{name}.svg").exists()
        ]
        for table in TABLES.values()
        if table.charts is not None
    }


def looks(chart: Chart) -> Callable[[str], Look]:
    """The report's look of every method; other keys get one of their own within the chart."""
    known = styles([*METHODS, "fedmf-cf"])
    keys = [series.key for panel in chart.panels for series in panel.series]
    others = styles(key for key in keys if key not in known)

    def look(key: str) -> Look:
        style: Style = known.get(key) or variant(others[key], 1)  # hollow: no method looks so
        dash = tuple(float(part) for part in style.dash.split())
        return Look(style.colour, dash, _MARKERS[style.marker], not style.hollow)

    return look
