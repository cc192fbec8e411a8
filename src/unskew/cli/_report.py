"""unskew report: one page about runs that exist, or about all committed rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli._output import stderr, stdout, write_text
from unskew.paper import published_figures, report_contents
from unskew.report import Client, Extras, Listing, Pick, render
from unskew.runs import (
    ClientView,
    client_view,
    has_client,
    has_model,
    median_client,
    read_result,
    read_rounds,
)
from unskew.types import UnskewError


def report(
    folders: Annotated[list[Path] | None, typer.Argument(metavar="RUN...")] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    reproduce: Annotated[
        bool, typer.Option("--reproduce", help="On the rows of `unskew reproduce`, not on runs.")
    ] = False,
    results: Annotated[
        Path, typer.Option(help="With --reproduce: where the rows are kept.")
    ] = Path("results"),
    client: Annotated[
        str | None, typer.Option(help="The user to look at closely (default: a median one).")
    ] = None,
    no_client: Annotated[
        bool, typer.Option("--no-client", help="Show nobody's interactions.")
    ] = False,
) -> None:
    """One self-contained HTML file about some runs, or about all rows of `unskew reproduce`."""
    if bool(folders) == reproduce:
        raise UnskewError("Give either run folders or --reproduce, for example: report runs/demo/*")
    if client is not None and (no_client or reproduce):
        raise UnskewError("--client needs run folders, and cannot stand beside --no-client.")
    if reproduce:
        title, runs, extras = report_contents(results)
        write_text(out, render(runs, title, extras))
    else:
        # runs/demo/* also holds the report that the demo left there.
        write_report([f for f in folders or [] if f.suffix != ".html"], out, client, not no_client)
    stdout.print(f"Report: {out.resolve()}")


def write_report(
    folders: Sequence[Path], out: Path, client: str | None = None, closely: bool = True
) -> None:
    """The page about runs; ``closely``: with one client's history and recommendations."""
    runs = [{"summary": read_result(f).to_json(), "rounds": read_rounds(f)} for f in folders]
    extras = Extras(published_figures(runs), _client(folders, runs, client) if closely else None)
    write_text(out, render(runs, extras=extras))


def _client(
    folders: Sequence[Path], runs: Sequence[dict[str, Any]], wanted: str | None
) -> Client | None:
    """The client ``wanted``, or a median one, in all runs on one data set that have it; None where
    no run has kept its model."""
    usable = [at for at, folder in enumerate(folders) if has_model(folder)]
    having = [at for at in usable if wanted is None or has_client(folders[at], wanted)]
    if not having and wanted is not None:
        raise UnskewError(
            f'No run given has a model with a user "{wanted}"; leave out --client to see another.'
        )
    if not having:
        return None
    # Protocols differ in what is held out: the page's history is the honest one's.
    having.sort(key=lambda at: runs[at]["summary"]["protocol"] == "paper")
    data = runs[having[0]]["summary"]["data"]
    name = wanted if wanted is not None else median_client(folders[having[0]])
    views: dict[int, ClientView] = {}
    for at in (at for at in having if runs[at]["summary"]["data"] == data):
        try:
            if has_client(folders[at], name):
                views[at] = client_view(folders[at], name)
        except UnskewError as error:
            stderr.print(f"unskew: {error}")
    if len(views) < len(folders):
        stderr.print(f"Client {name}: {len(folders) - len(views)} run(s) have no model with it.")
    if not views:
        return None
    lists = [
        Listing(at, [Pick(*pick) for pick in view.top], view.test, view.among)
        for at, view in views.items()
    ]
    view = next(iter(views.values()))
    why = (
        "chosen by name"
        if wanted is not None
        else "the one with the median number of training items"
    )
    test = [title for title, _ in view.test]
    return Client(name, str(data), why, view.history, view.validation, test, lists)
