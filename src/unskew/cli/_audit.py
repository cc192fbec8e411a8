"""unskew audit: checks that could embarrass a result."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from unskew.cli._options import Json, Threads, parse_pairs
from unskew.cli._output import print_json, print_table, stdout
from unskew.cli._progress import RoundProgress
from unskew.experiments import LeakAudit, audit_leak
from unskew.kernels import set_threads

app = typer.Typer(help="Audits: does the evaluation leak?", no_args_is_help=True)


@app.callback()
def audit() -> None:
    """Audits: does the evaluation leak?"""


@app.command()
def leak(
    method: Annotated[str, typer.Option(help="See `unskew methods`.")] = "pfedclr",
    protocol: Annotated[
        str | None, typer.Option(help="One protocol; default: leak-free, time and paper.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    threads: Threads = 0,
    json: Json = False,
) -> None:
    """Train on structureless random interactions: whoever beats chance has seen the answer.

    Exits with 1 if a protocol named with --protocol leaks.
    """
    set_threads(threads)
    settings = parse_pairs(set_ or [], "--set")
    audits = []
    for name in (protocol,) if protocol else ("leak-free", "paper"):
        with RoundProgress(f"{method} on noise, {name}", 1) as progress:
            audits.append(audit_leak(method, settings, name, seed, progress))
    if json:
        print_json({"method": method, "audits": [_row(audit) for audit in audits]})
    else:
        print_table(
            ["protocol", "HR@10 best round", "last round", "chance", "verdict"],
            [
                [
                    audit.protocol,
                    _interval(audit.best),
                    _interval(audit.last),
                    f"{audit.best.chance:.2f}",
                    "LEAKS" if audit.leaks else "at chance",
                ]
                for audit in audits
            ],
            title=f"{method} on random interactions, {audits[0].best.n_users} users",
        )
        stdout.print(
            "There is nothing to learn in this data: a hit rate whose 95 % interval lies above "
            "chance means that the protocol tells the method which item is held out."
        )
    if protocol and audits[0].leaks:
        raise typer.Exit(1)


def _interval(verdict: Any) -> str:
    rate = verdict.hit_rate
    return f"{rate.mean:.3f} [{rate.low:.3f}, {rate.high:.3f}]"


def _row(audit: LeakAudit) -> dict[str, Any]:
    return {
        "protocol": audit.protocol,
        "leaks": audit.leaks,
        "chance": audit.best.chance,
        "users": audit.best.n_users,
        **{
            name: {"hr@10": v.hit_rate.mean, "low": v.hit_rate.low, "high": v.hit_rate.high}
            for name, v in (("best_round", audit.best), ("last_round", audit.last))
        },
    }
