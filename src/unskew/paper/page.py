"""Rows of `unskew reproduce` as the contents of a report: runs, attacks, tables and charts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unskew.audit import privacy_tables, trade_offs
from unskew.paper import published
from unskew.paper.exhibits import EXHIBITS, STORES
from unskew.paper.plan import Exhibit
from unskew.paper.rows import Results, read_results, row_identity
from unskew.report import Chapter, Exposure, Extras, Privacy
from unskew.types import UnskewError

TITLE = "Federated recommendation: the paper's tables, remade"
_SHOWN_ABOVE = ("convergence",)
"""Exhibits whose charts are the page's learning curves."""


def report_contents(folder: Path) -> tuple[str, list[dict[str, Any]], Extras]:
    """A title, the main table's runs, and everything else the rows in a folder hold."""
    results = read_results(folder, (*STORES, "privacy"))
    quick = not results.runs
    if quick:
        results = read_results(folder, (*STORES, "privacy"), quick=True)
    runs = _runs(results)
    if not runs:
        raise UnskewError(
            f"There are no rows of the main table in {folder}; `unskew reproduce main` makes them."
        )
    extras = Extras(
        published_figures(runs),
        privacy=_privacy(results.of("privacy")),
        chapters=[made for one in EXHIBITS.values() if (made := _chapter(one, results))],
        commands=results.commands(),
    )
    mark = "QUICK RUN, figures that mean nothing. " if quick else ""
    return mark + TITLE, runs, extras


def _runs(results: Results) -> list[dict[str, Any]]:
    """Default runs, once per method, data set and protocol, with their curves if kept."""
    curves = {row.identity: row.validation["ndcg@10"] for row in results.curves}
    return [
        {"summary": row.to_json(), "rounds": _rounds(curves.get(row_identity(row.to_json()), []))}
        for row in results.default_runs()
    ]


def _rounds(values: Sequence[float]) -> dict[int, list[dict[str, Any]]]:
    """The mean curve as the rows of one seed."""
    rows = [{"round": r, "validation": {"ndcg@10": value}} for r, value in enumerate(values, 1)]
    return {0: rows} if rows else {}


def published_figures(runs: Sequence[dict[str, Any]]) -> dict[tuple[str, str], tuple[float, float]]:
    """The paper's figures for methods and data sets of these runs."""
    pairs = {(run["summary"]["method"], run["summary"]["data"]) for run in runs}
    found = {pair: published.quality(*pair) for pair in pairs}
    return {pair: value for pair, value in found.items() if value is not None}


def _privacy(rows: Sequence[dict[str, Any]]) -> list[Privacy]:
    """A study per data set and protocol."""
    studies = []
    for data, protocol in dict.fromkeys((row["data"], row["protocol"]) for row in rows):
        same = [row for row in rows if (row["data"], row["protocol"]) == (data, protocol)]
        dots = [
            Exposure(method, f"λ {point.noise:g}", point.success, point.quality, secure)
            for secure, view in ((False, "single_uploads"), (True, "secure_aggregation"))
            for method, points in trade_offs(same, view).items()
            for point in points
        ]
        studies.append(Privacy(Path(data).name, protocol, dots, privacy_tables(same)))
    return studies


def _chapter(exhibit: Exhibit, results: Results) -> Chapter | None:
    """An exhibit that has rows. Pictures of embeddings have no axes and are left out."""
    tables = exhibit.tables(results)
    drawable = {} if exhibit.name in _SHOWN_ABOVE else exhibit.charts(results)
    charts = [chart for chart in drawable.values() if all(p.x_label for p in chart.panels)]
    if not tables and not charts:
        return None
    return Chapter(exhibit.name, exhibit.title, exhibit.about, tables, charts)
