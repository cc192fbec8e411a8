"""``unskew audit``: evaluation leaks, attacks on uploads, and the skew of user vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Exit, Option, Typer

from unskew.audit import CHANCE, LeakAudit, audit_leak
from unskew.audit.hostile import ATTACKS
from unskew.audit.privacy import (
    NOISES,
    TARGETS,
    audit_privacy,
    privacy_command,
    privacy_tables,
    trade_off_chart,
    with_noise,
)
from unskew.audit.robustness import (
    DEFENCES,
    HOSTILE,
    audit_robustness,
    robustness_command,
    robustness_table,
    threats,
)
from unskew.audit.skew import VARIANTS, SkewSpec, audit_skew, findings, skew_table
from unskew.cli import _options as opt
from unskew.cli._output import RoundProgress, load_data, print_json, print_table, stderr, stdout
from unskew.cli._run import print_privacy
from unskew.display import draw_svg, to_markdown
from unskew.engine.robust import MAX_LOST_ROWS
from unskew.files import append_json_line, write_text
from unskew.kernels import set_threads
from unskew.methods import admit_method, find_method, short_name
from unskew.paper import fill_table, read_rows
from unskew.runs import RunSpec, read_spec
from unskew.types import UnskewError

app = Typer(
    help="Audits: does the evaluation leak, what do uploads give away?", no_args_is_help=True
)


@app.command()
def privacy(
    context: Context,
    target: Annotated[
        str | None, Argument(metavar="[RUN or METHOD]", help="A run's folder or a method.")
    ] = None,
    method: Annotated[
        str | None, Option(help="See `unskew methods`, or package.module:Class; default pfedclr.")
    ] = None,
    data: opt.Data = None,
    protocol: opt.Protocol = None,
    noise: Annotated[
        str | None, Option(help="Noise strengths, comma-separated; default the paper's.")
    ] = None,
    ldp_epsilon: opt.LdpEpsilon = None,
    ldp_delta: opt.LdpDelta = None,
    ldp_clip: opt.LdpClip = None,
    ldp_norm: opt.LdpNorm = None,
    ldp_kind: opt.LdpKind = None,
    ldp_least_users: opt.LdpLeastUsers = None,
    set_: opt.Settings = None,
    preset: opt.Preset = None,
    rounds: opt.Rounds = None,
    users: Annotated[int, Option(help="Users attacked.", min=2)] = TARGETS,
    seed: Annotated[int | None, Option(min=0)] = None,
    rows: opt.Rows = None,
    picture: Annotated[
        Path | None, Option(help="An SVG of quality against attack success.")
    ] = None,
    doc: Annotated[Path | None, Option(help="A page whose table of the rows is made anew.")] = None,
    data_dir: opt.DataDir = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Train while an honest-but-curious server watches: what do the uploads give away?

    A run is audited with its own privacy settings (--method then names its class, if no installed
    package announces it); a method at the paper's noise strengths.
    """
    set_threads(threads)
    ldp = opt.ldp_options(context)
    if "epsilon" in ldp and noise is not None:
        raise UnskewError("--ldp-epsilon sets the noise by itself; leave out --noise.")
    strengths: list[float | None] = (
        [*NOISES] if noise is None else [*_parse_numbers("--noise", noise)]
    )
    if target is not None and (Path(target) / "run.json").exists():
        named = ("data", "protocol", "set_", "preset", "rounds")
        given = [name.strip("_") for name in named if context.params[name]]
        for name in (*given, *(f"ldp-{key}" for key in ldp)):
            raise UnskewError(
                f"--{name} cannot stand beside a run, which is audited as it was; "
                "give a method's name instead."
            )
        spec, _ = read_spec(Path(target), method)
        spec = replace(spec, seeds=(spec.seeds[0] if seed is None else seed,))
        strengths = [None] if noise is None else strengths
    else:
        budget = ldp if "epsilon" in ldp else {}
        name = _method_name(target, method)
        spec = opt.run_spec(context, method=name, seeds=str(seed or 0), ldp=budget)
        strengths = [None] if budget else strengths
    interactions = load_data(spec, data_dir)
    found: list[dict[str, Any]] = []
    for strength in strengths:
        one = spec if strength is None else with_noise(spec, strength, ldp)
        with RoundProgress(
            f"audit of {short_name(one.method)}, noise {'own' if strength is None else strength}"
        ) as progress:
            audit = partial(audit_privacy, one, interactions, targets=users, on_round=progress)
            found.append(_find_row(rows, privacy_command(one, users), audit))
    everything = found if rows is None else read_rows(rows)
    if picture is not None:
        write_text(picture, draw_svg(trade_off_chart(everything)))
        stderr.print(f"Picture: {picture}")
    if doc is not None:
        fill_table(doc, "\n\n".join(map(to_markdown, privacy_tables(everything))))
    if json:
        print_json({"audits": found})
        return
    _print_privacy(found)


