"""Training a method while a curious server watches: one row per method and strength of noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unskew.audit import CuriousServer, Shadows, measure
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.experiments._private import account, mechanism_of
from unskew.experiments._spec import RunSpec
from unskew.kernels.mlp import score_mlp
from unskew.methods import METHODS
from unskew.privacy import LocalPrivacy, PrivateUploads
from unskew.rng import Purpose, generator
from unskew.types import Float32, Float64, Int64, Interactions, Rows, Split, UnskewError

NOISES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
"""The paper's noise strengths."""
TARGETS = 150
"""Users attacked; enough for intervals of a few thousandths."""
SPANS = ("one round", "whole run")
OnRound = Callable[[int, dict[str, Any], int], None]


def federated_methods() -> list[str]:
    """The methods whose clients send anything."""
    names = (name for name, method in METHODS.items() if method.aggregation != "central")
    return [name for name in names if name != "local"]


def audit_privacy(
    spec: RunSpec,
    interactions: Interactions,
    *,
    targets: int = TARGETS,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Train ``spec``'s first seed under the eyes of the server; what it found out, as JSON."""
    method = spec.build()
    if method.aggregation == "central":
        raise UnskewError(
            f"{spec.method} is not federated: its server has the interactions to begin with. "
            f"Choose one of {', '.join(federated_methods())}."
        )
    split, seed = prepare(interactions, spec.protocol), spec.seeds[0]
    mechanism = mechanism_of(spec, split)
    device = None if mechanism is None else PrivateUploads(mechanism)
    shadow_device = None if mechanism is None else PrivateUploads(mechanism)
    chosen = _chosen(split, targets, seed)
    popularity = np.bincount(split.seen.items, minlength=split.n_items)
    rounds = method.config.rounds
    plan = Federation(method, split, seed)
    server = CuriousServer(
        chosen,
        split.n_items,
        [plan.cohort_of(round) for round in range(1, rounds + 1)],
        device=device,
        shadow_device=shadow_device,
        noise=0.0 if mechanism is None else mechanism.noise,
        shadows=Shadows(method, split.n_items, popularity, split.n_users, seed),
        invert_dense=_network_inversion(method, split, seed),
    )
    federation = Federation(method, split, seed, transform=server)
    state = federation.start()
    while state.round < rounds:
        server.begin_round(method.download(state.server), state.round + 1, seed)
        row = federation.step(state)
        server.end_round(state.round)
        if device is not None:
            row["ldp"] = device.round_figures()
        if on_round is not None:
            on_round(seed, row, rounds)
    owned = _owned(split, chosen)
    quality = {
        "best_round": state.best_round,
        **{f"best_{k}": v for k, v in _headline(state.best_scoreboard.means("test")).items()},
        **{f"last_{k}": v for k, v in _headline(state.scoreboard.means("test")).items()},
    }
    secure: dict[str, Any] = {
        "refused": f"{spec.method}'s server needs every upload by itself, not their sum"
    }
    if method.aggregation == "sum":
        secure = _measured(server.findings(secure=True), owned)
    private = {}
    if spec.ldp is not None and mechanism is not None:
        private = {"privacy": account(spec.ldp, mechanism, federation, state.rows)}
    return {
        "method": spec.method,
        "settings": dict(spec.settings),
        "data": spec.data,
        "protocol": spec.protocol,
        "seed": seed,
        "noise": 0.0 if mechanism is None else mechanism.noise,
        "ldp": spec.to_json()["ldp"],
        "rounds": rounds,
        "participation": method.config.participation,
        "users": split.n_users,
        "items": split.n_items,
        "attacked": len(chosen),
        "quality": quality,
        "popularity_alone": measure(
            np.tile(popularity.astype(np.float64), (len(chosen), 1)), owned
        ).as_json(),
        "single_uploads": _measured(server.findings(secure=False), owned),
        "secure_aggregation": secure,
        **private,
    }


def with_noise(spec: RunSpec, noise: float, options: Mapping[str, Any] | None = None) -> RunSpec:
    """The same run under noise of this strength, clipped if ``options`` say so."""
    plain = noise == 0 and not options
    return replace(spec, ldp=None if plain else LocalPrivacy(noise=noise, **(options or {})))


def strongest(view: Mapping[str, Any], span: str) -> tuple[str, dict[str, Any]] | None:
    """The attack of a view that finds out most about single users, by personal AUC (of equals the
    one with the highest AUC), and its figures."""
    attacks = view.get(span, {})
    known = {n: f for n, f in attacks.items() if f["users"]}
    if not known:
        return None
    name = max(known, key=lambda a: (known[a]["personal_auc"]["mean"], known[a]["auc"]["mean"]))
    return name, known[name]


def privacy_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table: what each method gives away at each strength of noise."""
    lines = [
        "| method | λ | NDCG@10 | one upload: AUC | whole run: AUC (attack) | precision | "
        "recovered | secure aggregation: personal AUC (AUC) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(table_cells(row)) + " |" for row in rows]
    return "\n".join(lines)


def table_cells(row: Mapping[str, Any]) -> list[str]:
    """A row's figures as text, in the order of the table's columns."""
    one, whole = (best(row["single_uploads"], span) for span in SPANS)
    secure_view = row["secure_aggregation"]
    secure = "refused: needs single uploads"
    if "refused" not in secure_view:
        found = strongest(secure_view, "whole run") or strongest(secure_view, "one round")
        secure = "–"
        if found:
            secure = f"{_with_interval(found[1]['personal_auc'])} ({found[1]['auc']['mean']:.3f})"
    full = row["participation"] == 1.0
    name = row["method"] + (", full cohort" if full else "")
    return [
        name,
        _noise_text(row),
        f"{row['quality']['best_ndcg@10']:.4f}",
        "–" if one is None else _with_interval(one[1]["auc"]),
        "–" if whole is None else f"{_with_interval(whole[1]['auc'])} ({whole[0]})",
        "–" if whole is None else f"{whole[1]['precision']['mean']:.3f}",
        "–" if whole is None else f"{whole[1]['recovered']['mean']:.0%}",
        secure,
    ]


def best(view: Mapping[str, Any], span: str) -> tuple[str, dict[str, Any]] | None:
    """The attack with the highest AUC over all items."""
    known = {n: f for n, f in view.get(span, {}).items() if f["users"]}
    if not known:
        return None
    name = max(known, key=lambda attack: float(known[attack]["auc"]["mean"]))
    return name, known[name]


def _noise_text(row: Mapping[str, Any]) -> str:
    """The strength of noise; of what kind and with which clip where there is one."""
    text = f"{row['noise']:.3g}"
    account = row.get("privacy", {})
    if account.get("clip") is None:
        return text
    return f"{text} {account['kind']}, {account['norm']} clip {account['clip']:g}"


def _with_interval(figure: Mapping[str, float]) -> str:
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def _chosen(split: Split, targets: int, seed: int) -> Int64:
    users = generator(seed, Purpose.AUDIT_DATA, 3).permutation(split.n_users)[:targets]
    return np.sort(users).astype(np.int64)


def _owned(split: Split, users: Int64) -> Any:
    owned = np.zeros((len(users), split.n_items), bool)
    for at, user in enumerate(users):
        owned[at, split.seen.of(int(user))] = True
    return owned


def _measured(findings: Mapping[tuple[str, str], Float64], owned: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (attack, span), scores in findings.items():
        found.setdefault(span, {})[attack] = measure(scores, owned).as_json()
    return found


def _network_inversion(method: Any, split: Split, seed: int) -> Any:
    """(e) Where a network is shared (FedNCF): how much a client's upload makes it favour each item,
    for the user vector every device started with."""
    server, private = method.init(1, split.n_items, seed)
    if not hasattr(server, "mlp"):
        return None

    def favours(download: Any, dense: Float32) -> Float64:
        n = len(dense)
        p = np.repeat(private.p[:1], n, axis=0)
        none = Rows.empty(n, download.Q.shape[1])
        after, before = (
            score_mlp(download.Q, p, np.ascontiguousarray(mlp), none)
            for mlp in (download.mlp + dense, np.tile(download.mlp, (n, 1)))
        )
        return (after - before).astype(np.float64)

    return favours


def _headline(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in ("hr@10", "ndcg@10")}
