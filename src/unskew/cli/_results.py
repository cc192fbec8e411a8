"""The commands ``unskew compare``, ``recommend``, ``methods`` and ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from unskew.cli import _options as opt
from unskew.cli._output import (
    print_json,
    print_recommendations,
    print_table,
    stderr,
    stdout,
)
from unskew.files import write_text
from unskew.methods import describe_methods
from unskew.paper import published_figures, report_contents
from unskew.report import Client, Extras, FinishedRun, render
from unskew.runs import (
    ClientView,
    RankingFormat,
    client_view,
    open_recommender,
    read_result,
    read_rounds,
    write_rankings,
    write_recommendations,
)
from unskew.runs import compare as compare_runs
from unskew.types import UnskewError


def compare(
    folders: Annotated[list[Path], Argument(metavar="RUN...")],
    metric: Annotated[str, Option(help="The per-user value to compare.")] = "ndcg@10",
    markdown: Annotated[bool, Option("--markdown", help="Print a Markdown table.")] = False,
    latex: Annotated[bool, Option("--latex", help="Print a LaTeX table (booktabs).")] = False,
    json: opt.Json = False,
) -> None:
    """Compare runs: each against the first by a paired test over users."""
    if json + markdown + latex > 1:
        raise UnskewError("Give one of --json, --markdown and --latex.")
    compared = compare_runs(folders, metric)
    if json:
        print_json(compared.to_json())
    elif markdown or latex:
        stdout.print(compared.to_latex() if latex else compared.to_markdown(), soft_wrap=True)
    else:
        table = compared.table()
        rows = [[" ".join(filter(None, [c.text, c.note])) for c in row] for row in table.rows]
        print_table([column.name for column in table.columns], rows)
        if len(rows) > 1:
            stdout.print(
                f"Differences are {metric} minus the first run's, paired over users "
                "(Wilcoxon signed-rank, Holm-corrected; bootstrap interval)."
            )


def recommend(
    folder: Annotated[Path, Argument(metavar="RUN")],
    user: Annotated[str | None, Option(help="A user's label in the data.")] = None,
    items: Annotated[
        str | None, Option(help="A newcomer's items, comma-separated, folded in on the spot.")
    ] = None,
    all_: Annotated[bool, Option("--all", help="Every user, into --out.")] = False,
    k: opt.K = 10,
    out: Annotated[Path | None, Option(help="With --all: a .parquet or .csv file.")] = None,
    format: Annotated[
        RankingFormat | None,
        Option(help="With --all: trec or ranx, ranked as in the evaluation, with a qrels file."),
    ] = None,
    seed: Annotated[int | None, Option(help="Which seed's model.")] = None,
    method: opt.MethodOfRun = None,
    json: opt.Json = False,
) -> None:
    """Recommend items from a saved run, with titles; the training set is not needed."""
    if sum((user is not None, items is not None, all_)) != 1:
        raise UnskewError("Give one of --user U, --items A,B,C or --all.")
    if format is not None and (not all_ or out is None):
        raise UnskewError("--format needs --all and --out FILE.")
    if all_ and format is None and (out is None or out.suffix not in (".parquet", ".csv")):
        raise UnskewError("--all needs --out with a name ending in .parquet or .csv.")
    recommender = open_recommender(folder, seed, method)
    if format is not None and out is not None:
        qrels = write_rankings(recommender, out, k, format)
        if json:
            print_json({"run": str(folder), "out": str(out), "qrels": str(qrels), "k": k})
        else:
            stdout.print(f"Ranked lists are in {out}, the test items in {qrels}.")
        return
    if all_ and out is not None:
        rows = write_recommendations(recommender, out, k)
        if json:
            print_json({"run": str(folder), "out": str(out), "rows": rows, "k": k})
        else:
            stdout.print(f"{rows:,} recommendations for all users are in {out}.")
        return
    if user is not None:
        found = recommender.recommend(user, k)
    else:
        wanted = [item.strip() for item in (items or "").split(",") if item.strip()]
        if not wanted:
            raise UnskewError("--items needs at least one item.")
        found = recommender.fold_in(wanted, k)
    if json:
        print_json({"run": str(folder), "user": user, "recommendations": found})
        return
    print_recommendations(found)


def methods(json: opt.Json = False) -> None:
    """List the methods of this package and of installed ones, a line each."""
    rows = describe_methods()
    if json:
        print_json({"methods": rows})
        return
    columns = ["method", "what it is", "aggregation", "citation"]
    outside = any(row["package"] != "unskew" for row in rows)
    cells = [list(row.values())[: 5 if outside else 4] for row in rows]
    print_table([*columns, "package"] if outside else columns, cells)


def report(
    folders: Annotated[list[Path] | None, Argument(metavar="RUN...")] = None,
    out: Annotated[Path, Option(help="The HTML file to write.")] = Path("report.html"),
    reproduce: Annotated[
        bool, Option("--reproduce", help="On the rows of `unskew reproduce`, not on runs.")
    ] = False,
    results: Annotated[Path, Option(help="With --reproduce: where the rows are kept.")] = Path(
        "results"
    ),
    client: Annotated[
        str | None, Option(help="The user to look at closely (default: a median one).")
    ] = None,
    no_client: Annotated[bool, Option("--no-client", help="Show nobody's interactions.")] = False,
) -> None:
    """Write one self-contained HTML file about some runs, or all rows of `unskew reproduce`."""
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
    folders: Sequence[Path],
    out: Path,
    client: str | None = None,
    closely: bool = True,
    device_page: tuple[str, str] | None = None,
) -> None:
    """Write the HTML report on runs. If ``closely``, the report shows history and recommendations
    of one user: ``client``, or one with a median number of training items. ``device_page`` is the
    file name of a page beside the report that recommends in the browser, and its method."""
    runs = [FinishedRun(read_result(folder), _curves(folder)) for folder in folders]
    shown = _client(folders, runs, client) if closely else None
    extras = Extras(published_figures(runs), shown, device_page=device_page)
    write_text(out, render(runs, extras=extras))


def _curves(folder: Path) -> list[list[float]]:
    """Validation NDCG@10 after every round of a run: one list per seed."""
    return [[row["validation"]["ndcg@10"] for row in rows] for rows in read_rounds(folder).values()]


def _client(
    folders: Sequence[Path], runs: Sequence[FinishedRun], wanted: str | None
) -> Client | None:
    """History and recommendations of one user for the report, from all runs on the same data set:
    user ``wanted``, or one with a median number of training items. None if no model is saved."""
    # Protocols hold out different items; the history shown is that of a leak-free run, if any.
    order = sorted(range(len(runs)), key=lambda at: runs[at].result.protocol == "paper")
    views: dict[int, ClientView] = {}
    name, data = wanted, ""
    for at in order:
        if data and data != runs[at].result.data:
            continue
        view = client_view(folders[at], name)
        if view is not None:
            name, data, views[at] = view.user, runs[at].result.data, view
    if not views and wanted is not None:
        raise UnskewError(
            f'No run given has a model with a user "{wanted}"; leave out --client to see another.'
        )
    if not views:
        return None
    if len(views) < len(folders):
        stderr.print(f"Client {name}: {len(folders) - len(views)} run(s) have no model with it.")
    why = "chosen by name" if wanted else "the one with the median number of training items"
    return Client(data, why, views)
