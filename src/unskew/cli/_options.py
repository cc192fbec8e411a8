"""Options and their parsing, shared by the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.types import UnskewError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]
Threads = Annotated[int, typer.Option(help="Threads (0: all cores). Changes the time only.", min=0)]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with <name>/ratings.csv; default $UNSKEW_DATA.")
]


def parse_seeds(text: str) -> tuple[int, ...]:
    try:
        seeds: list[int] = []
        for part in text.split(","):
            first, _, last = part.partition("-")
            seeds.extend(range(int(first), int(last or first) + 1))
        return tuple(seeds)
    except ValueError:
        raise UnskewError(f'--seeds "{text}" must look like 0,1,2 or 0-4.') from None


def parse_pairs(pairs: list[str], option: str) -> dict[str, str]:
    parsed = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UnskewError(f'{option} "{pair}" must look like key=value.')
        parsed[key.strip()] = value.strip()
    return parsed
