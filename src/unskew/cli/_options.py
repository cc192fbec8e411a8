"""Options shared by several commands, and the run specification they describe."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Context, Exit, Option, echo

from unskew.types import UnskewError

if TYPE_CHECKING:
    from unskew.runs import RunSpec

Json = Annotated[bool, Option("--json", help="Print one JSON object, nothing else.")]
Threads = Annotated[int, Option(help="Threads (0: all cores). Changes the time only.", min=0)]
DataDir = Annotated[
    Path | None, Option(help="Folder with <name>/ratings.csv; default $UNSKEW_DATA.")
]
Method = Annotated[
    str | None, Option(help="See `unskew methods`, or package.module:Class; default fednext.")
]
MethodOfRun = Annotated[
    str | None,
    Option(
        "--method",
        help="package.module:Class of a run whose method no installed package announces.",
    ),
]
Data = Annotated[str | None, Option(help="A source's name or a file; default demo.")]
Protocol = Annotated[
    str | None,
    Option(help="leak-free (default), sequential, ratio, time or paper; how to split and rank."),
]
Preset = Annotated[
    str | None, Option(help="Settings recorded for a data set, for example ml-100k.")
]
Settings = Annotated[
    list[str] | None, Option("--set", help="A setting of the method: key=value; may repeat.")
]
Rounds = Annotated[int | None, Option(help="Global rounds; default: the method's own.")]
Seeds = Annotated[str | None, Option(help="For example 0,1,2 or 0-4; default 0.")]
Seed = Annotated[int, Option(help="Seed of all random draws.", min=0)]
Columns = Annotated[str | None, Option(help="For your own file: user=uid,item=movie,timestamp=ts.")]
SkipBadRows = Annotated[bool, Option("--skip-bad-rows", help="Drop and count bad rows.")]
MinUserRows = Annotated[int | None, Option(help="Leave out users with fewer rows.", min=1)]
Train = Annotated[
    str | None, Option(help="Your own split, in place of --data: the file of training rows.")
]
Validation = Annotated[str | None, Option(help="With --train: the file of validation rows.")]
Test = Annotated[str | None, Option(help="With --train: the file of test rows.")]
Cutoffs = Annotated[str | None, Option("--k", help="Cut-offs of metrics, for example 1,10,100.")]
ItemFeatures = Annotated[
    str | None, Option(help="Table of items and their features, for methods that need them.")
]
EvaluateEvery = Annotated[
    int | None, Option(help="Evaluate after every so many rounds and the last; default 1.", min=1)
]
EvaluateUsers = Annotated[
    int | None,
    Option(help="Users evaluated between rounds, drawn once; at the end everybody is.", min=1),
]
StateOnDisk = Annotated[
    bool | None,
    Option(
        "--state-on-disk/--state-in-memory",
        help="Where devices' private state is kept; default: on disk what does not fit.",
    ),
]
Ray = Annotated[
    str | None,
    Option(
        "--ray",
        metavar="ADDRESS",
        help="Train on a Ray cluster: its address, auto, or local (a worker per core here).",
    ),
]
K = Annotated[int, Option("-k", help="How many items to recommend.", min=1)]
"""The option ``-k`` of commands that recommend items."""
Rows = Annotated[Path | None, Option(help="JSON lines to add the rows to.")]
LdpNoise = Annotated[
    float | None, Option(help="Noise on every upload: the paper's lambda.", min=0.0)
]
LdpEpsilon = Annotated[
    float | None, Option(help="A budget in place of --ldp-noise; needs --ldp-clip.")
]
LdpDelta = Annotated[float | None, Option(help="The delta of epsilon (default 1e-5).")]
LdpClip = Annotated[float | None, Option(help="Bound on an upload's norm; no guarantee without.")]
LdpNorm = Annotated[str | None, Option(help="What the clip bounds: l1 (default), l2 or row.")]
LdpKind = Annotated[str | None, Option(help="laplace, or gaussian (default with --ldp-norm l2).")]
LdpLeastUsers = Annotated[
    int | None,
    Option(help="Send no rows of items that fewer users than this have.", min=1),
]
Track = Annotated[
    list[str] | None,
    Option(help="Also log to tensorboard, mlflow or wandb; may repeat."),
]
TrackDir = Annotated[Path | None, Option(help="Where trackers write; default RUN/track.")]
MAX_SEEDS_IN_RANGE = 10_000
"""Maximum number of seeds in a range such as 0-4 of --seeds; a longer range is an error."""


def _print_version(asked: bool) -> None:
    if asked:
        echo(f"unskew {version('unskew')}")
        raise Exit


Version = Annotated[
    bool,
    Option("--version", help="Print the version.", callback=_print_version, is_eager=True),
]


def before_any_command(version: Version = False) -> None:
    """Handle the options of ``unskew`` that come before any subcommand."""


def run_spec(context: Context, **replaced: Any) -> RunSpec:
    """Build the run specification from the options of the called command.

    Options that the command does not have, or that were not given, keep the defaults of
    ``RunSpec``. ``replaced`` overrides options, by the names of the command's parameters."""
    from unskew.methods import admit_method, preset
    from unskew.runs import RunSpec, read_toml

    options = {**context.params, **replaced}
    options = {key: value for key, value in options.items() if value not in (None, (), {})}
    if "method" in options:  # named by the user on this call, unlike a method in a file
        admit_method(options["method"])
    values = read_toml(Path(options["config"])) if "config" in options else {}
    fields = RunSpec.__dataclass_fields__
    values |= {key: value for key, value in options.items() if key in fields and value is not False}
    if "seeds" in options:
        values["seeds"] = parse_seeds(options["seeds"])
    if "cutoffs" in options:
        values["cutoffs"] = parse_cutoffs(options["cutoffs"])
    if "columns" in options:
        values["columns"] = parse_pairs(options["columns"].split(","), "--columns")
    settings = values.get("settings", {}) | parse_pairs(options.get("set_", ()), "--set")
    if "preset" in options:
        settings = {**preset(values.get("method", RunSpec.method), options["preset"]), **settings}
    if "rounds" in options:
        settings["rounds"] = options["rounds"]
    ldp = values.get("ldp", {}) | ({} if "ldp" in replaced else ldp_options(context))
    if "least_users" in ldp and not {"noise", "epsilon"} & ldp.keys():
        ldp["noise"] = 0.0
    return RunSpec.from_mapping(values | {"settings": settings, "ldp": ldp or None})


def method_option(spec: RunSpec) -> list[str]:
    """Arguments ``--method package.module:Class`` for a suggested command. Empty if the run's
    method has a registered name."""
    return ["--method", spec.method] if ":" in spec.method else []


def ldp_options(context: Context) -> dict[str, Any]:
    """The given ``--ldp-...`` options (local differential privacy) by field of ``LocalPrivacy``."""
    given = {key: value for key, value in context.params.items() if value is not None}
    return {key[4:]: value for key, value in given.items() if key.startswith("ldp_")}


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


def parse_cutoffs(text: str) -> tuple[int, ...]:
    """Parse cut-offs such as 1,10,100."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UnskewError(f'--k "{text}" must look like 1,10,100.') from None


def parse_pairs(pairs: Iterable[str], option: str) -> dict[str, str]:
    """Parse key=value pairs; ``option`` is the option's name for error messages."""
    parsed = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UnskewError(f'{option} "{pair}" must look like key=value.')
        parsed[key.strip()] = value.strip()
    return parsed
