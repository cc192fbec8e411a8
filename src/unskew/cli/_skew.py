"""unskew audit skew: the paper's theory of the user-embedding skew, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.audit.skew import VARIANTS, audit_skew, skew_command
from unskew.audit.skew_words import findings, skew_table
from unskew.cli._options import DataDir, Json, Threads, parse_pairs
from unskew.cli._output import print_json, stderr, stdout
from unskew.cli._progress import DownloadProgress
from unskew.files import append_json_line
from unskew.kernels import set_threads
from unskew.methods import METHODS
from unskew.paper import read_rows
from unskew.report import to_markdown
from unskew.runs import RunSpec
from unskew.types import UnskewError


def skew(
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated; some of {', '.join(VARIANTS)}.")
    ] = ",".join(VARIANTS),
    data: Annotated[str, typer.Option(help="A source's name or a file.")] = "demo",
    protocol: Annotated[str, typer.Option(help="leak-free, time or paper.")] = "leak-free",
    rounds: Annotated[int, typer.Option(help="Global rounds.", min=1)] = 20,
    clients: Annotated[int, typer.Option(help="Clients looked at.", min=1)] = 200,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value, for methods that have the key.")
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="JSON lines to add the rows to.")] = None,
    each: Annotated[
        Path | None, typer.Option(help="JSON lines with a line per round and client.")
    ] = None,
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="Drop and count bad rows.")
    ] = False,
    data_dir: DataDir = None,
    threads: Threads = 0,
    json: Json = False,
) -> None:
    """What aggregated items do to a user's gradient, and how well the paper's lemmas tell it."""
    set_threads(threads)
    names = methods.split(",")
    for name in names:
        if name not in VARIANTS:
            raise UnskewError(f'There is no skew of "{name}" here; give {", ".join(VARIANTS)}.')
    settings = parse_pairs(set_ or [], "--set")
    options = {name: _options(name, settings) for name in names}
    for key in settings:
        if not any(key in chosen for chosen in options.values()):
            raise UnskewError(f"--set {key}: none of {methods} has it; see `unskew methods`.")
    spec = RunSpec(data=data, protocol=protocol, skip_bad_rows=skip_bad_rows)
    with DownloadProgress(data) as downloading:
        interactions = spec.load(data_dir, downloading)
    known = [] if rows is None else read_rows(rows)
    found: list[dict[str, Any]] = []
    for name in names:
        command = skew_command(name, data, protocol, rounds, clients, seed, options[name])
        row = next((row for row in known if row["command"] == command and each is None), None)
        if row is None:
            row = {
                "command": command,
                **audit_skew(
                    name,
                    data,
                    interactions,
                    protocol=protocol,
                    settings=options[name],
                    rounds=rounds,
                    clients=clients,
                    seed=seed,
                    on_round=_speak,
                    on_client=None if each is None else lambda one: append_json_line(each, one),
                ),
            }
            if rows is not None:
                append_json_line(rows, row)
        found.append(row)
    if json:
        print_json({"audits": found})
        return
    stdout.print(to_markdown(skew_table(found)), markup=False, soft_wrap=True)
    for row in found:
        stdout.print(f"\n{row['variant']}", style="bold")
        for sentence in findings(row):
            stdout.print(f"- {sentence}", markup=False)


def _options(name: str, settings: dict[str, str]) -> dict[str, str]:
    """The settings that this variant's method has."""
    fields = METHODS[VARIANTS[name][0]].Config.__dataclass_fields__
    return {key: settings[key] for key in settings if key in fields}


def _speak(name: str, line: dict[str, Any]) -> None:
    grown = "" if line["growth"] is None else f", largest growth {line['growth']:.2f}"
    buffer = ""
    if line["calibration_cosine"] is not None:
        buffer = f", calibration's cosine {line['calibration_cosine']:+.2f}"
    stderr.print(
        f"{name}: round {line['round']}, {line['clients']} clients, skew "
        f"{line['skew_of_pull']:.1%} of the pull, formula's correlation {line['correlation']:.2f} "
        f"and error {line['error']:.0%}{grown}{buffer}, left {line['left']:.0%}"
    )
