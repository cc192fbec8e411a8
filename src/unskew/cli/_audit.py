"""unskew audit: checks that could embarrass a result."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.audit import LeakAudit, audit_leak
from unskew.audit.privacy import (
    NOISES,
    SINGLE,
    SUMS,
    TARGETS,
    audit_privacy,
    single_cells,
    sums_cells,
    with_noise,
)
from unskew.cli._options import DataDir, Json, Threads, parse_pairs
from unskew.cli._output import print_json, print_table, stdout
from unskew.cli._privacy import fill_page, write_picture
from unskew.cli._progress import DownloadProgress, RoundProgress
from unskew.cli._run import (
    LdpClip,
    LdpDelta,
    LdpEpsilon,
    LdpKind,
    LdpNorm,
    LeastUsers,
    gather_ldp,
)
from unskew.files import append_json_line
from unskew.kernels import set_threads
from unskew.methods import METHODS
from unskew.methods import preset as preset_of
from unskew.paper import read_rows
from unskew.privacy import LocalPrivacy
from unskew.runs import RunSpec, read_spec
from unskew.types import UnskewError

app = typer.Typer(
    help="Audits: does the evaluation leak, what do uploads give away?", no_args_is_help=True
)


@app.callback()
def audit() -> None:
    """Audits: does the evaluation leak, what do uploads give away?"""


@app.command()
def privacy(
    target: Annotated[
        str | None, typer.Argument(metavar="[RUN or METHOD]", help="A run's folder or a method.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `unskew methods`.")] = None,
    data: Annotated[str | None, typer.Option(help="A source's name or a file.")] = None,
    protocol: Annotated[str | None, typer.Option(help="leak-free, time or paper.")] = None,
    noise: Annotated[
        str | None, typer.Option(help="Noise strengths, comma-separated; default the paper's.")
    ] = None,
    ldp_epsilon: LdpEpsilon = None,
    ldp_delta: LdpDelta = None,
    ldp_clip: LdpClip = None,
    ldp_norm: LdpNorm = None,
    ldp_kind: LdpKind = None,
    ldp_least_users: LeastUsers = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value")] = None,
    preset: Annotated[str | None, typer.Option(help="Settings recorded for a data set.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Global rounds.", min=1)] = None,
    users: Annotated[int, typer.Option(help="Users attacked.", min=2)] = TARGETS,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    rows: Annotated[Path | None, typer.Option(help="JSON lines to add the rows to.")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="An SVG of quality against attack success.")
    ] = None,
    doc: Annotated[
        Path | None, typer.Option(help="A page whose table of the rows is made anew.")
    ] = None,
    data_dir: DataDir = None,
    threads: Threads = 0,
    json: Json = False,
) -> None:
    """Train while an honest-but-curious server watches: what do the uploads give away?

    A run is audited with its own privacy settings; a method at the paper's noise strengths.
    """
    set_threads(threads)
    ldp = gather_ldp(None, ldp_epsilon, ldp_delta, ldp_clip, ldp_norm, ldp_kind, ldp_least_users)
    if ldp_least_users is not None and "epsilon" not in ldp:
        del ldp["noise"]  # --noise says which
    if "epsilon" in ldp and noise is not None:
        raise UnskewError("--ldp-epsilon sets the noise by itself; leave out --noise.")
    if target is not None and (Path(target) / "run.json").exists():
        given: dict[str, Any] = {"method": method, "data": data, "protocol": protocol, "set": set_}
        given |= {"preset": preset, "rounds": rounds}
        _refuse_beside_run(given | {f"ldp-{key}": value for key, value in ldp.items()})
    spec, strengths = _asked(target, method, data, protocol, noise, set_, preset, rounds, seed)
    if "epsilon" in ldp:
        spec, strengths = replace(spec, ldp=LocalPrivacy(**ldp)), [None]
    with DownloadProgress(spec.data) as downloading:
        interactions = spec.load(data_dir, downloading)
    known = [] if rows is None else read_rows(rows)
    found: list[dict[str, Any]] = []
    for strength in strengths:
        one = spec if strength is None else with_noise(spec, strength, ldp)
        command = _privacy_command(one, users)
        row = next((row for row in known if row["command"] == command), None)
        if row is None:
            label = f"audit of {one.method}, noise {strength if strength is not None else 'own'}"
            with RoundProgress(label, 1) as progress:
                row = audit_privacy(one, interactions, targets=users, on_round=progress)
            row = {"command": command, **row}
            if rows is not None:
                append_json_line(rows, row)
        found.append(row)
    everything = found if rows is None else read_rows(rows)
    if picture is not None:
        write_picture(picture, everything)
    if doc is not None:
        fill_page(doc, everything)
    if json:
        print_json({"audits": found})
        return
    first = found[0]
    about = f"{first['method']} on {Path(first['data']).name}, {first['attacked']} users attacked"
    print_table(SINGLE, [single_cells(row) for row in found], title=f"{about}: every upload seen")
    secure = first["secure_aggregation"]
    if "refused" in secure:
        stdout.print(f"Secure aggregation: {secure['refused']}.")
    else:
        print_table(SUMS, [sums_cells(row) for row in found], title=f"{about}: sums alone seen")
    stdout.print(
        "AUC: a user's item scores above one it lacks; personal AUC: higher for this user than for "
        f"users who lack it (0.5: chance for both). Popularity alone has AUC "
        f"{first['popularity_alone']['auc']['mean']:.3f}. In brackets: 95 % intervals."
    )
    for row in found:
        if "privacy" in row:
            stdout.print(f"λ {row['noise']:g}: {_account(row['privacy'])}")


def _account(private: dict[str, Any]) -> str:
    """Both epsilons of a row, each by its name."""
    local, paper = private["local_guarantee"], private["paper_epsilon"]["epsilon"]
    told = f"guarantee of the local mechanism: {local['statement']}."
    if local.get("epsilon_of_sum") is not None:
        told += f" Of the sums, under secure aggregation: epsilon {local['epsilon_of_sum']:.3g}."
    if paper["worst"] is None:
        return told
    bound = private["paper_epsilon"]["update_bound_is"]
    return f"{told} The paper's epsilon, another thing: {paper['worst']:.3g} (by {bound})."


def _refuse_beside_run(given: dict[str, Any]) -> None:
    """A run brings its own specification; only its noise and seed can be others."""
    for name, value in given.items():
        if value is not None:
            raise UnskewError(
                f"--{name} cannot stand beside a run, which is audited as it was; "
                "give a method's name instead."
            )


def _asked(
    target: str | None,
    method: str | None,
    data: str | None,
    protocol: str | None,
    noise: str | None,
    set_: list[str] | None,
    preset: str | None,
    rounds: int | None,
    seed: int | None,
) -> tuple[RunSpec, list[float | None]]:
    """The run to audit, and at which strengths of noise (None: as the run has it)."""
    strengths: list[float | None] = list(NOISES) if noise is None else list(_numbers(noise))
    if target is not None and (Path(target) / "run.json").exists():
        spec, _ = read_spec(Path(target))
        spec = replace(spec, seeds=(spec.seeds[0] if seed is None else seed,))
        return spec, [None] if noise is None else strengths
    if target is not None and target not in METHODS:
        raise UnskewError(
            f'"{target}" is neither the folder of a run nor a method; see `unskew methods`.'
        )
    if target is not None and method not in (None, target):
        raise UnskewError(f"{target} and --method {method} are two methods; give one of them.")
    name = target or method or "pfedclr"
    settings: dict[str, Any] = dict(preset_of(name, preset)) if preset else {}
    settings |= parse_pairs(set_ or [], "--set")
    if rounds is not None:
        settings["rounds"] = rounds
    return (
        RunSpec(name, settings, data or "demo", protocol or "leak-free", (seed or 0,)),
        strengths,
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UnskewError(f'--noise "{text}" must look like 0,0.1,0.5.') from None


def _privacy_command(spec: RunSpec, users: int) -> str:
    """The command that makes this row by itself."""
    parts = ["unskew", "audit", "privacy", "--method", spec.method, "--data", spec.data]
    parts += ["--protocol", spec.protocol, "--seed", str(spec.seeds[0]), "--users", str(users)]
    parts += [f"--set={key}={value}" for key, value in spec.settings.items()]
    if spec.ldp is None:
        return shlex.join([*parts, "--noise", "0"])
    given = {key: value for key, value in spec.to_json()["ldp"].items() if value is not None}
    if "noise" in given:
        parts += ["--noise", f"{given.pop('noise'):g}"]
    if spec.ldp.clip is None:
        given = {key: value for key, value in given.items() if key == "least_users"}
    parts += [f"--ldp-{key.replace('_', '-')}={value}" for key, value in given.items()]
    return shlex.join(parts)


@app.command()
def leak(
    method: Annotated[str, typer.Option(help="See `unskew methods`.")] = "pfedclr",
    protocol: Annotated[
        str | None, typer.Option(help="One protocol; default: leak-free and paper.")
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