def _method_name(target: str | None, method: str | None) -> str:
    if target is not None:
        try:
            admit_method(target)
        except UnskewError as error:
            if ":" in target:
                raise
            raise UnskewError(
                f'"{target}" is neither the folder of a run nor a method; see `unskew methods`.'
            ) from error
    if target is not None and method not in (None, target):
        raise UnskewError(f"{target} and --method {method} are two methods; give one of them.")
    return target or method or "pfedclr"


def _find_row(
    rows: Path | None, command: str, audit: Callable[[], dict[str, Any]], again: bool = False
) -> dict[str, Any]:
    """Return the result that is saved in the file ``rows`` for ``command``. If there is none, or if
    ``again`` is true, run the audit and save its result."""
    for row in [] if rows is None or again else read_rows(rows):
        if row["command"] == command:
            return row
    row = {"command": command, **audit()}
    if rows is not None:
        append_json_line(rows, row)
    return row


def _parse_numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UnskewError(f'{option} "{text}" must look like 0,0.1,0.5.') from None


def _print_privacy(rows: list[dict[str, Any]]) -> None:
    for table in privacy_tables(rows):
        names = [column.name for column in table.columns]
        lines = [[cell.line for cell in row] for row in table.rows]
        if lines:
            print_table(names, lines, title=table.about)
    first = rows[0]
    if "refused" in first["secure_aggregation"]:
        stdout.print(f"Secure aggregation: {first['secure_aggregation']['refused']}.")
    popular = first["popularity_alone"]["auc"]["mean"]
    stdout.print(
        f"{first['attacked']} users attacked. AUC: a user's item scores above one it lacks; "
        "personal AUC: higher for this user than for users who lack it (0.5: chance for both). "
        f"Popularity alone has AUC {popular:.3f}. In brackets: 95 % intervals."
    )
    for row in rows:
        if "privacy" in row:
            print_privacy(row["privacy"])


