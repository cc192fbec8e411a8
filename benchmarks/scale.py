"""How a round's cost grows with the federation, measured through the command line.

    python -m benchmarks.scale cost         one size changed at a time: seconds, memory, exponents
    python -m benchmarks.scale evaluation   evaluation against training, on two data sets
    python -m benchmarks.scale million      a million users, 50,000 items, 50 million rows
    python -m benchmarks.scale ray          one process against two Ray workers with a core each
    python -m benchmarks.scale page         tables and pictures of the rows into docs/scale.md

Every cell is an `unskew run` of its own, on a file that `unskew data make` has made. Rows go to
results/scale.jsonl; cells that have a row are not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import machine
from unskew.display import Cell, Chart, Panel, Series, Table, draw_svg, to_markdown
from unskew.files import append_json_line, read_json_lines, write_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGE = ROOT / "results/scale.jsonl", ROOT / "docs/scale.md"
PICTURE = ROOT / "docs/figures/scale.svg"
METHODS = ("fedrefit", "fedmf", "pfedclr")


class Size(NamedTuple):
    """Size of a generated federation and of the models trained on it."""

    users: int = 20_000
    items: int = 10_000
    rows: int = 1_000_000
    dim: int = 16
    rank: int = 2


MIDDLE = Size()
STEPS: dict[str, tuple[int, ...]] = {
    "users": (5_000, 10_000, 20_000, 40_000, 80_000),
    "items": (5_000, 10_000, 20_000, 40_000),
    "rows": (500_000, 1_000_000, 2_000_000, 4_000_000),
    "dim": (8, 16, 32, 64),
    "rank": (1, 2, 4, 8),
}
"""What is changed, and to what. With the users their rows change, too: 50 each."""
MILLION = Size(1_000_000, 50_000, 50_000_000)
MILLION_RUNS: dict[str, tuple[str, ...]] = {
    "fedrefit": (),
    "fedmf": ("--rounds", "50", "--set", "participation=0.01"),
    "pfedclr": ("--rounds", "50", "--set", "participation=0.01"),
}
"""Options of the runs with a million users; FedRefit trains as by default."""
HUNDRED_THOUSAND = Size(100_000, 20_000, 5_200_000)
EVALUATED_USERS = (None, 10_000)
"""Users who are evaluated between the rounds, None: everybody."""
COST_ROUNDS = {"fedrefit": 8, "fedmf": 4, "pfedclr": 4}
"""Rounds per cell; FedRefit's eight differ, so that its figure is a mean over its training."""
MEASURES = {"seconds_per_round": "training", "evaluation_seconds_per_round": "evaluation"}


def cost_cells() -> Iterator[tuple[str, str, Size]]:
    """Method, what is changed, and the size, of every cell of the study of cost."""
    for method in METHODS:
        for name, values in STEPS.items():
            if name == "rank" and method != "pfedclr":
                continue
            for value in values:
                size = MIDDLE._replace(**{name: value})
                if name == "users":
                    size = size._replace(rows=50 * value)
                yield method, name, size


def run_cost(scratch: Path) -> None:
    """Measure every cell of the study of cost that has no row yet."""
    for method, name, size in cost_cells():
        options = ["--rounds", str(COST_ROUNDS[method]), "--set", f"dim={size.dim}"]
        if method == "pfedclr":
            options += ["--set", f"rank={size.rank}"]
        measure(scratch, "cost", method, size, options, changed=name)


def run_evaluation(scratch: Path) -> None:
    """Measure what evaluating everybody costs, and 10,000 users, where there is no row yet."""
    for data in ("ml-1m", HUNDRED_THOUSAND):
        for method in METHODS:
            for users in EVALUATED_USERS:
                options = ["--rounds", str(COST_ROUNDS[method])]
                options += [] if users is None else ["--evaluate-users", str(users)]
                measure(scratch, "evaluation", method, data, options, evaluated=users)


def run_ray(scratch: Path) -> None:
    """Measure rounds in one process and on Ray's workers, where there is no row yet."""
    for method in METHODS:
        for workers, options in ((0, []), (2, ["--ray", "local"])):
            measure(scratch, "ray", method, "ml-1m", ["--rounds", "8", *options], workers=workers)


def run_million(scratch: Path) -> None:
    """Measure the runs with a million users that have no row yet."""
    for method, options in MILLION_RUNS.items():
        more = ["--evaluate-users", "20000", "--evaluate-every", "10"]
        measure(scratch, "million", method, MILLION, [*options, *more])


