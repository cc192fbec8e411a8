"""``unskew tune``: find the settings of a method with the best validation metric; draw a chart."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Option

from unskew.cli import _options as opt
from unskew.cli._output import load_data, print_json, print_table, stderr, stdout
from unskew.display import Chart, Panel, Series, draw_svg
from unskew.files import write_text
from unskew.kernels import set_threads
from unskew.methods import short_name
from unskew.runs.tuning import (
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
"""Maximum number of trials in the printed table."""


def tune(
    context: Context,
    method: opt.Method = None,
    data: opt.Data = None,
    protocol: opt.Protocol = None,
    trials: Annotated[int, Option(help="Trials in all, with those done.", min=1)] = 30,
    space: Annotated[
        str | None,
        Option(help="rank=2:16,dim=8|16|32; default: what the method's settings allow."),
    ] = None,
    rounds: opt.Rounds = None,
    seeds: Annotated[str | None, Option(help="Seeds of each trial, averaged; default 0.")] = None,
    seed: Annotated[int, Option(help="Seed of the search itself.", min=0)] = 0,
    set_: Annotated[
        list[str] | None, Option("--set", help="A setting that stays as it is: key=value.")
    ] = None,
    columns: opt.Columns = None,
    skip_bad_rows: opt.SkipBadRows = False,
    min_user_rows: opt.MinUserRows = None,
    out: Annotated[Path | None, Option(help="The search's folder.")] = None,
    data_dir: opt.DataDir = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Search settings by validation NDCG@10. The same command resumes a stopped search."""
    import_optuna()
    set_threads(threads)
    spec = opt.run_spec(context)
    wanted = default_space(spec.method) if space is None else parse_space(spec.method, space)
    wanted = {name: one for name, one in wanted.items() if name not in spec.settings}
    if not wanted:
        raise UnskewError(f"{spec.method} has nothing left to search; name something with --space.")
    search, name = Search(spec, wanted, seed), Path(spec.data).name
    about = f"{Path(name).stem}-{short_name(spec.method)}-{spec.protocol}"
    folder = out or Path("runs", f"tune-{about}")
    interactions = load_data(spec, data_dir)
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
                "method": spec.method,
                "data": spec.data,
                "protocol": spec.protocol,
                "trials": [trial._asdict() for trial in done],
                "best": best._asdict(),
                "space": {name: str(one) for name, one in wanted.items()},
                "config": str(folder / "best.toml"),
                "picture": str(folder / "search.svg"),
            }
        )
        return
    valued = [trial for trial in done if trial.value is not None]
    ranked = sorted(valued, key=lambda trial: -(trial.value or 0.0))[:MAX_PRINTED_TRIALS]
    print_table(
        ["trial", "validation NDCG@10", *wanted],
        [
            [str(trial.number), f"{trial.value:.4f}", *map(_short, trial.settings.values())]
            for trial in ranked
        ],
        title=f"{spec.method} on {name}, {spec.protocol}: the best of {len(done)} trials",
    )
    stdout.print(f"Picture: {folder / 'search.svg'}")
    command = ["unskew", "run", "--config", str(folder / "best.toml"), *opt.method_option(spec)]
    stdout.print(f"Run it: {shlex.join(command)}", soft_wrap=True)


def _progress_line(trial: Trial, every: list[Trial]) -> str:
    chosen = ", ".join(f"{name} {_short(value)}" for name, value in trial.settings.items())
    if trial.value is None:
        return f"trial {trial.number}: {chosen}: failed, {trial.problem}"
    best = max(one.value for one in every if one.value is not None)
    return f"trial {trial.number}: {chosen}: {trial.value:.4f}, best so far {best:.4f}"


def _save(folder: Path, search: Search, every: list[Trial]) -> None:
    """Write the best settings and the chart so far, so that a stopped search has them too."""
    if any(trial.value is not None for trial in every):
        write_text(folder / "best.toml", config_text(search, best_trial(every)))
        write_text(folder / "search.svg", draw_svg(search_chart(search, every)))


def search_chart(search: Search, trials: Sequence[Trial]) -> Chart:
    """Chart of the trials' validation NDCG@10, by trial number and by each searched setting."""
    done = [trial for trial in trials if trial.value is not None]
    spec, best, values = search.spec, best_trial(done), [trial.value or 0.0 for trial in done]

    def panel(name: str, x: list[float], *more: Series, log: bool = False, **how: Any) -> Panel:
        at_best = [x[done.index(best)]]
        points = (
            Series("trials", spec.method, x, values, "points"),
            Series("best", "best", at_best, [best.value or 0.0], "points"),
        )
        label = f"{name} (log scale)" if log else name
        return Panel(name, label, "validation NDCG@10", (*more, *points), log_x=log, **how)

    numbers, so_far = [float(trial.number) for trial in done], list(accumulate(values, max))
    panels = [
        panel("trial", numbers, Series("best so far", "best so far", numbers, so_far, "step"))
    ]
    for name, one in search.space.items():
        chosen = [trial.settings[name] for trial in done]
        x = [float(one.choices.index(value)) for value in chosen] if one.choices else chosen
        panels.append(panel(name, x, log=one.log, names=tuple(map(_short, one.choices))))
    title = f"{spec.method} on {Path(spec.data).name}, {spec.protocol}: validation NDCG@10"
    return Chart(title, tuple(panels), columns=3)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
