"""unskew tune: search the settings of a method on validation, with a chart of the search."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli import _options as opt
from unskew.cli._output import print_json, print_table, stderr, stdout, write_text
from unskew.cli._progress import DownloadProgress
from unskew.kernels import set_threads
from unskew.report import Chart, Panel, Series, draw_svg
from unskew.runs import RunSpec
from unskew.runs.tuning import (
    Dimension,
    Search,
    Trial,
    best_trial,
    config_text,
    default_space,
    import_optuna,
    parse_space,
)
from unskew.runs.tuning import tune as search_settings
from unskew.types import UnskewError

MAX_PRINTED_TRIALS = 5
"""Rows of the printed table."""


def tune(
    method: Annotated[str, typer.Option(help="See `unskew methods`.")] = "fedrefit",
    data: Annotated[str, typer.Option(help="A source's name or a file.")] = "demo",
    protocol: Annotated[str, typer.Option(help="leak-free, time or paper.")] = "leak-free",
    trials: Annotated[int, typer.Option(help="Trials in all, with those done.", min=1)] = 30,
    space: Annotated[
        str | None,
        typer.Option(help="rank=2:16,dim=8|16|32; default: what the method's settings allow."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Global rounds per trial.", min=1)] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of each trial, averaged.")] = "0",
    seed: Annotated[int, typer.Option(help="Seed of the search itself.", min=0)] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting that stays as it is: key=value.")
    ] = None,
    columns: opt.Columns = None,
    skip_bad_rows: opt.SkipBadRows = False,
    min_user_rows: opt.MinUserRows = None,
    out: Annotated[Path | None, typer.Option(help="The search's folder.")] = None,
    data_dir: opt.DataDir = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Search settings on validation NDCG@10. The same command goes on with a stopped search."""
    import_optuna()
    set_threads(threads)
    settings: dict[str, Any] = dict(opt.parse_pairs(set_ or [], "--set"))
    if rounds is not None:
        settings["rounds"] = rounds
    spec = RunSpec(
        method,
        settings,
        data,
        protocol,
        opt.parse_seeds(seeds),
        columns=opt.parse_columns(columns) or {},
        skip_bad_rows=skip_bad_rows,
        min_user_rows=min_user_rows,
    )
    wanted = default_space(method) if space is None else parse_space(method, space)
    wanted = {name: one for name, one in wanted.items() if name not in spec.settings}
    if not wanted:
        raise UnskewError(f"{method} has nothing left to search; name something with --space.")
    search = Search(spec, wanted, seed)
    folder = out or Path("runs") / f"tune-{Path(data).stem}-{method}-{protocol}"
    with DownloadProgress(data) as downloading:
        interactions = spec.load(data_dir, downloading)
    began = time.monotonic()
    fresh = 0

    def after(trial: Trial, every: list[Trial]) -> None:
        nonlocal fresh
        fresh += 1
        _save(folder, search, every)
        left = (time.monotonic() - began) / fresh * (trials - len(every))
        stderr.print(f"{_progress_line(trial, every)}, {left:.0f} s left")

    try:
        done = search_settings(search, interactions, folder, trials, after)
    except KeyboardInterrupt:
        stderr.print(f"Stopped; the same command goes on, or see {shlex.quote(str(folder))}.")
        raise
    best = best_trial(done)
    _save(folder, search, done)
    if json:
        print_json(
            {
                "method": method,
                "data": data,
                "protocol": protocol,
                "trials": [trial._asdict() for trial in done],
                "best": best._asdict(),
                "space": {name: str(one) for name, one in wanted.items()},
                "config": str(folder / "best.toml"),
                "picture": str(folder / "search.svg"),
            }
        )
        return
    ranked = sorted(done, key=lambda trial: -(trial.value or 0.0))[:MAX_PRINTED_TRIALS]
    print_table(
        ["trial", "validation NDCG@10", *wanted],
        [
            [str(trial.number), _figure(trial.value), *map(_short, trial.settings.values())]
            for trial in ranked
        ],
        title=f"{method} on {Path(data).name}, {protocol}: the best of {len(done)} trials",
    )
    stdout.print(f"Picture: {folder / 'search.svg'}")
    stdout.print(f"Run it: unskew run --config {shlex.quote(str(folder / 'best.toml'))}")


def _progress_line(trial: Trial, every: list[Trial]) -> str:
    chosen = ", ".join(f"{name} {_short(value)}" for name, value in trial.settings.items())
    if trial.value is None:
        return f"trial {trial.number}: {chosen}: failed, {trial.problem}"
    best = max(one.value for one in every if one.value is not None)
    return f"trial {trial.number}: {chosen}: {trial.value:.4f}, best so far {best:.4f}"


def _save(folder: Path, search: Search, every: list[Trial]) -> None:
    """Write the best settings and the chart so far, so that a stopped search leaves them too."""
    if any(trial.value is not None for trial in every):
        write_text(folder / "best.toml", config_text(search, best_trial(every)))
        write_text(folder / "search.svg", draw_svg(search_chart(search, every)))


def search_chart(search: Search, trials: Sequence[Trial]) -> Chart:
    """The trials in their order with the best so far, and every setting against the value."""
    spec, best = search.spec, best_trial(list(trials))
    axes: dict[str, tuple[Dimension, list[Any]]] = {
        "trial": (Dimension(), [trial.number for trial in trials])
    }
    for name, one in search.space.items():
        axes[name] = (one, [trial.settings[name] for trial in trials])
    panels = []
    for name, (one, places) in axes.items():
        points = [
            (float(one.choices.index(place) if one.choices else place), trial)
            for place, trial in zip(places, trials, strict=True)
            if trial.value is not None
        ]
        x, values = [at for at, _ in points], [trial.value or 0.0 for _, trial in points]
        at_best = [at for at, trial in points if trial is best]
        series = [
            Series("trials", spec.method, x, values, "points"),
            Series("best", "best", at_best, [best.value or 0.0], "points"),
        ]
        if name == "trial":
            so_far = list(accumulate(values, max))
            series.insert(0, Series("best so far", "best so far", x, so_far, "step"))
        panels.append(
            Panel(
                name,
                f"{name} (log scale)" if one.log else name,
                "validation NDCG@10",
                tuple(series),
                names=tuple(map(_short, one.choices)),
                log_x=one.log,
            )
        )
    title = f"{spec.method} on {Path(spec.data).name}, {spec.protocol}: validation NDCG@10"
    return Chart(title, tuple(panels), columns=3)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _figure(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4f}"