def measure(
    scratch: Path, study: str, method: str, data: Size | str, options: list[str], **more: Any
) -> None:
    """Run one cell, unless it has a row, and add its row to the results. ``data`` is a data set
    known by name, or the size of one to be made, in the folder ``scratch``."""
    sizes = {"data": data} if isinstance(data, str) else data._asdict()
    key = {"study": study, "method": method, **sizes, **more}
    if any(all(row.get(k) == v for k, v in key.items()) for row in rows(study)):
        return
    if warning := machine.busy():
        print(warning, file=sys.stderr)
    run, commands = ["run", "--method", method, *options, "--json", "--data"], []
    file, shown = str(data), str(data)
    if not isinstance(data, str):
        made_of = {name: sizes[name] for name in ("users", "items", "rows")}
        path = scratch / f"{'-'.join(map(str, made_of.values()))}.parquet"
        make = ["data", "make", *(f"--{k}={v}" for k, v in made_of.items()), "--seed=0", "--out"]
        if not path.exists():
            unskew(*make, str(path))
        commands.append(" ".join(["unskew", *make, "FILE"]))
        file, shown = str(path), "FILE"
    began = time.perf_counter()
    found = json.loads(unskew(*run, file, "--out", str(scratch / "run")))
    seconds = time.perf_counter() - began
    shutil.rmtree(scratch / "run")
    commands.append(" ".join(["unskew", *run, shown]))
    kept = (*MEASURES, "peak_rss_mb", "bytes_up", "bytes_down", "metrics", "model_sha256")
    figures = {name: found[name] for name in kept} | {"seconds": seconds}
    append_json_line(RESULTS, key | figures | {"commands": commands, **machine.describe()})
    print(f"{study}: {method}, {data}: {found['seconds_per_round']:.2f} s a round", flush=True)


def unskew(*arguments: str) -> str:
    """Standard output of a command."""
    command = [sys.executable, "-m", "unskew", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rows(study: str) -> list[dict[str, Any]]:
    """The result rows of a study."""
    made = read_json_lines(RESULTS) if RESULTS.exists() else []
    return [row for row in made if row["study"] == study]


def exponent(xs: list[float], ys: list[float]) -> float:
    """Slope of log y by log x, by least squares: cost grows like x to this power."""
    return float(np.polyfit(np.log(xs), np.log(ys), 1)[0])


def write_page() -> None:
    """Renew the tables that docs/scale.md has markers for, and its picture."""
    text = PAGE.read_text()
    tables = {"cost": cost_table, "evaluation": evaluation_table, "million": million_table}
    for name, table in tables.items():
        if f"<!-- {name}:begin -->" not in text:
            continue
        begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
        head, _, rest = text.partition(begin)
        text = f"{head}{begin}\n{to_markdown(table())}\n{end}{rest.partition(end)[2]}"
    write_text(PAGE, text)
    if rows("cost"):
        write_text(PICTURE, draw_svg(cost_chart()))


def cost_table() -> Table:
    """Fitted exponents of the seconds of a round, and of peak memory, by what is changed."""
    lines = []
    for method in METHODS:
        for measure_name, label in {**MEASURES, "peak_rss_mb": "peak memory"}.items():
            found = [series(method, name, measure_name) for name in STEPS]
            cells = [Cell.number(exponent(*xy), 2) if xy[0] else None for xy in found]
            lines.append([method, label, *cells])
    return Table.of(["method", "grows with", *STEPS], lines)


def series(method: str, changed: str, name: str) -> tuple[list[float], list[float]]:
    """Sizes and figures of the cells of one method in which one size was changed."""
    found = [row for row in rows("cost") if (row["method"], row["changed"]) == (method, changed)]
    return [float(row[changed]) for row in found], [float(row[name]) for row in found]


def cost_chart() -> Chart:
    """Seconds of a round's training by users, items, rows, dimension and rank."""
    panels = []
    for name in STEPS:
        lines = [
            Series(f"{method}, {label}", method, *series(method, name, key), variant=number)
            for method in METHODS
            for number, (key, label) in enumerate(MEASURES.items())
            if series(method, name, key)[0]
        ]
        panels.append(
            Panel(f"by {name}", name, "seconds per round", tuple(lines), log_x=True, log_y=True)
        )
    return Chart("Cost of a round", tuple(panels))


def evaluation_table() -> Table:
    """What a round's evaluation costs, beside its training."""
    heads = ["data", "method", "evaluated", "training s", "evaluation s", "ratio", "peak GB"]
    lines = [
        [
            row.get("data", "100,000 users"),
            row["method"],
            "everybody" if row["evaluated"] is None else f"{row['evaluated']:,} users",
            Cell.number(row["seconds_per_round"], 2),
            Cell.number(row["evaluation_seconds_per_round"], 2),
            Cell.number(row["evaluation_seconds_per_round"] / row["seconds_per_round"], 2),
            Cell.number(row["peak_rss_mb"] / 1024, 2),
        ]
        for row in rows("evaluation")
    ]
    return Table.of(heads, lines)


def million_table() -> Table:
    """Time, memory and quality of the runs with a million users."""
    heads = ["method", "s per round", "s per evaluation round", "minutes in all", "peak GB"]
    lines = [
        [
            row["method"],
            Cell.number(row["seconds_per_round"], 1),
            Cell.number(row["evaluation_seconds_per_round"], 1),
            Cell.number(row["seconds"] / 60, 1),
            Cell.number(row["peak_rss_mb"] / 1024, 1),
            Cell.number(row["metrics"]["ndcg@10"]["mean"], 4),
        ]
        for row in rows("million")
    ]
    return Table.of([*heads, "NDCG@10"], lines)


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.scale", description=__doc__)
    studies = {"cost": run_cost, "evaluation": run_evaluation}
    studies |= {"ray": run_ray, "million": run_million}
    parser.add_argument("what", choices=(*studies, "page"))
    what = parser.parse_args().what
    if what == "page":
        return write_page()
    with tempfile.TemporaryDirectory() as scratch:
        studies[what](Path(scratch))


if __name__ == "__main__":
    main()
