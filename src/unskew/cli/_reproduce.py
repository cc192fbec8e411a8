"""unskew reproduce: remake tables and figures, cell by cell, into rows, a document and pictures."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli._figures import draw_figures, figures_of
from unskew.cli._options import DataDir, parse_seeds
from unskew.cli._output import stderr, stdout
from unskew.cli._pages import fill_table, write_text
from unskew.cli._progress import CellProgress
from unskew.cli._todo import Job, Places, own_settings, pair_of, todo
from unskew.data import check_source
from unskew.experiments import (
    DATASETS,
    Cell,
    comparison,
    document,
    fingerprint,
    in_order,
    pooled,
    run_cell,
    run_here,
    side_by_side,
    users_folder,
)
from unskew.experiments.tables import STORES, TABLES, Plan, Task, plain
from unskew.files import append_json_line
from unskew.runs import RunSpec
from unskew.types import UnskewError

NAMES = (*TABLES, "all")
_SIDE_BY_SIDE = ("pfedclr", "fedmf", "fedrefit", "popularity", "ease")
"""The methods of the page's table: the paper's, its backbone, ours, and two for honesty's sake."""


def reproduce(
    name: Annotated[str, typer.Argument(help=f"Which: {', '.join(NAMES)}.")] = "main",
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated; default all. against: the first against the others."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Comma-separated; default: as in the paper.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="Comma-separated.")] = "paper,leak-free",
    seeds: Annotated[
        str | None, typer.Option(help="For example 0,1,2 or 0-4; default 0-2, quick 0.")
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="A few rounds, kept apart in runs/quick: only to see it work."
        ),
    ] = False,
    no_run: Annotated[
        bool,
        typer.Option("--no-run", help="Run nothing: only write what the rows there are give."),
    ] = False,
    results: Annotated[
        Path | None, typer.Option(help="Where the rows are kept (default results).")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Where per-user values are kept (default runs/cells).")
    ] = None,
    doc: Annotated[
        Path | None, typer.Option(help="The document made of them (default docs/results.md).")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Where pictures are put (default docs/figures).")
    ] = None,
    readme: Annotated[
        Path | None, typer.Option(help="A page whose side-by-side table is made anew.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run every cell that has no row yet, then write tables and figures. Stop and start at will."""
    if name not in NAMES:
        raise UnskewError(f'There is no table "{name}"; there are {", ".join(NAMES)}.')
    wanted = None if methods is None else tuple(methods.split(","))
    fingerprint(*(wanted or ()))  # an unknown method is an error before anything is run
    sources = None if data is None else tuple(data.split(","))
    protocols = tuple(protocol.split(","))
    _check_names(sources or (), protocols)
    plan = Plan(
        sources,
        protocols,
        parse_seeds(seeds or ("0" if quick else "0-2")),
        wanted,
        quick,
    )
    base = Path("runs/quick") if quick else Path()
    places = Places(
        results or base / "results",
        keep or (base / "cells" if quick else Path("runs/cells")),
        doc or base / "docs/results.md",
        figures or base / "docs/figures",
        data_dir,
    )
    if quick:
        stderr.print("Quick run: a few rounds, one seed; its figures say nothing about methods.")
    tables = list(TABLES.values()) if name == "all" else [TABLES[name]]
    jobs = [] if no_run else todo(tables, plan, places)
    failures = _run(jobs, plan, places)
    if TABLES["against"] in tables and not no_run:
        _compare(TABLES["against"].cells(plan), {job.cell.command for job in jobs}, plan, places)
    stores = {store: pooled(places.rows(store, quick)) for store in STORES}
    failures += draw_figures(tables, stores, places.figures, quick)
    pictures = figures_of(stores, places.figures, places.doc.parent)
    write_text(places.doc, document(stores, pictures, quick))
    if readme is not None:
        _fill(readme, stores["main"])
    stdout.print(f"{'Quick tables' if quick else 'Tables'}: {places.doc}")
    if failures:
        raise typer.Exit(1)


def _check_names(sources: Sequence[str], protocols: Sequence[str]) -> None:
    """A slip in a name is an error before anything is run, not once per cell."""
    for name in sources:
        check_source(name)
    for protocol in protocols:
        RunSpec(protocol=protocol)


def _run(jobs: Sequence[Job], plan: Plan, places: Places) -> int:
    """Run jobs one by one; how many failed. A failed one is told at once and again at the end."""
    failures: list[str] = []
    began = time.monotonic()
    mark = "quick " if plan.quick else ""
    with CellProgress(len(jobs)) as display:
        for i, job in enumerate(jobs):
            started = time.monotonic()
            display.begin(_name(job.cell))
            try:
                _keep(_make(job, plan, places), job, plan, places)
            except Exception as error:
                known = isinstance(error, UnskewError)
                what = f"{job.cell.command} failed: {type(error).__name__}: {error}"
                failures.append(str(error) if known else what)
                stderr.print(f"unskew: {failures[-1]}", markup=False)
            left = (time.monotonic() - began) / (i + 1) * (len(jobs) - i - 1)
            stderr.print(
                f"{mark}{i + 1}/{len(jobs)} {_name(job.cell)}: "
                f"{time.monotonic() - started:.0f} s, about {left / 60:.0f} min left",
                markup=False,
            )
            display.end(left)
    if failures and len(jobs) > 1:
        stderr.print(f"{len(failures)} of {len(jobs)} failed; the others have their rows:")
        for what in failures:
            stderr.print(f"  {what}", markup=False)
    return len(failures)


def _keep(row: dict[str, Any], job: Job, plan: Plan, places: Places) -> None:
    """Add a job's row to its file, and its figures of every round to theirs."""
    curves = row.pop("curves", None)
    if job.curves and curves is not None:
        about = ("method", "data", "protocol", "seeds", "settings", "command", "source")
        kept = {key: row[key] for key in about} | {"curves": curves}
        append_json_line(places.results / "curves.jsonl", kept | _quick(plan))
    append_json_line(places.results / f"{job.store}.jsonl", row)


def _make(job: Job, plan: Plan, places: Places) -> dict[str, Any]:
    """A job's row; a quick one is made in this process and says that it is quick."""
    cell = job.cell
    if isinstance(cell, Task):
        row = cell.make(places.data_dir) | {"command": cell.command}
        return row | {"source": fingerprint(*cell.methods)} | _quick(plan)
    keep = users_folder(places.keep, cell) if job.keep else None
    if not plan.quick:
        return run_cell(cell, places.data_dir, keep)
    row = run_here(cell, places.data_dir, keep)
    own = {key for key, _ in own_settings(cell, plan)}
    row["settings"] = {key: value for key, value in row["settings"].items() if key in own}
    return row | _quick(plan)


def _quick(plan: Plan) -> dict[str, bool]:
    return {"quick": True} if plan.quick else {}


def _name(cell: Cell | Task) -> str:
    if isinstance(cell, Task):
        return cell.command.removeprefix("unskew ")
    chosen = "".join(f", {key} {value}" for key, value in cell.settings)
    return f"{cell.method} on {cell.data}, {cell.protocol}{chosen}"


def _compare(cells: Sequence[Any], fresh: set[str], plan: Plan, places: Places) -> None:
    """The first method against each of the others, wherever both have been run; again only where
    one of the two is fresh."""
    run = [cell for cell in cells if (users_folder(places.keep, cell) / "run.json").exists()]
    known = {pair_of(row) for row in places.rows("against", plan.quick)}
    for ours in (cell for cell in run if cell.method == cells[0].method):
        for theirs in run:
            same = (theirs.data, theirs.protocol) == (ours.data, ours.protocol)
            old = (ours.data, ours.protocol, ours.method, theirs.method) in known
            stale = not old or ours.command in fresh or theirs.command in fresh
            if same and theirs.method != ours.method and stale:
                row = comparison(places.keep, ours, theirs) | _quick(plan)
                append_json_line(places.results / "against.jsonl", row)


def _fill(page: Path, rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the page's table marks."""
    shown = [row for row in plain(in_order(rows)) if row["method"] in _SIDE_BY_SIDE]
    shown = [row for row in shown if row["data"] in DATASETS]
    shown.sort(key=lambda row: DATASETS.index(row["data"]))
    fill_table(page, side_by_side(shown))
