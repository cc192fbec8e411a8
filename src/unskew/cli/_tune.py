"""unskew tune: search a method's settings on validation, with a picture of the search."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.cli._options import DataDir, Json, Threads, parse_pairs, parse_seeds
from unskew.cli._output import print_json, print_table, stderr, stdout
from unskew.cli._pages import write_text
from unskew.cli._progress import DownloadProgress
from unskew.kernels import set_threads
from unskew.report._charts import ticks
from unskew.report.palette import palette
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

_PANEL, _HEIGHT, _LEFT, _TOP, _BOTTOM = 300, 230, 52, 48, 44
_SHOWN = 5
"""Trials in the printed table."""


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
    columns: Annotated[
        str | None, typer.Option(help="For your own file: user=uid,item=movie,timestamp=ts.")
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Drop and count bad rows.")
    ] = False,
    min_user_rows: Annotated[
        int | None, typer.Option(help="Leave out users with fewer rows.", min=1)
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The search's folder.")] = None,
    data_dir: DataDir = None,
    threads: Threads = 0,
    json: Json = False,
) -> None:
    """Search settings on validation NDCG@10. The same command goes on with a stopped search."""
    import_optuna()
    set_threads(threads)
    settings: dict[str, Any] = dict(parse_pairs(set_ or [], "--set"))
    if rounds is not None:
        settings["rounds"] = rounds
    spec = RunSpec(
        method,
        settings,
        data,
        protocol,
        parse_seeds(seeds),
        columns={} if columns is None else parse_pairs(columns.split(","), "--columns"),
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
        _keep(folder, search, every)
        left = (time.monotonic() - began) / fresh * (trials - len(every))
        stderr.print(f"{_told(trial, every)}, {left:.0f} s left")

    try:
        done = search_settings(search, interactions, folder, trials, after)
    except KeyboardInterrupt:
        stderr.print(f"Stopped; the same command goes on, or see {shlex.quote(str(folder))}.")
        raise
    best = best_trial(done)
    _keep(folder, search, done)
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
    ranked = sorted(done, key=lambda trial: -(trial.value or 0.0))[:_SHOWN]
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


def _told(trial: Trial, every: list[Trial]) -> str:
    chosen = ", ".join(f"{name} {_short(value)}" for name, value in trial.settings.items())
    if trial.value is None:
        return f"trial {trial.number}: {chosen}: failed, {trial.problem}"
    best = max(one.value for one in every if one.value is not None)
    return f"trial {trial.number}: {chosen}: {trial.value:.4f}, best so far {best:.4f}"


def _keep(folder: Path, search: Search, every: list[Trial]) -> None:
    """The best settings and the picture as they are now: a stopped search leaves them too."""
    if any(trial.value is not None for trial in every):
        write_text(folder / "best.toml", config_text(search, best_trial(every)))
        write_text(folder / "search.svg", picture(search, every))


def picture(search: Search, trials: Sequence[Trial]) -> str:
    """An SVG: the trials in order with the best so far, and each setting against the value."""
    valued = [(trial, trial.value) for trial in trials if trial.value is not None]
    top = ticks(max(value for _, value in valued))
    best = best_trial(list(trials))
    colour = palette(search.spec.method)
    order = Dimension(0, max(1, max(trial.number for trial in trials)), whole=True)
    places = [(float(trial.number), value, trial is best) for trial, value in valued]
    panels = [_panel("trial", order, places, top, colour, _best_so_far(valued))]
    for name, one in search.space.items():
        points = [(trial.settings[name], value, trial is best) for trial, value in valued]
        panels.append(_panel(name, one, points, top, colour, []))
    across = min(3, len(panels))
    width, height = _PANEL * across, 34 + _HEIGHT * math.ceil(len(panels) / across)
    spec = search.spec
    title = f"{spec.method} on {Path(spec.data).name}, {spec.protocol}: validation NDCG@10"
    body = "".join(
        f'<g transform="translate({i % across * _PANEL} {34 + i // across * _HEIGHT})">{panel}</g>'
        for i, panel in enumerate(panels)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" font-family="sans-serif"><title>{escape(title)}</title>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
        f'<text x="12" y="24" font-size="14" font-weight="bold">{escape(title)}</text>'
        f"{body}</svg>\n"
    )


def _best_so_far(valued: Sequence[tuple[Trial, float]]) -> list[tuple[float, float]]:
    steps: list[tuple[float, float]] = []
    for trial, value in valued:
        highest = max(value, steps[-1][1]) if steps else value
        if steps:
            steps.append((trial.number, steps[-1][1]))
        steps.append((trial.number, highest))
    return steps


def _panel(
    name: str,
    one: Dimension,
    points: Sequence[tuple[Any, float, bool]],
    values: list[float],
    colour: str,
    line: Sequence[tuple[float, float]],
) -> str:
    right, bottom = _PANEL - 16, _HEIGHT - _BOTTOM

    def x(value: Any) -> float:
        if one.choices:
            at = (one.choices.index(value) + 0.5) / len(one.choices)
        elif one.log:
            at = math.log(value / one.low) / math.log(one.high / one.low)
        else:
            at = (value - one.low) / (one.high - one.low)
        return _LEFT + 6 + at * (right - _LEFT - 12)

    def y(value: float) -> float:
        return bottom - value / values[-1] * (bottom - _TOP + 24)

    digits = max(0, -math.floor(math.log10(values[1]))) + 1
    parts = [
        f'<path d="M{_LEFT} {y(value):.1f}H{right}" stroke="#dddddd"/><text x="{_LEFT - 6}" '
        f'y="{y(value) + 4:.1f}" text-anchor="end" font-size="10">{value:.{digits}f}</text>'
        for value in values
    ]
    marks = one.choices or (one.low, one.high)
    if one.log and not one.choices:
        middle = math.sqrt(one.low * one.high)
        marks = (one.low, round(middle) if one.whole else middle, one.high)
    parts += [
        f'<text x="{x(mark):.1f}" y="{bottom + 15}" text-anchor="middle" font-size="10">'
        f"{escape(_short(mark))}</text>"
        for mark in marks
    ]
    scale = f"{name} (log scale)" if one.log else name
    parts.append(
        f'<text x="{(_LEFT + right) / 2:.0f}" y="{bottom + 32}" text-anchor="middle" '
        f'font-size="12">{escape(scale)}</text>'
    )
    if line:
        path = "M" + "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in line)
        parts.append(f'<path d="{path}" fill="none" stroke="#777777" stroke-dasharray="4 3"/>')
    for at, value, is_best in sorted(points, key=lambda point: point[2]):
        told = escape(f"{name} {_short(at)}: {value:.4f}" + (", the best" if is_best else ""))
        # The best is a large ring as well as black: it shows without colour.
        look = f'r="3.5" fill="{colour}" fill-opacity="0.6"'
        if is_best:
            look = 'r="6" fill="none" stroke="#000000" stroke-width="2.5"'
        parts.append(
            f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" {look}><title>{told}</title></circle>'
        )
    return "".join(parts)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _figure(value: float | None) -> str:
    return "failed" if value is None else f"{value:.4f}"