@app.command()
def robustness(
    context: Context,
    method: Annotated[
        str, Option(help="See `unskew methods`, or package.module:Class.")
    ] = "fedrefit",
    data: opt.Data = None,
    protocol: opt.Protocol = None,
    hostile: Annotated[str, Option(help="Shares of hostile nodes, comma-separated.")] = ",".join(
        map(str, HOSTILE)
    ),
    defence: Annotated[str, Option(help=f"Comma-separated: {', '.join(DEFENCES)}.")] = "none,rows",
    attack: Annotated[
        str, Option(help=f"Comma-separated: none, {', '.join(ATTACKS)}.")
    ] = "none,promote-adaptive,degrade-adaptive",
    nodes: Annotated[
        int | None, Option(help="Divide the users into so many nodes; default: one per user.")
    ] = None,
    trim: Annotated[float, Option(help="For trimmed: share of nodes left out per end.")] = 0.2,
    set_: opt.Settings = None,
    preset: opt.Preset = None,
    rounds: opt.Rounds = None,
    evaluate_every: opt.EvaluateEvery = None,
    seed: opt.Seed = 0,
    rows: opt.Rows = None,
    doc: Annotated[Path | None, Option(help="A page whose table of the rows is made anew.")] = None,
    data_dir: opt.DataDir = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Train while some nodes are hostile: how far can they push an item or spoil the model?"""
    set_threads(threads)
    shares = _parse_numbers("--hostile", hostile)
    planned = threats(attack.split(","), shares, defence.split(","), nodes=nodes, trim=trim)
    spec = opt.run_spec(context, seeds=str(seed))
    interactions = load_data(spec, data_dir)
    found: list[dict[str, Any]] = []
    for threat in planned:
        label = f"{short_name(spec.method)}, {threat.defence}, {threat.attack}"
        with RoundProgress(f"{label} {threat.hostile:.0%}") as progress:
            audit = partial(audit_robustness, spec, threat, interactions, on_round=progress)
            found.append(_find_row(rows, robustness_command(spec, threat), audit))
    if doc is not None:
        everything = found if rows is None else read_rows(rows)
        fill_table(doc, to_markdown(robustness_table(everything)))
    if json:
        print_json({"audits": found})
        return
    table = robustness_table(found)
    names = [column.name for column in table.columns]
    print_table(names, [[cell.line for cell in row] for row in table.rows])
    target = found[0]["target"]
    stdout.print(
        f"ER@10: share of honest users who are recommended item {target['item']}, which "
        f"{target['users']} users have. NDCG@10: of honest users, validation and test items."
    )
    for rule in {row["defence"]: row for row in found if row["lost_rows"] > MAX_LOST_ROWS}.values():
        stdout.print(
            f"{rule['defence']} removed {rule['lost_rows']:.0%} of the item rows that nodes sent, "
            "because few nodes send rows of the same items: it does not suit these nodes."
        )


@app.command()
def leak(
    method: Annotated[
        str, Option(help="See `unskew methods`, or package.module:Class.")
    ] = "pfedclr",
    protocol: Annotated[
        str | None, Option(help="One protocol; default: leak-free and paper.")
    ] = None,
    set_: opt.Settings = None,
    seed: opt.Seed = 0,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Train on random interactions: a hit rate above chance shows that the evaluation leaks.

    Exits with 1 if a protocol named with --protocol leaks.
    """
    set_threads(threads)
    admit_method(method)
    settings = opt.parse_pairs(set_ or [], "--set")
    audits = []
    for name in (protocol,) if protocol else ("leak-free", "paper"):
        with RoundProgress(f"{short_name(method)} on noise, {name}") as progress:
            audits.append(audit_leak(method, settings, name, seed, progress))
    if json:
        print_json({"method": method, "audits": [audit.to_json() for audit in audits]})
    else:
        print_table(
            ["protocol", "HR@10 best round", "last round", "chance", "verdict"],
            [_leak_cells(audit) for audit in audits],
            title=f"{method} on random interactions, {audits[0].n_users} users",
        )
        stdout.print(
            "There is nothing to learn in this data: a hit rate whose 95 % interval lies above "
            "chance means that the protocol tells the method which item is held out."
        )
    if protocol and audits[0].leaks:
        raise Exit(1)


def _leak_cells(audit: LeakAudit) -> list[str]:
    verdict = "LEAKS" if audit.leaks else "at chance"
    rates = [f"{r.mean:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in (audit.best, audit.last)]
    return [audit.protocol, *rates, f"{CHANCE:.2f}", verdict]


@app.command()
def skew(
    methods: Annotated[
        str, Option(help=f"Comma-separated; some of {', '.join(VARIANTS)}.")
    ] = ",".join(VARIANTS),
    data: Annotated[str, Option(help="A source's name or a file.")] = "demo",
    protocol: Annotated[str, Option(help="leak-free, time or paper.")] = "leak-free",
    rounds: Annotated[int, Option(help="Global rounds.", min=1)] = 20,
    clients: Annotated[int, Option(help="Clients looked at.", min=1)] = 200,
    seed: opt.Seed = 0,
    set_: Annotated[
        list[str] | None, Option("--set", help="key=value, for methods that have the key.")
    ] = None,
    rows: opt.Rows = None,
    each: Annotated[
        Path | None, Option(help="JSON lines with a line per round and client.")
    ] = None,
    skip_bad_rows: opt.SkipBadRows = False,
    data_dir: opt.DataDir = None,
    threads: opt.Threads = 0,
    json: opt.Json = False,
) -> None:
    """Measure how far aggregation shifts user gradients (skew), against the paper's lemmas."""
    set_threads(threads)
    names = methods.split(",")
    for name in names:
        if name not in VARIANTS:
            raise UnskewError(f'There is no skew of "{name}" here; give {", ".join(VARIANTS)}.')
    given = opt.parse_pairs(set_ or [], "--set")
    settings: dict[str, dict[str, Any]] = {}
    for name in names:
        fields = find_method(VARIANTS[name].method).Config.__dataclass_fields__
        settings[name] = {key: value for key, value in given.items() if key in fields}
    for key in given:
        if not any(key in chosen for chosen in settings.values()):
            raise UnskewError(f"--set {key}: none of {methods} has it; see `unskew methods`.")
    spec = RunSpec(data=data, protocol=protocol, skip_bad_rows=skip_bad_rows)
    interactions = load_data(spec, data_dir)
    found: list[dict[str, Any]] = []
    for name in names:
        measured = SkewSpec(name, data, protocol, rounds, clients, seed, settings[name])
        on_client = None if each is None else partial(append_json_line, each)
        audit = partial(audit_skew, measured, interactions, _print_skew_round, on_client)
        found.append(_find_row(rows, measured.command, audit, again=each is not None))
    if json:
        print_json({"audits": found})
        return
    stdout.print(to_markdown(skew_table(found)), markup=False, soft_wrap=True)
    for row in found:
        stdout.print(f"\n{row['variant']}", style="bold")
        for sentence in findings(row):
            stdout.print(f"- {sentence}", markup=False)


def _print_skew_round(name: str, line: dict[str, Any]) -> None:
    stderr.print(
        f"{name}: round {line['round']}, {line['clients']} clients, skew "
        f"{line['skew_of_pull']:.1%} of the pull, formula's correlation {line['correlation']:.2f} "
        f"and error {line['error']:.0%}, left {line['left']:.0%}"
    )
