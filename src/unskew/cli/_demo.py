"""unskew demo: the main job on the embedded data, one screen, one report."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import _options as opt
from unskew.cli._output import print_json, stderr, stdout
from unskew.cli._report import write_report
from unskew.cli._run import print_figures, run_with_progress
from unskew.runs import RunSpec
from unskew.types import UnskewError

STORY = (
    ("pfedclr", "paper"),
    ("pfedclr", "leak-free"),
    ("fedmf", "leak-free"),
    ("fedrefit", "leak-free"),
    ("popularity", "leak-free"),
)
"""The paper's figure, what is left of it when nothing leaks, what can be had then, and what needs
no learning at all."""
_HAVE_THEIR_OWN_ROUNDS = ("fedrefit", "popularity")


def demo(
    out: Annotated[Path, typer.Option(help="Where the runs and the report go.")] = Path(
        "runs/demo"
    ),
    rounds: Annotated[int, typer.Option(help="Global rounds.", min=1)] = 100,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Train on the embedded demo data under both protocols, and write a report."""
    folders, results = [out / f"{method}-{protocol}" for method, protocol in STORY], []
    for folder in folders:
        _check_ours(folder)
    for folder, (method, protocol) in zip(folders, STORY, strict=True):
        shutil.rmtree(folder, ignore_errors=True)
        settings = {} if method in _HAVE_THEIR_OWN_ROUNDS else {"rounds": rounds}
        spec = RunSpec(method, settings, "demo", protocol)
        options = [f"--set {key}={value}" for key, value in settings.items()]
        command = " ".join(["unskew run --method", method, "--protocol", protocol, *options])
        finished = run_with_progress(spec, folder, None, threads, command)
        results.append(finished.result())
    page = out / "report.html"
    write_report(folders, page)
    if json:
        print_json({"runs": [result.to_json() for result in results], "report": str(page)})
        return
    print_figures(results)
    stdout.print(
        "Under `paper` the held-out item is ranked against 99 sampled items that training used as "
        "negatives while it never saw the held-out one; under `leak-free` all unseen items are "
        "ranked and nothing gives the held-out one away. See docs/protocols.md."
    )
    stdout.print(f"Report: {page.resolve()}")
    stderr.print("Try your own data: unskew run --data ratings.csv")


def _check_ours(folder: Path) -> None:
    """Refuse a folder that holds anything but an earlier run, which the demo replaces."""
    empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not empty and not (folder / "run.json").exists():
        raise UnskewError(f"{folder} is in the way and is not a run; give another --out.")
