"""unskew compare, recommend, methods: what can be done with runs that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli._options import Json
from unskew.cli._output import mean_std, print_json, print_table, stdout
from unskew.cli._pages import write_file
from unskew.evaluation import holm, paired_test
from unskew.methods import METHODS
from unskew.runs import open_recommender, read_result, read_users, same_data
from unskew.types import UnskewError


def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="RUN...")],
    metric: Annotated[str, typer.Option(help="The per-user value to compare.")] = "ndcg@10",
    json: Json = False,
) -> None:
    """Runs side by side, each against the first by a paired test over users."""
    results = [read_result(folder) for folder in folders]
    users = [read_users(folder) for folder in folders]
    if metric not in users[0].columns:
        known = ", ".join(name for name in users[0].columns if "@" in name)
        raise UnskewError(f'There is no metric "{metric}"; choose one of {known}.')
    tests = []
    for at, theirs in enumerate(users[1:], 1):
        _check_footing(folders[0], results[0], folders[at], results[at])
        both = users[0].join(theirs, on="user", how="inner", suffix="_other")
        if not len(both):
            raise UnskewError("The runs have no user in common; compare runs on the same data.")
        tests.append(paired_test(both[f"{metric}_other"].to_numpy(), both[metric].to_numpy()))
    corrected = holm([test.p_value for test in tests])
    rows = []
    for i, (folder, result) in enumerate(zip(folders, results, strict=True)):
        row = {
            "run": str(folder),
            **{key: result[key] for key in ("method", "protocol", "data")},
            "hr@10": result["metrics"]["hr@10"],
            "ndcg@10": result["metrics"]["ndcg@10"],
            metric: result["metrics"].get(metric),
        }
        if i > 0:
            test = tests[i - 1]
            row |= {
                "difference": test.difference,
                "interval": [test.ci_low, test.ci_high],
                "p_value": test.p_value,
                "p_holm": float(corrected[i - 1]),
                "users": test.n_users,
                "wins": test.wins,
                "losses": test.losses,
            }
        rows.append(row)
    if json:
        print_json({"metric": metric, "runs": rows})
        return
    print_table(
        [
            "run",
            "method",
            "protocol",
            "HR@10",
            "NDCG@10",
            f"Δ {metric}",
            "95 % interval",
            "p (Holm)",
        ],
        [
            [
                row["run"],
                row["method"],
                row["protocol"],
                mean_std(row["hr@10"]),
                mean_std(row["ndcg@10"]),
                f"{row['difference']:+.4f}" if i else "–",
                f"{row['interval'][0]:+.4f} … {row['interval'][1]:+.4f}" if i else "–",
                (f"{row['p_holm']:.3g}" if row["p_holm"] >= 1e-4 else "<0.0001") if i else "–",
            ]
            for i, row in enumerate(rows)
        ],
    )
    if tests:
        stdout.print(
            f"Differences are {metric} minus the first run's, paired over users "
            "(Wilcoxon signed-rank, Holm-corrected; bootstrap interval)."
        )


def _check_footing(
    first: Path, result: dict[str, Any], other: Path, their_result: dict[str, Any]
) -> None:
    """A paired test needs the same held-out items, ranked in the same way: one protocol, and the
    same split, known by its checksum or else by the data's name."""
    for key in ("protocol", "ranking", "data"):
        theirs, ours = their_result[key], result[key]
        same = same_data(first, other) if key == "data" else None
        if same is False or (same is None and theirs != ours):
            found = f"{key} {theirs}, the first run has {ours}"
            if theirs == ours:
                found = f"{key} {theirs} as the first run, but with other rows"
            raise UnskewError(
                f"{other} has {found}; only runs on the same footing can be compared."
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
    json: Json = False,
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


def methods(json: Json = False) -> None:
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
