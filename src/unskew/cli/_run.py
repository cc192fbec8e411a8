"""The commands ``unskew run``, ``resume`` and ``demo``."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from rich.filesize import decimal
from typer import Argument, Context, Option

from unskew._api import run_tracked
from unskew.cli import _options as opt
from unskew.cli._output import (
    RoundProgress,
    load_data,
    mean_std,
    print_json,
    print_table,
    stderr,
    stdout,
)
from unskew.cli._results import write_report
from unskew.data import load
from unskew.engine import Cluster, check_method
from unskew.export import to_page
from unskew.files import write_bytes
from unskew.kernels import set_threads
from unskew.methods import short_name
from unskew.runs import Result, Run, RunSpec, read_spec
from unskew.types import Interactions, UnskewError

DEMO_RUNS = (
    ("pfedclr", "paper"),
    ("pfedclr", "leak-free"),
    ("fedmf", "leak-free"),
    ("fedrefit", "leak-free"),
    ("fednext", "leak-free"),
    ("popularity", "leak-free"),
)
"""Method and evaluation protocol of each run of the demo. Only the protocol ``paper`` lets
training learn which items are held out."""
_PAGE_OF = ("fednext", "leak-free")
"""The run of the demo whose model goes into a page that recommends in the browser."""
_METHODS_WITH_OWN_ROUNDS = ("fedrefit", "popularity")
"""Methods that keep their default number of rounds in the demo, whatever ``--rounds`` says."""
_MOST_ROUNDS = {"fednext": 20}
"""Maximum number of rounds of a method in the demo; FedNext is best on this data before that."""


def run(
    context: Context,
    method: opt.Method = None,
    data: opt.Data = None,
    protocol: opt.Protocol = None,
    seeds: opt.Seeds = None,
    rounds: opt.Rounds = None,
    set_: opt.Settings = None,
    preset: opt.Preset = None,
    config: Annotated[Path | None, Option(help="A TOML file with any of these.")] = None,
    columns: opt.Columns = None,
    titles: Annotated[str | None, Option(help="CSV with the items' titles.")] = None,
    skip_bad_rows: opt.SkipBadRows = False,
    min_user_rows: opt.MinUserRows = None,
    train: opt.Train = None,
    validation: opt.Validation = None,
    test: opt.Test = None,
    cutoffs: opt.Cutoffs = None,
    item_features: opt.ItemFeatures = None,
    evaluate_every: opt.EvaluateEvery = None,
    evaluate_users: opt.EvaluateUsers = None,
    ldp_noise: opt.LdpNoise = None,
    ldp_epsilon: opt.LdpEpsilon = None,
    ldp_delta: opt.LdpDelta = None,
    ldp_clip: opt.LdpClip = None,
    ldp_norm: opt.LdpNorm = None,
    ldp_kind: opt.LdpKind = None,
    ldp_least_users: opt.LdpLeastUsers = None,
    out: Annotated[Path | None, Option(help="The run's folder.")] = None,
    track: opt.Track = None,
    track_dir: opt.TrackDir = None,
    data_dir: opt.DataDir = None,
    state_on_disk: opt.StateOnDisk = None,
    ray: opt.Ray = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Train a federation and evaluate it."""
    spec = opt.run_spec(context)
    command = shlex.join(["unskew", *sys.argv[1:]])
    folder = out or _fresh_folder(spec)
    options: dict[str, Any] = {"track": track or (), "track_dir": track_dir}
    options |= {"state_on_disk": state_on_disk, "ray": ray}
    _show(run_with_progress(spec, folder, data_dir, threads, command, **options), json)


