"""``unskew data``: list data sets known by name, describe or download one, make or export one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from rich.filesize import decimal
from typer import Argument, Context, Option, Typer

from unskew.cli import _options as opt
from unskew.cli._output import AmountProgress, load_data, print_json, print_table, stdout
from unskew.data import Format, generate, sources, write_split
from unskew.data import fetch as fetch_source
from unskew.data import info as statistics_of
from unskew.evaluation import split_frames

app = Typer(help="Data sets: list, describe, download, make, export a split.", no_args_is_help=True)


@app.command("list")
def list_(json: opt.Json = False) -> None:
    """List the data sets known by name."""
    if json:
        print_json({"sources": [dataclasses.asdict(source) for source in sources()]})
        return
    print_table(
        ["name", "what", "licence"],
        [[source.name, source.title, source.licence] for source in sources()],
    )


@app.command()
def info(
    context: Context,
    name: Annotated[str, Argument(help="A source's name or a file.")],
    data_dir: opt.DataDir = None,
    columns: opt.Columns = None,
    skip_bad_rows: opt.SkipBadRows = False,
    min_user_rows: opt.MinUserRows = None,
    json: opt.Json = False,
) -> None:
    """Show the statistics of a data set, after users with too few rows are left out."""
    interactions = load_data(opt.run_spec(context, data=name), data_dir)
    found = statistics_of(interactions)
    if json:
        print_json(dataclasses.asdict(found) | {"notes": list(interactions.notes)})
        return
    rows = [
        ("users (clients)", f"{found.n_users:,}"),
        ("items", f"{found.n_items:,}"),
        ("interactions", f"{found.n_rows:,}"),
        ("distinct pairs", f"{found.n_pairs:,}"),
        ("sparsity", f"{found.sparsity:.2%}"),
        (
            "per user",
            f"{found.rows_per_user_min} to {found.rows_per_user_max}, "
            f"median {found.rows_per_user_median:g}",
        ),
        ("time", f"{found.first_time} to {found.last_time}" if found.first_time else found.clock),
        (
            "as read",
            f"{found.n_users_read:,} users, {found.n_items_read:,} items, "
            f"{found.n_rows_read:,} rows; kept: users with at least {found.min_user_rows} rows",
        ),
    ]
    print_table([name, ""], rows)


@app.command()
def fetch(
    name: Annotated[str, Argument(help="A source's name.")],
    folder: Annotated[Path | None, Option(help="Default: the user's cache.")] = None,
    force: Annotated[bool, Option("--force", help="Download again.")] = False,
    json: opt.Json = False,
) -> None:
    """Download a data set from its publisher; checked and resumable."""
    with AmountProgress(name) as progress:
        path = fetch_source(name, folder=folder, progress=progress, force=force)
    total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    if json:
        print_json({"name": name, "folder": str(path), "bytes": total})
        return
    stdout.print(f"{name}: {decimal(total)} in {path}")


@app.command()
def make(
    users: Annotated[int, Option(help="Number of users.")],
    items: Annotated[int, Option(help="Number of items.")],
    rows: Annotated[int, Option(help="Number of interactions.")],
    out: Annotated[Path, Option(help="The file to write, .csv or .parquet.")],
    seed: opt.Seed = 0,
    json: opt.Json = False,
) -> None:
    """Write generated interactions of any size, made by the model of the demo data."""
    with AmountProgress(out.name, "rows") as progress:
        path = generate(out, users, items, rows, seed, progress)
    size = path.stat().st_size
    if json:
        sizes = {"users": users, "items": items, "rows": rows, "seed": seed, "bytes": size}
        print_json({"out": str(path), **sizes})
        return
    stdout.print(f"{path}: {rows:,} rows, {decimal(size)}")


@app.command()
def export(
    context: Context,
    out: Annotated[Path, Option(help="The folder to write.")],
    data: opt.Data = None,
    protocol: opt.Protocol = None,
    format: Annotated[Format, Option(help="csv, parquet or recbole (atomic files).")] = "csv",
    data_dir: opt.DataDir = None,
    columns: opt.Columns = None,
    skip_bad_rows: opt.SkipBadRows = False,
    min_user_rows: opt.MinUserRows = None,
    train: opt.Train = None,
    validation: opt.Validation = None,
    test: opt.Test = None,
    json: opt.Json = False,
) -> None:
    """Write a protocol's split as files, for comparing other tools on identical splits."""
    spec = opt.run_spec(context)
    interactions = load_data(spec, data_dir)
    frames = split_frames(interactions, spec.evaluation)
    name = Path(interactions.name).name
    paths = write_split(frames, out, format, name)
    if json:
        rows = {what: frame.height for what, frame in frames.items()}
        print_json({"data": name, "protocol": spec.protocol, "rows": rows, "out": str(out)})
        return
    for path, frame in zip(paths, frames.values(), strict=True):
        stdout.print(f"{path}: {frame.height:,} rows")
