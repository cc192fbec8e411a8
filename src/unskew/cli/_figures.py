"""Drawing the figures of `unskew reproduce` in the report's colours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from unskew.cli._output import stderr
from unskew.cli._pages import write_text
from unskew.experiments.tables import TABLES, Stores, Table
from unskew.report import draw_svg
from unskew.types import UnskewError


def draw_figures(tables: Sequence[Table], stores: Stores, folder: Path, quick: bool) -> int:
    """Draw the figures of these tables; how many could not be."""
    failures = 0
    for table in tables:
        charts = table.charts(stores) if table.charts is not None else {}
        for name, chart in charts.items():
            marked = chart._replace(title=f"QUICK RUN: {chart.title}") if quick else chart
            try:
                write_text(folder / f"{name}.svg", draw_svg(marked))
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
