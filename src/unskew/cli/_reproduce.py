"""unskew reproduce: remake tables, cell by cell, into committed rows and a document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli._options import DataDir, parse_seeds
from unskew.cli._output import stderr, stdout
from unskew.engine import write_atomically
from unskew.experiments import (
    DATASETS,
    Cell,
    append_row,
    comparison,
    document,
    in_order,
    missing,
    parts_cells,
    read_rows,
    run_cell,
    side_by_side,
    users_folder,
)
from unskew.methods import METHODS
from unskew.types import UnskewError

NAMES = ("main", "against", "parts")
_SIDE_BY_SIDE = ("pfedclr", "fedmf", "fedrefit", "popularity", "ease")
"""The methods of the page's table: the paper's, its backbone, ours, and two for honesty's sake."""


def reproduce(
    name: Annotated[str, typer.Argument(help="Which table: main, against, parts.")] = "main",
    methods: Annotated[
        str | None,
        typer.Option(help="Comma-separated; default all. against: the first against the others."),
    ] = None,
    data: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(DATASETS),
    protocol: Annotated[str, typer.Option(help="Comma-separated.")] = "paper,leak-free",
    seeds: Annotated[str, typer.Option(help="For example 0,1,2 or 0-4.")] = "0-2",
    results: Annotated[Path, typer.Option(help="Where the rows are kept.")] = Path("results"),
    keep: Annotated[Path, typer.Option(help="Where per-user values are kept.")] = Path(
        "runs/cells"
    ),
    doc: Annotated[Path, typer.Option(help="The document made from them.")] = Path(
        "docs/results.md"
    ),
    readme: Annotated[
        Path | None, typer.Option(help="A page whose side-by-side table is made anew.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run every cell that has no row yet, then write the tables. Stop and start it at will."""
    if name not in NAMES:
        raise UnskewError(f'There is no table "{name}"; there are {", ".join(NAMES)}.')
    wanted = list(METHODS) if methods is None else methods.split(",")
    cells = [
        Cell(method, source, kind, parse_seeds(seeds))
        for source in data.split(",")
        for kind in protocol.split(",")
        for method in wanted
    ]
    rows = results / ("parts.jsonl" if name == "parts" else "main.jsonl")
    if name == "parts":
        cells = parts_cells(data.split(","), parse_seeds(seeds))
    todo = missing(cells, read_rows(rows))
    if name == "against":
        todo = [cell for cell in cells if not (users_folder(keep, cell) / "run.json").exists()]
    failures = _run(todo, rows, keep if name == "against" else None, data_dir)
    if name == "against":
        _compare(cells, results / "against.jsonl", keep)
    tables = {table: read_rows(results / f"{table}.jsonl") for table in NAMES}
    write_text(doc, document(**tables))
    if readme is not None:
        _fill(readme, tables["main"])
    stdout.print(f"Tables: {doc}")
    if failures:
        raise typer.Exit(1)


def _run(todo: Sequence[Cell], rows: Path, keep: Path | None, data_dir: Path | None) -> int:
    """Run cells one by one; how many failed."""
    failures, began = 0, time.monotonic()
    for i, cell in enumerate(todo):
        started = time.monotonic()
        folder = None if keep is None else users_folder(keep, cell)
        try:
            append_row(rows, run_cell(cell, data_dir, folder))
        except UnskewError as error:
            failures += 1
            stderr.print(f"unskew: {error}", markup=False)
            continue
        left = (time.monotonic() - began) / (i + 1) * (len(todo) - i - 1)
        stderr.print(
            f"{i + 1}/{len(todo)} {cell.method} on {cell.data}, {cell.protocol}: "
            f"{time.monotonic() - started:.0f} s, about {left / 60:.0f} min left"
        )
    return failures


def _compare(cells: Sequence[Cell], rows: Path, keep: Path) -> None:
    """The first method against each of the others, wherever both have been run."""
    run = [cell for cell in cells if (users_folder(keep, cell) / "run.json").exists()]
    for ours in (cell for cell in run if cell.method == cells[0].method):
        for theirs in run:
            same = (theirs.data, theirs.protocol) == (ours.data, ours.protocol)
            if same and theirs.method != ours.method:
                append_row(rows, comparison(keep, ours, theirs))


def write_text(path: Path, text: str) -> None:
    def write(file: Any) -> None:
        file.write(text.encode())

    write_atomically(path, write)


def _fill(page: Path, rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the page's table marks."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- table:begin")
    comment, end, after = rest.partition("<!-- table:end")
    if not (begin and end):
        raise UnskewError(f"{page} has no <!-- table:begin --> and <!-- table:end --> marks.")
    head = comment.partition("-->")[0]
    shown = [row for row in in_order(rows) if row["method"] in _SIDE_BY_SIDE]
    shown = [row for row in shown if row["data"] in DATASETS and not row["settings"]]
    shown.sort(key=lambda row: DATASETS.index(row["data"]))
    write_text(page, f"{before}{begin}{head}-->\n{side_by_side(shown)}\n{end}{after}")
