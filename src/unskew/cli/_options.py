"""Options and their parsing, shared by the commands."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from unskew.types import UnskewError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, nothing else.")]
Threads = Annotated[int, typer.Option(help="Threads (0: all cores). Changes the time only.", min=0)]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with <name>/ratings.csv; default $UNSKEW_DATA.")
]
MethodName = Annotated[str | None, typer.Option(help="See `unskew methods`.")]
DataName = Annotated[str | None, typer.Option(help="A source's name or a file.")]
ProtocolName = Annotated[str | None, typer.Option(help="leak-free, time or paper.")]
Preset = Annotated[str | None, typer.Option(help="Settings recorded for a data set.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="key=value")]
Rounds = Annotated[int | None, typer.Option(help="Global rounds.", min=1)]
Seed = Annotated[int, typer.Option(min=0)]
Columns = Annotated[
    str | None, typer.Option(help="For your own file: user=uid,item=movie,timestamp=ts.")
]
SkipBadRows = Annotated[bool, typer.Option("--skip-bad-rows", help="Drop and count bad rows.")]
MinUserRows = Annotated[int | None, typer.Option(help="Leave out users with fewer rows.", min=1)]
Rows = Annotated[Path | None, typer.Option(help="JSON lines to add the rows to.")]
LdpNoise = Annotated[
    float | None, typer.Option(help="Noise on every upload: the paper's lambda.", min=0.0)
]
LdpEpsilon = Annotated[
    float | None, typer.Option(help="A budget in place of --ldp-noise; needs --ldp-clip.")
]
LdpDelta = Annotated[float | None, typer.Option(help="The delta of epsilon (default 1e-5).")]
LdpClip = Annotated[
    float | None, typer.Option(help="Bound on an upload's norm; no guarantee without.")
]
LdpNorm = Annotated[str | None, typer.Option(help="What the clip bounds: l1 (default), l2 or row.")]
LdpKind = Annotated[
    str | None, typer.Option(help="laplace, or gaussian (default with --ldp-norm l2).")
]
LdpLeastUsers = Annotated[
    int | None,
    typer.Option(help="Send no rows of items that fewer users than this have.", min=1),
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


def parse_columns(text: str | None) -> dict[str, str] | None:
    """Parse --columns."""
    return None if text is None else parse_pairs(text.split(","), "--columns")


def gather_ldp(
    noise: float | None,
    epsilon: float | None,
    delta: float | None,
    clip: float | None,
    norm: str | None,
    kind: str | None,
    least_users: int | None = None,
) -> dict[str, Any]:
    """The privacy options that were given; --ldp-least-users works without noise."""
    if least_users is not None and noise is None and epsilon is None:
        noise = 0.0
    names = ("noise", "epsilon", "delta", "clip", "norm", "kind", "least_users")
    values = (noise, epsilon, delta, clip, norm, kind, least_users)
    return {k: v for k, v in zip(names, values, strict=True) if v is not None}
