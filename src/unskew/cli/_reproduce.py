"""``unskew reproduce``: make the paper's tables and figures, running only what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from unskew.cli import _options as opt
from unskew.cli._output import CellProgress, stderr, stdout
from unskew.data import check_source
from unskew.paper import (
    EXHIBITS,
    Places,
    Plan,
    find_jobs,
    method_checksum,
    run_jobs,
    write_pages,
)
from unskew.runs import RunSpec
from unskew.types import UnskewError

NAMES = (*EXHIBITS, "all")
"""Names that ``unskew reproduce`` accepts: one of the tables and figures, or all of them."""


def reproduce(
    name: Annotated[str, Argument(help=f"Which: {', '.join(NAMES)}.")] = "main",
    methods: Annotated[
        str | None,
        Option(help="Comma-separated; default all. against: the first against the others."),
    ] = None,
    data: Annotated[str | None, Option(help="Comma-separated; default: as in the paper.")] = None,
    protocol: Annotated[str, Option(help="Comma-separated.")] = "paper,leak-free",
    seeds: Annotated[
        str | None, Option(help="For example 0,1,2 or 0-4; default 0-2, quick 0.")
    ] = None,
    quick: Annotated[
        bool,
        Option("--quick", help="A few rounds, kept apart in runs/quick: only to see it work."),
    ] = False,
    no_run: Annotated[
        bool,
        Option("--no-run", help="Run nothing: write tables and figures of existing rows."),
    ] = False,
    results: Annotated[
        Path | None, Option(help="Where the rows are kept (default results).")
    ] = None,
    keep: Annotated[
        Path | None, Option(help="Where per-user values are kept (default runs/cells).")
    ] = None,
    doc: Annotated[
        Path | None, Option(help="The document to write (default docs/results.md).")
    ] = None,
    figures: Annotated[
        Path | None, Option(help="Where figures are put (default docs/figures).")
    ] = None,
    readme: Annotated[
        Path | None, Option(help="A page whose side-by-side table is renewed.")
    ] = None,
    data_dir: opt.DataDir = None,
) -> None:
    """Run what has no saved row, then write tables and figures. Stop and restart at any time."""
    if name not in NAMES:
        raise UnskewError(f'There is no table "{name}"; there are {", ".join(NAMES)}.')
    plan = Plan(
        None if data is None else tuple(data.split(",")),
        tuple(protocol.split(",")),
        opt.parse_seeds(seeds or ("0" if quick else "0-2")),
        None if methods is None else tuple(methods.split(",")),
        quick,
    )
    _check_names(plan)
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
    exhibits = list(EXHIBITS.values()) if name == "all" else [EXHIBITS[name]]
    jobs = [] if no_run else find_jobs(exhibits, plan, places)
    with CellProgress(len(jobs), "quick " if quick else "") as progress:
        failures = run_jobs(jobs, plan, places, progress)
    if failures and len(jobs) > 1:
        stderr.print(f"{len(failures)} of {len(jobs)} failed; the others have their rows:")
        for message in failures:
            stderr.print(f"  {message}")
    write_pages(exhibits, plan, places, readme)
    stdout.print(f"{'Quick tables' if quick else 'Tables'}: {places.doc}")
    if failures:
        raise Exit(1)


def _check_names(plan: Plan) -> None:
    """Raise an error for an unknown method, data set or protocol before anything runs."""
    method_checksum(*(plan.methods or ()))
    for source in plan.data or ():
        check_source(source)
    for protocol in plan.protocols:
        RunSpec(protocol=protocol)
