"""Parse, measure, print: a table on a terminal, plain lines elsewhere, JSON lines on request."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import against, machine, sources
from benchmarks.timing import QUICK, THOROUGH, Effort, LeftOut, Row, Setting
from unskew import data
from unskew.types import UnskewError


def main() -> int:
    options = _parse()
    if options.against is None and importlib.util.find_spec("torch") is None:
        print(
            "The benchmark compares with PyTorch, which is not installed here: pip install torch",
            file=sys.stderr,
        )
        return 1
    try:
        _run(options)
    except UnskewError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--data",
        action="append",
        choices=[source.name for source in data.sources()],
        help="a data set to measure on; may be repeated "
        f"(default: {', '.join(sources.DEFAULT)}, where present)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line per row to FILE")
    parser.add_argument("--only", metavar="ROW", help="one row by its name, e.g. torch_fedmf")
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="size of the generated file that is read"
    )
    parser.add_argument(
        "--against",
        metavar="COMMIT",
        help="only time a round of pfedclr, here and in another commit, in turns",
    )
    parser.add_argument("--quick", action="store_true", help="a fast look, with more noise")
    return parser.parse_args()


def _run(options: argparse.Namespace) -> None:
    measures, made = _chosen_rows(options)
    console = Console()
    described = machine.describe()
    if options.json:
        _check_writable(options.json)
    _say(console, f"{described['cpu']}, {described['cores']} cores; rounds without evaluation")
    warning = machine.busy()
    if warning:
        _say(console, warning)
    effort = QUICK if options.quick else THOROUGH
    rows: list[Row] = []

    def keep(row: Row, arguments: str) -> None:
        rows.append(row)
        if options.json:
            origin = {"machine": described, "command": f"python -m benchmarks {arguments}"}
            _append(options.json, row.as_json() | origin)
        if not console.is_terminal:
            _say(console, row.sentence + (f"; {row.verdict}" if row.verdict else ""))

    with console.status("") as status:
        for name in (options.data or sources.DEFAULT) if measures else ():
            status.update(f"reading {name}")
            split = sources.load(name)
            if split is None:
                _say(console, sources.how_to_get(name))
                continue
            for row_name, measure in measures.items():
                status.update(f"{name}: {row_name}")
                try:
                    row = measure(Setting(split, effort))
                except LeftOut as reason:
                    _say(console, str(reason))
                    continue
                flag = f"--against {row_name}" if options.against else f"--only {row_name}"
                keep(row, f"--data {name} {flag}")
        for row_name, measure_made in made.items():
            status.update(row_name)
            keep(measure_made(effort, options.rows), f"--only {row_name} --rows {options.rows}")
    if console.is_terminal:
        _show(console, rows)


def _chosen_rows(
    options: argparse.Namespace,
) -> tuple[dict[str, Callable[[Setting], Row]], dict[str, Callable[[Effort, int], Row]]]:
    """The rows to measure on data sets, by their names (or by the commit to compare with), and
    those to measure on generated data."""
    if options.against:
        return {options.against: lambda setting: against.measure(setting, options.against)}, {}
    from benchmarks.registry import MADE_ROWS, ROWS  # imports torch

    known = (*ROWS, *MADE_ROWS)
    if options.only not in (None, *known):
        raise UnskewError(f'There is no row "{options.only}"; choose one of {", ".join(known)}.')

    def chosen(rows: dict[str, Any]) -> dict[str, Any]:
        return {name: row for name, row in rows.items() if options.only in (None, name)}

    return chosen(ROWS), chosen(MADE_ROWS)


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def _check_writable(path: Path) -> None:
    try:
        path.open("a").close()
    except OSError as error:
        raise UnskewError(
            f"{path}: cannot be written ({error.strerror}); give --json another file"
        ) from error


def _append(path: Path, row: dict[str, object]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _show(console: Console, rows: list[Row]) -> None:
    table = Table("what", "data", "against", title="Unskew's speed, as ratios of this run")
    for heading in ("its seconds", "Unskew's", "ratio", "lowest", "highest"):
        table.add_column(heading, justify="right")
    table.add_column("asked for")
    for row in rows:
        against, unskew, *ratios = row.figures
        digits = 0 if ratios[0] >= 10 else 2
        figures = [f"{against:.3g}", f"{unskew:.3f}", *(f"{x:.{digits}f}" for x in ratios)]
        table.add_row(row.name, row.data, row.against, *figures, row.verdict)
    console.print(table)
    for row in rows:
        _say(console, row.sentence)


if __name__ == "__main__":
    sys.exit(main())
