"""The rows of `unskew reproduce` as what a report shows: runs, attacks, tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unskew.audit.privacy import privacy_table
from unskew.cli._privacy import tradeoff
from unskew.experiments import paper_value, pooled, read_rows, run_of
from unskew.experiments.tables import STORES, TABLES, Panel, Row, Stores, Table, in_order, plain
from unskew.report import Chapter, Diagram, Exposure, Extras, Privacy
from unskew.report._extras import Series
from unskew.types import UnskewError

TITLE = "Federated recommendation: the paper's tables, remade"
_SHOWN_ABOVE = ("convergence",)
"""Its charts are the page's learning curves."""


def remade(results: Path) -> tuple[str, list[dict[str, Any]], Extras]:
    """A title, the main table's runs, and everything else the rows in a folder tell."""
    kept = {name: read_rows(results / f"{name}.jsonl") for name in (*STORES, "privacy")}
    quick = not any(not row.get("quick") for row in kept["main"])
    stores: dict[str, list[Row]] = {
        name: pooled([row for row in rows if bool(row.get("quick")) == quick or name == "privacy"])
        for name, rows in kept.items()
    }
    runs = _runs(stores)
    if not runs:
        raise UnskewError(
            f"There are no rows of the main table in {results}; `unskew reproduce main` makes them."
        )
    used = [row for name, rows in stores.items() if name != "curves" for row in rows]
    extras = Extras(
        published(runs),
        privacy=_privacy(stores["privacy"]),
        chapters=[made for table in TABLES.values() if (made := _chapter(table, stores))],
        commands=[one for row in used for one in dict.fromkeys(row["command"].splitlines())],
    )
    mark = "QUICK RUN, figures that mean nothing. " if quick else ""
    return mark + TITLE, runs, extras


def _runs(stores: Stores) -> list[dict[str, Any]]:
    """Each method as it comes, once per data set and protocol, with its curves if they were
    kept."""
    curves = {run_of(row["command"]): row["curves"] for row in stores["curves"]}
    return [
        {"summary": row, "rounds": _rounds(curves.get(run_of(row["command"].splitlines()[0])))}
        for row in plain(in_order(stores["main"]))
    ]


def published(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """The paper's figures for methods and data sets of these runs."""
    pairs = {(run["summary"]["method"], run["summary"]["data"]) for run in runs}
    found = {pair: paper_value(*pair) for pair in pairs}
    return {pair: value for pair, value in found.items() if value is not None}


def _rounds(curves: Row | None) -> dict[int, list[Row]]:
    """The mean curve as the rows of one seed."""
    if curves is None:
        return {}
    values = curves["validation"]["ndcg@10"]
    rows = [{"round": r, "validation": {"ndcg@10": value}} for r, value in enumerate(values, 1)]
    return {0: rows}


def _privacy(rows: Sequence[Row]) -> list[Privacy]:
    """A study per data set and protocol."""
    studies = []
    for data, protocol in dict.fromkeys((row["data"], row["protocol"]) for row in rows):
        same = [row for row in rows if (row["data"], row["protocol"]) == (data, protocol)]
        dots = [
            Exposure(method, dot.label, dot.success, dot.quality, bool(secure))
            for secure, curves in enumerate(tradeoff(same))
            for method, of_method in curves.items()
            for dot in of_method
        ]
        studies.append(Privacy(Path(data).name, protocol, dots, privacy_table(same)))
    return studies


def _chapter(table: Table, stores: Stores) -> Chapter | None:
    """A table that has rows, as the document has it."""
    markdown = table.markdown(stores) if table.markdown is not None else ""
    drawable = table.charts is not None and table.name not in _SHOWN_ABOVE
    made = table.charts(stores) if table.charts is not None and drawable else {}
    charts = {
        chart.title: [diagram for panel in chart.panels for diagram in _diagrams(panel)]
        for chart in made.values()
        # Pictures of embeddings have no axes to read anything from; they stay pictures.
        if all(panel.x_label for panel in chart.panels)
    }
    if not markdown and not charts:
        return None
    return Chapter(table.name, table.title, table.about, markdown, charts)


def _diagrams(panel: Panel) -> list[Diagram]:
    """A panel; what it has on an axis at the right stands beside it."""
    beside = [] if panel.right is None else [panel._replace(series=(panel.right,), right=None)]
    return [
        Diagram(
            one.title,
            one.x_label,
            one.y_label if one is panel else one.series[0].label,
            [
                Series(each.label, each.key, each.x, each.y, each.kind != "points", each.sizes)
                for each in one.series
            ],
            one.names,
        )
        for one in (panel, *beside)
    ]
