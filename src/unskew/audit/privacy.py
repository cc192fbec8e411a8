"""The privacy audit: train a method while a curious server attacks its uploads.

Each noise strength gives one result (a JSON object): the run, its quality, and the success of every
attack on individual uploads and on sums of uploads (secure aggregation).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.audit.attacks import Shadows, item_matrix, measure, owner_success
from unskew.audit.server import SPANS, CuriousServer
from unskew.display import MISSING, Cell, Chart, Panel, Series, Table
from unskew.engine import Federation, State
from unskew.evaluation import prepare
from unskew.methods import METHODS
from unskew.privacy import LocalPrivacy
from unskew.ragged import owners, select
from unskew.rng import Purpose, generator
from unskew.runs import OnRound, RunSpec, noise_mechanism, privacy_account, private_uploads
from unskew.types import Bool, Float64, Int64, Interactions, Split, UnskewError

Row = Mapping[str, Any]
NOISES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
"""Strengths of Laplace noise (lambda) that the paper reports."""
TARGETS = 150
"""Number of users whose uploads the privacy audit attacks by default."""


def audit_privacy(
    spec: RunSpec,
    interactions: Interactions,
    *,
    targets: int = TARGETS,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Train the first seed of ``spec`` and attack ``targets`` users' uploads; returns JSON."""
    method = spec.build()
    if method.aggregation == "central":
        raise UnskewError(
            f"{spec.method} is not federated: its server has the interactions to begin with. "
            "Choose a federated method, see `unskew methods`."
        )
    split, seed = prepare(interactions, spec.evaluation), spec.seeds[0]
    mechanism = noise_mechanism(spec, split)
    noise = 0.0 if mechanism is None else mechanism.noise
    device, shadow_device = (private_uploads(spec, split, mechanism) for _ in range(2))
    users = generator(seed, Purpose.AUDIT_DATA, 3).permutation(split.n_users)[:targets]
    attacked = np.sort(users).astype(np.int64)
    owned = item_matrix(select(split.seen, attacked), split.n_items)
    popularity = np.bincount(split.seen.items, minlength=split.n_items)
    # The rarest items whose rows are sent.
    least = 1 if spec.ldp is None else spec.ldp.least_users or 1
    rare = np.flatnonzero(popularity == least)
    rounds = method.config.rounds
    shadows = Shadows(method, split.n_users, popularity, seed, shadow_device, noise)
    plan = Federation(method, split, seed)
    server = CuriousServer(plan, attacked, rare, shadows, device, noise)
    federation = Federation(method, split, seed, transform=server)

    def before_round(state: State) -> None:
        server.begin_round(method.download(state.server), state.round + 1)

    def after_round(state: State, row: dict[str, Any]) -> None:
        server.end_round(state.round)
        if device is not None:
            row["ldp"] = device.round_figures()
        if on_round is not None:
            on_round(seed, row, rounds)

    state = federation.run(before_round=before_round, on_round=after_round)
    secure: dict[str, Any] = {
        "refused": f"{spec.method}'s server needs every upload by itself, not their sum"
    }
    if method.aggregation == "sum":
        secure = _measure_all(server.findings(secure=True), owned)
        if len(rare):
            secure["rare_items"] = _attack_owners(server, split, rare, popularity)
    account = {}
    if mechanism is not None:
        account = {"privacy": privacy_account(spec, mechanism, federation, state.rows)}
    return {
        "method": spec.method,
        "settings": dict(spec.settings),
        "data": spec.data,
        "protocol": spec.protocol,
        "seed": seed,
        "noise": noise,
        "ldp": spec.to_json()["ldp"],
        "rounds": rounds,
        "participation": method.participation(rounds),
        "users": split.n_users,
        "items": split.n_items,
        "attacked": len(attacked),
        "quality": _quality(state),
        "popularity_alone": measure(_same_for_all(popularity, len(attacked)), owned).to_json(),
        "single_uploads": _measure_all(server.findings(secure=False), owned),
        "secure_aggregation": secure,
        **account,
    }


def with_noise(spec: RunSpec, noise: float, options: Mapping[str, Any] | None = None) -> RunSpec:
    """A copy of ``spec`` with noise of this strength and other privacy ``options`` (clip, norm)."""
    plain = noise == 0 and not options
    return replace(spec, ldp=None if plain else LocalPrivacy(noise=noise, **(options or {})))


