"""unskew run, resume."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli import _options as opt
from unskew.cli._output import mean_std, print_json, print_table, size, stderr, stdout
from unskew.cli._progress import DownloadProgress, RoundProgress
from unskew.kernels import set_threads
from unskew.methods import preset as preset_of
from unskew.runs import Result, Run, RunSpec, read_spec, read_toml
from unskew.runs import run as run_spec


def run(
    method: opt.MethodName = None,
    data: opt.DataName = None,
    protocol: opt.ProtocolName = None,
    seeds: Annotated[str | None, typer.Option(help="For example 0,1,2 or 0-4.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Global rounds.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the method: key=value.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="Settings recorded for a data set, e.g. ml-100k.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with any of these.")] = None,
    columns: opt.Columns = None,
    titles: Annotated[str | None, typer.Option(help="CSV with the items' titles.")] = None,
    skip_bad_rows: opt.SkipBadRows = False,
    min_user_rows: opt.MinUserRows = None,
    ldp_noise: opt.LdpNoise = None,
    ldp_epsilon: opt.LdpEpsilon = None,
    ldp_delta: opt.LdpDelta = None,
    ldp_clip: opt.LdpClip = None,
    ldp_norm: opt.LdpNorm = None,
    ldp_kind: opt.LdpKind = None,
    ldp_least_users: opt.LdpLeastUsers = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder.")] = None,
    data_dir: opt.DataDir = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Train a federation and evaluate it."""
    values: dict[str, Any] = read_toml(config) if config is not None else {}
    given = {
        "method": method,
        "data": data,
        "protocol": protocol,
        "seeds": None if seeds is None else opt.parse_seeds(seeds),
        "columns": opt.parse_columns(columns),
        "titles": titles,
        "skip_bad_rows": skip_bad_rows or None,
        "min_user_rows": min_user_rows,
    }
    values |= {key: value for key, value in given.items() if value is not None}
    recorded = {} if preset is None else preset_of(values.get("method", "fedrefit"), preset)
    given_settings = opt.parse_pairs(set_ or [], "--set")
    settings = {**recorded, **values.get("settings", {}), **given_settings}
    if rounds is not None:
        settings["rounds"] = rounds
    ldp = opt.gather_ldp(
        ldp_noise, ldp_epsilon, ldp_delta, ldp_clip, ldp_norm, ldp_kind, ldp_least_users
    )
    if ldp:
        values["ldp"] = dict(values.get("ldp") or {}) | ldp
    spec = RunSpec.from_mapping(values | {"settings": settings})
    folder = out or _fresh_folder(spec)
    finished = run_with_progress(spec, folder, data_dir, threads, command=_command())
    _show(finished, json)


def resume(
    folder: Annotated[Path, typer.Argument(metavar="RUN")],
    data_dir: opt.DataDir = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Resume a stopped run. The result is bit-identical to an uninterrupted one."""
    spec, command = read_spec(folder)
    _show(run_with_progress(spec, folder, data_dir, threads, command, resume=True), json)


def run_with_progress(
    spec: RunSpec,
    folder: Path,
    data_dir: Path | None,
    threads: int,
    command: str,
    *,
    resume: bool = False,
) -> Run:
    set_threads(threads)
    with DownloadProgress(spec.data) as downloading:
        interactions = spec.load(data_dir, downloading)
    for note in interactions.notes:
        stderr.print(f"{spec.data}: {note}")
    label = f"{spec.method} on {Path(spec.data).name}, {spec.protocol}"
    try:
        with RoundProgress(label, len(spec.seeds)) as progress:
            finished = run_spec(
                spec, interactions, out=folder, resume=resume, on_round=progress, command=command
            )
    except KeyboardInterrupt:
        stderr.print(f"Stopped. Go on with: unskew resume {shlex.quote(str(folder))}")
        raise
    for outcome in finished.outcomes:
        lost = [row["round"] for row in outcome.rows if not math.isfinite(row["loss"])]
        if lost:
            stderr.print(
                f"Training diverged: with seed {outcome.seed} the loss is not a number in round "
                f"{lost[0]}, and figures from there on mean nothing. Lower the learning rate."
            )
    return finished


def _show(finished: Run, json: bool) -> None:
    result = finished.result()
    if json:
        print_json(result.to_json())
        return
    print_figures([result])
    for note in result.notes:
        stdout.print(f"Note: {note}")
    if result.privacy is not None:
        for line in privacy_lines(result.privacy):
            stdout.print(line)
    memory = "" if result.peak_rss_mb is None else f"peak memory {result.peak_rss_mb:.0f} MB, "
    stdout.print(
        f"{result.seconds_per_round:.3g} s per round, {memory}per client and round "
        f"{size(result.bytes_up or 0)} up and {size(result.bytes_down or 0)} down."
    )
    stdout.print(f"Run: {finished.folder}")


def print_figures(results: list[Result]) -> None:
    """Print the table a run ends with: best validation round, last round, sampled candidates."""
    rows = []
    for result in results:
        best = f"best round {','.join(map(str, sorted(set(result.best_rounds))))}"
        views = [
            (best, result.ranking, result.metrics),
            (f"last round {result.rounds}", result.ranking, result.last_round),
        ]
        if result.ranking.startswith("all"):
            views.append((best, "99 sampled candidates", result.sampled99))
        for i, (round, ranking, metrics) in enumerate(views):
            names = [result.method, result.protocol] if i == 0 else ["", ""]
            figures = [mean_std(metrics[name]) for name in ("hr@10", "ndcg@10")]
            rows.append([*names, round, ranking, *figures])
    first = results[0]
    print_table(
        ["method", "protocol", "round", "ranked", "HR@10", "NDCG@10"],
        rows,
        title=f"{Path(first.data).name}: {first.users:,} users, {first.items:,} items",
    )


def privacy_lines(account: Mapping[str, Any]) -> list[str]:
    """Sentences on a privacy account: the mechanism, the paper's epsilon, the guarantee."""
    clip = account["clip"]
    bound = "" if clip is None else f", uploads clipped to {account['norm']} norm {clip:g}"
    paper = account["paper_epsilon"]
    worst, median = (paper["epsilon"][name] for name in ("worst", "median"))
    figure = "undefined without noise"
    if worst is not None:
        figure = f"{worst:.3g} for the client of largest weight, {median:.3g} for the median one"
        figure += "" if clip is not None else f" (its C: {paper['update_bound_is']})"
    guarantee = account["local_guarantee"]
    lines = [
        f"Noise on every upload: {account['kind']}, scale {account['noise']:.4g}{bound}.",
        f"Paper's epsilon ({paper['definition']}): {figure}.",
        f"Guarantee of the local mechanism: {guarantee['statement']}.",
    ]
    if account.get("least_users"):
        lines.append(
            f"Rows of items that fewer than {account['least_users']} users have stay home."
        )
    if guarantee["holds"] and guarantee["epsilon_of_sum"] is not None:
        lines.append(
            f"Under secure aggregation, where only sums are seen: epsilon "
            f"{guarantee['epsilon_of_sum']:.3g} at the same delta, if every client is honest."
        )
    return lines


def _fresh_folder(spec: RunSpec) -> Path:
    name = f"{Path(spec.data).stem}-{spec.method}-{spec.protocol}"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Path("runs") / f"{name}-{stamp}"
    number = 2
    while folder.exists():
        folder = Path("runs") / f"{name}-{stamp}-{number}"
        number += 1
    return folder


def _command() -> str:
    return shlex.join(["unskew", *sys.argv[1:]])
