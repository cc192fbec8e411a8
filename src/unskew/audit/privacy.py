"""Training a method while a curious server watches: one row per method and strength of noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unskew.audit import CuriousServer, Shadows, measure, of_owners
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.kernels.mlp import score_mlp
from unskew.methods import METHODS
from unskew.privacy import LocalPrivacy
from unskew.ragged import owners
from unskew.rng import Purpose, generator
from unskew.runs import OnRound, RunSpec, noise_mechanism, privacy_account, private_uploads
from unskew.types import Float32, Float64, Int64, Interactions, Rows, Split, UnskewError

NOISES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
"""The paper's noise strengths."""
TARGETS = 150
"""Users attacked; enough for intervals of a few thousandths."""
SPANS = ("one round", "whole run")


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
    mechanism = noise_mechanism(spec, split)
    device, shadow_device = (private_uploads(spec, split, mechanism) for _ in range(2))
    chosen = _chosen(split, targets, seed)
    popularity = np.bincount(split.seen.items, minlength=split.n_items)
    rarest = _rarest(spec, popularity)
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
        rare=rarest,
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
        if len(rarest):
            secure["rare_items"] = _owners_found(server, split, rarest, popularity)
    private = {}
    if spec.ldp is not None and mechanism is not None:
        private = {"privacy": privacy_account(spec, mechanism, federation, state.rows)}
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


SINGLE = (
    *("method", "λ", "NDCG@10", "one upload: AUC", "precision", "recovered"),
    *("whole run: AUC", "by", "precision", "recovered"),
)
SUMS = (
    *("method", "λ", "one round: personal AUC", "AUC", "whole run: personal AUC", "by"),
    *("of the heaviest tenth", "AUC", "owner of a rare item: AUC", "precision"),
)
"""Heads of the two tables: attacks on uploads one by one, and on sums alone."""


def privacy_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Two Markdown tables: what a server learns that sees every upload, and one that sees sums."""
    sums = [sums_cells(row) for row in rows if "refused" not in row["secure_aggregation"]]
    return (
        f"The server sees every upload:\n\n{_markdown(SINGLE, [single_cells(r) for r in rows])}"
        f"\n\nUnder secure aggregation it sees sums alone:\n\n{_markdown(SUMS, sums)}"
    )


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    texts = ["| " + " | ".join(line) + " |" for line in (head, *lines)]
    return "\n".join([texts[0], "|" + "---|" * len(head), *texts[1:]])


def single_cells(row: Mapping[str, Any]) -> list[str]:
    """A row's figures against single uploads as text, in the order of ``SINGLE``."""
    one, whole = (best(row["single_uploads"], span) for span in SPANS)
    return [
        *_named(row),
        f"{row['quality']['best_ndcg@10']:.4f}",
        *(_with_interval(None if one is None else one[1][name]) for name in _FIGURES),
        _with_interval(None if whole is None else whole[1]["auc"]),
        "–" if whole is None else whole[0],
        *(_with_interval(None if whole is None else whole[1][name]) for name in _FIGURES[1:]),
    ]


def sums_cells(row: Mapping[str, Any]) -> list[str]:
    """Those against sums, in the order of ``SUMS``; personal AUC by the attack that has most of it,
    AUC by the one that has most of that."""
    view = row["secure_aggregation"]
    texts = _named(row)
    for span in SPANS:
        found, most = strongest(view, span), best(view, span)
        texts.append(_with_interval(found and found[1]["personal_auc"]))
        if span == SPANS[1]:
            texts.append(found[0] if found else "–")
            texts.append(_with_interval(found and found[1].get("heaviest")))
        texts.append(_with_interval(most and most[1]["auc"]))
    known = view.get("rare_items", {})
    return [*texts, *(_with_interval(known.get(name)) for name in _FIGURES[:2])]


_FIGURES = ("auc", "precision", "recovered")


def _named(row: Mapping[str, Any]) -> list[str]:
    full = row["participation"] == 1.0
    return [row["method"] + (", full cohort" if full else ""), _noise_text(row)]


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
    if account.get("least_users"):
        text += f", items of {account['least_users']:g} users or more"
    if account.get("clip") is None:
        return text
    return f"{text} {account['kind']}, {account['norm']} clip {account['clip']:g}"


def _with_interval(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "–"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"


def _chosen(split: Split, targets: int, seed: int) -> Int64:
    users = generator(seed, Purpose.AUDIT_DATA, 3).permutation(split.n_users)[:targets]
    return np.sort(users).astype(np.int64)


def _owned(split: Split, users: Int64) -> Any:
    owned = np.zeros((len(users), split.n_items), bool)
    for at, user in enumerate(users):
        owned[at, split.seen.of(int(user))] = True
    return owned


def _rarest(spec: RunSpec, popularity: Int64) -> Int64:
    """The items with fewest users among those whose rows are sent, where that is one user or the
    least that was asked for."""
    least = 1 if spec.ldp is None else spec.ldp.least_users or 1
    return np.flatnonzero(popularity == least)


def _owners_found(
    server: CuriousServer, split: Split, rarest: Int64, popularity: Int64
) -> dict[str, Any]:
    """What sums tell about clients who are known to have one of these items; popularity beside."""
    owner = owners(split.seen.indptr)
    known = np.flatnonzero(np.isin(split.seen.items, rarest))
    items, users = split.seen.items[known].astype(np.int64), owner[known]
    owned = _owned(split, users)
    everybody = np.tile(popularity.astype(np.float64), (len(items), 1))
    scores = server.owners[np.searchsorted(rarest, items)]
    return of_owners(scores, items, owned) | {
        "users_of_an_item": int(popularity[rarest[0]]),
        "owners": len(np.unique(users)),
        "popularity_alone": of_owners(everybody, items, owned)["auc"],
    }


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