def privacy_command(spec: RunSpec, users: int) -> str:
    """The command line that repeats the privacy audit of a run and attacks ``users`` users."""
    parts = ["unskew", "audit", "privacy", "--method", spec.method, "--data", spec.data]
    parts += ["--protocol", spec.protocol, "--seed", str(spec.seeds[0]), "--users", str(users)]
    parts += [f"--set={key}={value}" for key, value in spec.settings.items()]
    if spec.ldp is None:
        return shlex.join([*parts, "--noise", "0"])
    given = {key: value for key, value in spec.to_json()["ldp"].items() if value is not None}
    if "noise" in given:
        parts += ["--noise", f"{given.pop('noise'):g}"]
    if spec.ldp.clip is None:
        given = {key: value for key, value in given.items() if key == "least_users"}
    parts += [f"--ldp-{key.replace('_', '-')}={value}" for key, value in given.items()]
    return shlex.join(parts)


def _same_for_all(popularity: Int64, n_users: int) -> Float64:
    """Item scores (users × items) of the baseline attack: for every user the items' popularity."""
    return np.tile(popularity.astype(np.float64), (n_users, 1))


def _attack_owners(
    server: CuriousServer, split: Split, rare: Int64, popularity: Int64
) -> dict[str, Any]:
    """Success in guessing the other items of a rare item's owners, as JSON: by an attack on sums of
    uploads, and by guessing the most popular items."""
    known = np.flatnonzero(np.isin(split.seen.items, rare))
    items, users = split.seen.items[known].astype(np.int64), owners(split.seen.indptr)[known]
    owned = item_matrix(select(split.seen, users), split.n_items)
    scores = server.owners[np.searchsorted(rare, items)]
    by_popularity = owner_success(_same_for_all(popularity, len(items)), items, owned)
    return owner_success(scores, items, owned) | {
        "users_of_an_item": int(popularity[rare[0]]),
        "owners": len(np.unique(users)),
        "popularity_alone": by_popularity["auc"],
    }


def _measure_all(findings: Mapping[tuple[str, str], Float64], owned: Bool) -> dict[str, Any]:
    """Success as JSON by span ("one round", "whole run") and attack, from scores by both."""
    found: dict[str, Any] = {}
    for (attack, span), scores in findings.items():
        found.setdefault(span, {})[attack] = measure(scores, owned).to_json()
    return found


def _quality(state: State) -> dict[str, float]:
    boards = {"best": state.best_scoreboard.means("test"), "last": state.scoreboard.means("test")}
    figures = {
        f"{name}_{metric}": means[metric]
        for name, means in boards.items()
        for metric in ("hr@10", "ndcg@10")
    }
    return {"best_round": state.best_round, **figures}


def strongest_attack(view: Row, span: str, figure: str = "personal_auc") -> dict[str, Any]:
    """Results of the best attack, with its name under ``by``; empty if there is none. Attacks are
    ranked by the measure named ``figure``, then by AUC. ``view`` is the part ``single_uploads`` or
    ``secure_aggregation`` of the audit's result, ``span`` is "one round" or "whole run"."""
    attacks = [{"by": name, **found} for name, found in view.get(span, {}).items()]
    return max(
        (attack for attack in attacks if attack["users"]),
        key=lambda attack: (attack[figure]["mean"], attack["auc"]["mean"]),
        default={},
    )


_SINGLE_COLUMNS = (
    *("method", "λ", "NDCG@10", "one upload: AUC", "precision", "recovered"),
    *("whole run: AUC", "by", "precision", "recovered"),
)
"""Table columns for attacks on individual uploads; "by": strongest attack, λ: noise strength."""
_SUM_COLUMNS = (
    *("method", "λ", "one round: personal AUC", "AUC", "whole run: personal AUC", "by"),
    *("of the heaviest tenth", "AUC", "owner of a rare item: AUC", "precision"),
)
"""Table columns for attacks on sums of uploads; "by": strongest attack, λ: noise strength,
"personal": only what is beyond popularity counts, "heaviest tenth": users with most items."""


def _single_cells(row: Row) -> list[Cell]:
    """Table row on attacks on individual uploads, from a result; see ``_SINGLE_COLUMNS``."""
    one, whole = (strongest_attack(row["single_uploads"], span, "auc") for span in SPANS)
    return [
        *_name_cells(row),
        Cell.number(row["quality"]["best_ndcg@10"]),
        *_figure_cells(one, "auc", "precision", "recovered"),
        *_figure_cells(whole, "auc", "by", "precision", "recovered"),
    ]