def resume(
    folder: Annotated[Path, Argument(metavar="RUN")],
    method: opt.MethodOfRun = None,
    track: opt.Track = None,
    track_dir: opt.TrackDir = None,
    data_dir: opt.DataDir = None,
    state_on_disk: opt.StateOnDisk = None,
    ray: opt.Ray = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Resume a stopped run. The result is bit-identical to an uninterrupted one."""
    spec, command = read_spec(folder, method)
    options: dict[str, Any] = {"track": track or (), "track_dir": track_dir}
    options |= {"state_on_disk": state_on_disk, "ray": ray}
    _show(run_with_progress(spec, folder, data_dir, threads, command, resume=True, **options), json)


def run_with_progress(
    spec: RunSpec,
    folder: Path,
    data_dir: Path | None,
    threads: int,
    command: str,
    *,
    interactions: Interactions | None = None,
    resume: bool = False,
    ray: str | None = None,
    **options: Any,
) -> Run:
    """Train the run that ``spec`` describes. Shows progress, a warning if training diverged, and
    after an interruption the command that resumes. ``interactions`` are the run's data if they are
    loaded already; ``ray`` is the address of a Ray cluster to train on; ``options`` are ``track``
    and ``track_dir`` for experiment trackers, and ``state_on_disk``."""
    set_threads(threads)
    interactions = interactions or load_data(spec, data_dir)
    label = f"{short_name(spec.method)} on {Path(spec.data).name}, {spec.protocol}"
    n_seeds = len(spec.seeds)
    try:
        with _cluster(ray, spec, threads) as cluster, RoundProgress(label, n_seeds) as progress:
            finished = run_tracked(
                spec,
                interactions,
                out=folder,
                cluster=cluster,
                data_dir=data_dir,
                resume=resume,
                on_round=progress,
                command=command,
                **options,
            )
    except KeyboardInterrupt:
        again = ["unskew", "resume", str(folder), *opt.method_option(spec)]
        again += [] if ray is None else ["--ray", ray]
        stderr.print(f"Stopped. Go on with: {shlex.join(again)}")
        raise
    for outcome in finished.outcomes:
        lost = [row["round"] for row in outcome.rows if not math.isfinite(row["loss"])]
        if lost:
            stderr.print(
                f"Training diverged: with seed {outcome.seed} the loss is not a number in round "
                f"{lost[0]}, and figures from there on mean nothing. Lower the learning rate."
            )
    return finished


@contextmanager
def _cluster(address: str | None, spec: RunSpec, threads: int) -> Iterator[Cluster | None]:
    """Yield the Ray cluster at an address, to which this process is connected; None without one."""
    if address is None:
        yield None
        return
    check_method(spec.build())
    with Cluster(address, cores=threads) as cluster:
        yield cluster


def _show(finished: Run, json: bool) -> None:
    result = finished.result()
    if json:
        print_json(result.to_json())
        return
    print_figures([result])
    for note in result.notes:
        stdout.print(f"Note: {note}")
    if result.privacy is not None:
        print_privacy(result.privacy)
    memory = "" if result.peak_rss_mb is None else f"peak memory {result.peak_rss_mb:.0f} MB, "
    sizes = (result.bytes_up, result.bytes_down, result.total_bytes_up, result.total_bytes_down)
    up, down, all_up, all_down = (decimal(int(size or 0)) for size in sizes)
    evaluation = result.evaluation_seconds_per_round
    evaluating = "" if evaluation is None else f"{evaluation:.3g} s per evaluation, "
    stdout.print(
        f"{result.seconds_per_round:.3g} s per round, {evaluating}{memory}per client and round "
        f"{up} up and {down} down; a device in the whole training {all_up} up and {all_down} down."
    )
    stdout.print(f"Run: {finished.folder}")


def print_figures(results: list[Result]) -> None:
    """Print a table of HR@10 and NDCG@10 of runs, after the best round and after the last. Runs
    that rank all items also have a line with the metrics among 99 sampled candidates."""
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


def print_privacy(account: Mapping[str, Any]) -> None:
    """Print a run's privacy: noise, epsilon by the paper's formula, and the actual guarantee."""
    clip = account["clip"]
    bound = "" if clip is None else f", uploads clipped to {account['norm']} norm {clip:g}"
    stdout.print(f"Noise on every upload: {account['kind']}, scale {account['noise']:.4g}{bound}.")
    paper = account["paper_epsilon"]
    worst, median = (paper["epsilon"][name] for name in ("worst", "median"))
    figure = "undefined without noise"
    if worst is not None:
        figure = f"{worst:.3g} for the client of largest weight, {median:.3g} for the median one"
        figure += "" if clip is not None else f" (its C: {paper['update_bound_is']})"
    stdout.print(f"Paper's epsilon ({paper['definition']}): {figure}.")
    guarantee = account["local_guarantee"]
    stdout.print(f"Guarantee of the local mechanism: {guarantee['statement']}.")
    if account.get("least_users"):
        stdout.print(
            f"Rows of items that fewer than {account['least_users']} users have stay home."
        )
    if guarantee["holds"] and guarantee["epsilon_of_sum"] is not None:
        stdout.print(
            f"Under secure aggregation, where only sums are seen: epsilon "
            f"{guarantee['epsilon_of_sum']:.3g} at the same delta, if every client is honest."
        )


def _fresh_folder(spec: RunSpec) -> Path:
    """A folder below ``runs`` that does not exist yet, named after data, method and time."""
    started = time.strftime("%Y%m%d-%H%M%S")
    name = f"{Path(spec.data).stem}-{short_name(spec.method)}-{spec.protocol}-{started}"
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(folder for folder in map(Path("runs").joinpath, names) if not folder.exists())


def demo(
    out: Annotated[Path, Option(help="Where the runs and the report go.")] = Path("runs/demo"),
    rounds: Annotated[int, Option(help="Global rounds.", min=1)] = 60,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Train on the embedded demo data under both protocols; write a report, and a page that
    recommends in the browser."""
    folders, runs = [out / f"{method}-{protocol}" for method, protocol in DEMO_RUNS], []
    for folder in folders:  # earlier runs are replaced, anything else is refused
        if folder.exists() and any(folder.iterdir()) and not (folder / "run.json").exists():
            raise UnskewError(f"{folder} is in the way and is not a run; give another --out.")
    interactions = load("demo")
    for folder, (method, protocol) in zip(folders, DEMO_RUNS, strict=True):
        shutil.rmtree(folder, ignore_errors=True)
        settings = {"rounds": min(rounds, _MOST_ROUNDS.get(method, rounds))}
        settings = {} if method in _METHODS_WITH_OWN_ROUNDS else settings
        spec = RunSpec(method, settings, "demo", protocol)
        options = [f"--set {key}={value}" for key, value in settings.items()]
        command = " ".join(["unskew run --method", method, "--protocol", protocol, *options])
        runs.append(
            run_with_progress(spec, folder, None, threads, command, interactions=interactions)
        )
    report, page = out / "report.html", out / "recommend.html"
    write_bytes(page, to_page(runs[DEMO_RUNS.index(_PAGE_OF)]).content)
    write_report(folders, report, device_page=(page.name, _PAGE_OF[0]))
    results = [finished.result() for finished in runs]
    if json:
        made = {"report": str(report), "page": str(page)}
        print_json({"runs": [result.to_json() for result in results], **made})
        return
    print_figures(results)
    stdout.print(
        "Under `paper` the held-out item is ranked against 99 sampled items that training used as "
        "negatives while it never saw the held-out one; under `leak-free` all unseen items are "
        "ranked and nothing gives the held-out one away. See docs/protocols.md."
    )
    stdout.print(f"Report: {report.resolve()}")
    stdout.print(f"Recommendations in your browser: {page.resolve()}")
    stderr.print("Try your own data: unskew run --data ratings.csv")
