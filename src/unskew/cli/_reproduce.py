"""unskew reproduce: remake tables, cell by cell, into committed rows and a document."""

from __future__ import annotations

import time
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
    main_table,
    missing,
    read_rows,
    run_cell,
    side_by_side,
)
from unskew.methods import METHODS
from unskew.types import UnskewError

_SIDE_BY_SIDE = ("pfedclr", "fedmf", "popularity", "ease")
"""The methods of the page's table: the paper's, its backbone, and two that keep them honest."""


def reproduce(
    name: Annotated[str, typer.Argument(help="Which table: main.")] = "main",
    methods: Annotated[str | None, typer.Option(help="Comma-separated; default all.")] = None,
    data: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join(DATASETS),
    protocol: Annotated[str, typer.Option(help="Comma-separated.")] = "paper,leak-free",
    seeds: Annotated[str, typer.Option(help="For example 0,1,2 or 0-4.")] = "0-2",
    rows: Annotated[Path, typer.Option(help="Where the rows are kept.")] = Path(
        "results/main.jsonl"
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
    if name != "main":
        raise UnskewError(f'There is no table "{name}"; there is main.')
    wanted = list(METHODS) if methods is None else methods.split(",")
    cells = [
        Cell(method, source, kind, parse_seeds(seeds))
        for source in data.split(",")
        for kind in protocol.split(",")
        for method in wanted
    ]
    todo = missing(cells, read_rows(rows))
    failures, began = [], time.monotonic()
    for i, cell in enumerate(todo):
        started = time.monotonic()
        try:
            append_row(rows, run_cell(cell, data_dir))
        except UnskewError as error:
            failures.append(str(error))
            stderr.print(f"unskew: {error}", markup=False)
            continue
        left = (time.monotonic() - began) / (i + 1) * (len(todo) - i - 1)
        stderr.print(
            f"{i + 1}/{len(todo)} {cell.method} on {cell.data}, {cell.protocol}: "
            f"{time.monotonic() - started:.0f} s, about {left / 60:.0f} min left"
        )
    _write(doc, read_rows(rows))
    if readme is not None:
        _fill(readme, read_rows(rows))
    stdout.print(f"Tables: {doc}")
    if failures:
        raise typer.Exit(1)


def _write(doc: Path, rows: list[dict[str, Any]]) -> None:
    order = {method: i for i, method in enumerate(METHODS)}
    rows = sorted(rows, key=lambda row: (order.get(row["method"], 99), row["command"]))
    by_size = sorted({row["data"]: row["users"] for row in rows}, key=_position)
    rows = [row for data in by_size for row in rows if row["data"] == data]
    rows.sort(key=lambda row: order.get(row["method"], 99))
    commands = "\n".join(row["command"] for row in rows)
    text = f"""# Results

Made by `unskew reproduce main` from the rows in `results/main.jsonl`; do not edit by hand. Every
figure is taken at the round with the best validation NDCG@10; mean ± standard deviation over seeds
where there are several.

## Protocol `paper`

HR@10 / NDCG@10 among 99 sampled candidates, and in brackets what the PFedCLR paper prints. These
figures leak the held-out item ([protocols.md](protocols.md)).

{main_table(rows, "paper")}

## Protocol `leak-free`

HR@10 / NDCG@10 ranking all unseen items · the same among 99 sampled candidates.

{main_table(rows, "leak-free")}

## Commands

```
{commands}
```
"""
    write_atomically(doc, lambda file: _discard(file.write(text.encode())))


def _fill(page: Path, rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the page's table marks."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition("<!-- table:begin")
    comment, end, after = rest.partition("<!-- table:end")
    if not (begin and end):
        raise UnskewError(f"{page} has no <!-- table:begin --> and <!-- table:end --> marks.")
    head = comment.partition("-->")[0]
    order = list(METHODS)
    rows = sorted(rows, key=lambda r: (_position(r["data"]), order.index(r["method"])))
    shown = [row for row in rows if row["method"] in _SIDE_BY_SIDE]
    page_text = f"{before}{begin}{head}-->\n{side_by_side(shown)}\n{end}{after}"
    write_atomically(page, lambda file: _discard(file.write(page_text.encode())))


def _discard(_: object) -> None:
    return None


def _position(data: str) -> int:
    return DATASETS.index(data) if data in DATASETS else len(DATASETS)