def _sum_cells(row: Row) -> list[Cell]:
    """Table row on attacks on sums of uploads, from a result; see ``_SUM_COLUMNS``. Each AUC column
    shows the attack that is strongest by that measure."""
    view = row["secure_aggregation"]
    one, whole = (strongest_attack(view, span) for span in SPANS)
    one_plain, whole_plain = (strongest_attack(view, span, "auc") for span in SPANS)
    return [
        *_name_cells(row),
        *_figure_cells(one, "personal_auc"),
        *_figure_cells(one_plain, "auc"),
        *_figure_cells(whole, "personal_auc", "by", "heaviest"),
        *_figure_cells(whole_plain, "auc"),
        *_figure_cells(view.get("rare_items", {}), "auc", "precision"),
    ]


def _name_cells(row: Row) -> list[Cell]:
    """First two cells of a table row: method and cohort, and noise strength with clipping bound, if
    any."""
    name, share = row["method"], row["participation"]
    if share == 1.0:
        name += ", full cohort"
    elif "participation" in row["settings"]:
        name += f", {share:.0%} cohort"
    noise, account = f"{row['noise']:.3g}", row.get("privacy", {})
    if account.get("least_users"):
        noise += f", items of {account['least_users']:g} users or more"
    if account.get("clip") is not None:
        noise += f" {account['kind']}, {account['norm']} clip {account['clip']:g}"
    return [Cell(name, name), Cell(noise, row["noise"])]


def _figure_cells(found: Row, *names: str) -> Iterator[Cell]:
    """Table cells for these keys of an attack's results: its name, or a mean with its interval."""
    for name in names:
        figure = found.get(name)
        if figure is None or isinstance(figure, str):
            yield Cell(figure or MISSING, figure)
        else:
            interval = f"[{figure['low']:.3f}, {figure['high']:.3f}]"
            yield Cell(f"{figure['mean']:.3f}", figure["mean"], interval)


def privacy_tables(rows: Sequence[Row]) -> list[Table]:
    """Tables of attack success if the server sees every upload, and if it sees only sums."""
    ordered = in_table_order(rows)
    sums = [_sum_cells(row) for row in ordered if "refused" not in row["secure_aggregation"]]
    singles = [_single_cells(row) for row in ordered]
    return [
        Table.of(_SINGLE_COLUMNS, singles, about="The server sees every upload:"),
        Table.of(_SUM_COLUMNS, sums, about="Under secure aggregation it sees sums alone:"),
    ]


def in_table_order(rows: Sequence[Row]) -> list[Row]:
    """Results sorted by data set, method, participation, rule for withheld items, and noise."""
    order = {name: at for at, name in enumerate(METHODS)}
    return sorted(
        rows,
        key=lambda row: (
            row["data"],
            order.get(row["method"], len(order)),
            "participation" in row["settings"],
            (row["ldp"] or {}).get("least_users") or 0,
            row["noise"],
        ),
    )


def trade_off_chart(rows: Sequence[Row]) -> Chart:
    """Chart of NDCG@10 against attack success by method, for the first result's data and protocol,
    in two panels: the server sees every upload, or only sums."""
    data, protocol = (rows[0][key] for key in ("data", "protocol"))
    same = [row for row in rows if (row["data"], row["protocol"]) == (data, protocol)]
    views = {"every upload": "single_uploads", "sums alone": "secure_aggregation"}
    panels = [
        Panel(
            f"The server sees {name}",
            "personal AUC (0.5: nothing learned)",
            "NDCG@10, test",
            _trade_offs(same, view),
            from_zero=True,
        )
        for name, view in views.items()
    ]
    title = f"What uploads give away on {Path(data).name} ({protocol} protocol)"
    return Chart(title, tuple(panels))


def _trade_offs(rows: Sequence[Row], view: str) -> tuple[Series, ...]:
    """Chart lines, one per method with a point per noise strength: x is the personal AUC of the
    strongest attack on a whole run, y is test NDCG@10. Runs that clip uploads, withhold items or
    change the participation are left out."""
    points: dict[str, list[tuple[float, float, str]]] = {}
    for row in in_table_order(rows):
        ldp = row["ldp"] or {}
        if ldp.get("clip") or ldp.get("least_users"):
            continue
        found = strongest_attack(row[view], SPANS[1])
        if found and row["settings"].get("participation") is None:
            success = found["personal_auc"]["mean"]
            point = (success, row["quality"]["best_ndcg@10"], f"λ {row['noise']:g}")
            points.setdefault(row["method"], []).append(point)
    lines = []
    for method, found_points in points.items():
        successes, qualities, notes = zip(*found_points, strict=True)
        lines.append(Series(method, method, successes, qualities, notes=notes))
    return tuple(lines)
