"""unskew compare, recommend, methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import _options as opt
from unskew.cli._output import mean_std, print_json, print_table, stdout, write_file
from unskew.methods import METHODS
from unskew.runs import compare_runs, open_recommender
from unskew.types import UnskewError


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    metric: Annotated[str, typer.Option(help="The per-user value to compare.")] = "ndcg@10",
    json: opt.Json = False,
) -> None:
    """Runs side by side, each against the first by a paired test over users."""
    runs = compare_runs(folders, metric)
    if json:
        print_json({"metric": metric, "runs": [run.to_json(metric) for run in runs]})
        return
    columns = ["run", "method", "protocol", "HR@10", "NDCG@10"]
    columns += [f"Δ {metric}", "95 % interval", "p (Holm)"]
    rows = []
    for run in runs:
        figures = [mean_std(run.result.metrics[name]) for name in ("hr@10", "ndcg@10")]
        rows.append([str(run.folder), run.result.method, run.result.protocol, *figures])
        if run.test is None or run.p_holm is None:
            rows[-1] += ["–", "–", "–"]
            continue
        rows[-1] += [
            f"{run.test.difference:+.4f}",
            f"{run.test.ci_low:+.4f} … {run.test.ci_high:+.4f}",
            f"{run.p_holm:.3g}" if run.p_holm >= 1e-4 else "<0.0001",
        ]
    print_table(columns, rows)
    if len(rows) > 1:
        stdout.print(
            f"Differences are {metric} minus the first run's, paired over users "
            "(Wilcoxon signed-rank, Holm-corrected; bootstrap interval)."
        )


def recommend(
    folder: Annotated[Path, typer.Argument(metavar="RUN")],
    user: Annotated[str | None, typer.Option(help="A user's label in the data.")] = None,
    items: Annotated[
        str | None, typer.Option(help="A newcomer's items, comma-separated, folded in on the spot.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every user, into --out.")] = False,
    k: Annotated[int, typer.Option("-k", help="How many.", min=1)] = 10,
    out: Annotated[Path | None, typer.Option(help="With --all: a .parquet or .csv file.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which seed's model.")] = None,
    json: opt.Json = False,
) -> None:
    """Recommendations from a saved run, with titles; the training set is not needed."""
    if sum((user is not None, items is not None, all_)) != 1:
        raise UnskewError("Give one of --user U, --items A,B,C or --all.")
    if all_ and (out is None or out.suffix not in (".parquet", ".csv")):
        raise UnskewError("--all needs --out with a name ending in .parquet or .csv.")
    recommender = open_recommender(folder, seed)
    if all_ and out is not None:
        table = recommender.recommend_all(k)
        write_file(out, table.write_parquet if out.suffix == ".parquet" else table.write_csv)
        if json:
            print_json({"run": str(folder), "out": str(out), "rows": len(table), "k": k})
        else:
            stdout.print(f"{len(table):,} recommendations for all users are in {out}.")
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
    print_table(
        ["rank", "item", "title", "score"],
        [[str(r["rank"]), r["item"], r["title"], f"{r['score']:.3f}"] for r in found],
    )


def methods(json: opt.Json = False) -> None:
    """The methods, a line each."""
    rows = [
        {
            "name": name,
            "summary": method.summary,
            "aggregation": method.aggregation,
            "citation": method.citation,
        }
        for name, method in METHODS.items()
    ]
    if json:
        print_json({"methods": rows})
        return
    print_table(
        ["method", "what it is", "aggregation", "citation"], [list(r.values()) for r in rows]
    )
