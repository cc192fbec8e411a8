"""Options and their parsing, shared by the commands."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from unskew.types import UnskewError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]
Threads = Annotated[int, typer.Option(help="Threads (0: all cores). Changes the time only.", min=0)]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with <name>/ratings.csv; default $UNSKEW_DATA.")
]
MAX_SEEDS_IN_RANGE = 10_000
"""A longer range in --seeds is taken for a typing error."""


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"unskew {version('unskew')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
]


def before_any_command(version: Version = False) -> None:
    """Options of the command itself."""


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds such as 0,1,2 or 0-4."""
    try:
        seeds: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            several = range(int(first), int(last or first) + 1)
            if not 1 <= len(several) <= MAX_SEEDS_IN_RANGE:
                raise ValueError
            seeds.extend(several)
        return tuple(seeds)
    except (ValueError, OverflowError):
        raise UnskewError(f'--seeds "{text}" must look like 0,1,2 or 0-4.') from None


def parse_pairs(pairs: list[str], option: str) -> dict[str, str]:
    """Parse key=value pairs; ``option`` names their option in errors."""
    parsed = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UnskewError(f'{option} "{pair}" must look like key=value.')
        parsed[key.strip()] = value.strip()
    return parsed
