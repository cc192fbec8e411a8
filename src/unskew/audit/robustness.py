"""The robustness audit: train a method while some nodes are hostile, and measure what they achieve.

Each combination of attack, share of hostile nodes and defence gives one result (a JSON object): the
exposure of the pushed item, ER@k (the share of honest users without the item who get it among their
first k recommendations), and the quality for honest users. A node is one user by default.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unskew.audit.hostile import ATTACKS, Attack, Attacker, Insider
from unskew.display import MISSING, Cell, Table
from unskew.engine import Federation, Scoreboard, State
from unskew.engine.robust import Robust, lost_rows, mean_updates, robust_sum
from unskew.evaluation import prepare
from unskew.kernels import one_blas_thread
from unskew.privacy import Shape
from unskew.ragged import owners, select
from unskew.rng import Purpose, generator
from unskew.runs import OnRound, RunSpec
from unskew.settings import Settings, setting
from unskew.types import Bool, Int64, Interactions, Method, Split, UnskewError, Uploads

Row = Mapping[str, Any]
HOSTILE = (0.01, 0.05, 0.1)
"""Shares of hostile nodes that are measured by default."""
DEFENCES: tuple[Robust, ...] = ("none", "rows", "clip", "median", "trimmed")
_HOSTILE_DRAW, _TARGET_DRAW = 4, 5
"""Numbers of the random streams for the hostile nodes and the pushed item."""


@dataclass(frozen=True)
class Threat(Settings):
    """Who attacks how, and what the server does about it."""

    attack: Attack = "none"
    hostile: float = setting(0.0, at_most=0.5)
    """Share of the nodes that are hostile."""
    defence: Robust = "none"
    nodes: int | None = setting(None, at_least=2)
    """Number of nodes that the users are divided into; None: one node per user."""
    trim: float = setting(0.2, at_most=0.49)
    """For ``trimmed``: share of nodes left out at each end."""


def audit_robustness(
    spec: RunSpec, threat: Threat, interactions: Interactions, *, on_round: OnRound | None = None
) -> dict[str, Any]:
    """Train the first seed of ``spec`` under this threat; returns JSON."""
    method = spec.build()
    if method.aggregation != "sum":
        raise UnskewError(
            f"{spec.method} has no sum of uploads that could be defended; choose a method whose "
            "aggregation is a sum, see `unskew methods`."
        )
    split, seed = prepare(interactions, spec.evaluation), spec.seeds[0]
    n_nodes = min(threat.nodes or split.n_users, split.n_users)
    node = np.arange(split.n_users) % n_nodes
    hostile = np.zeros(n_nodes, bool)
    n_hostile = max(round(threat.hostile * n_nodes), int(threat.hostile > 0))
    hostile[generator(seed, Purpose.AUDIT_DATA, _HOSTILE_DRAW).permutation(n_nodes)[:n_hostile]] = 1
    target, popularity = _unpopular_item(split, seed)
    attacker = Attacker(method, threat.attack, target)
    attacked = _AttackedRounds(method, attacker, threat, node, hostile)
    federation = Federation(
        attacked,  # type: ignore[arg-type]
        split,
        seed,
        evaluate_every=spec.evaluate_every,
        evaluate_users=spec.evaluate_users,
    )
    enemies, rounds = np.flatnonzero(hostile[node]), method.config.rounds

    def before_round(state: State) -> None:
        devices = state.devices.take(enemies)
        attacker.look(Insider(devices, select(split.train, enemies)))

    def after_round(state: State, row: dict[str, Any]) -> None:
        if on_round is not None:
            on_round(seed, row, rounds)

    with one_blas_thread():
        state = federation.run(before_round=before_round, on_round=after_round)
    honest = np.flatnonzero(~hostile[node])
    owning = owners(split.seen.indptr)[split.seen.items == target]
    boards = {"best": state.best_scoreboard, "last": state.scoreboard}
    return {
        "method": spec.method,
        "settings": dict(spec.settings),
        "data": spec.data,
        "protocol": spec.protocol,
        "seed": seed,
        **asdict(threat),
        "nodes": n_nodes,
        "hostile_nodes": n_hostile,
        "users": split.n_users,
        "items": split.n_items,
        "rounds": rounds,
        "best_round": state.best_round,
        "target": {"item": str(split.item_ids[target]), "users": popularity},
        "lost_rows": round(attacked.lost_rows, 4),
        **{
            name: {"exposure": _exposure(board, target, np.setdiff1d(honest, owning))}
            | _quality(board, honest)
            for name, board in boards.items()
        },
    }


class _AttackedRounds:
    """A method whose server receives hostile updates and adds all up by the defence's rule.

    It asks the simulator for every upload, because the rules and the attacker need them. All other
    attributes are the method's."""

    aggregation = "individual"

    def __init__(
        self, method: Method, attacker: Attacker, threat: Threat, node: Int64, hostile: Bool
    ) -> None:
        self._method, self._attacker, self._threat = method, attacker, threat
        self._node, self._hostile = node, hostile
        self.lost_rows = 0.0
        """Largest share of a round's rows that the rule removed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def aggregate(self, server: Any, received: Uploads) -> Any:
        upload, threat, n_items = received.upload, self._threat, self._n_items(server)
        shape = Shape(n_items, upload.rows.values.shape[1], upload.dense.shape[1])
        everybody = np.arange(len(self._hostile))
        node, senders = self._node[received.users], everybody
        if len(everybody) == len(self._node):  # a node per user: only the round's are there
            senders = node
        else:
            upload = mean_updates(upload, node, len(everybody), n_items)
        hostile = self._hostile[senders] & (upload.weight > 0)

        def aggregate(nodes: Any) -> Any:
            return robust_sum(nodes, shape, threat.defence, threat.trim)

        if hostile.any():
            upload = self._attacker.replace(server, upload, hostile, aggregate)
        lost = lost_rows(upload, threat.defence, threat.trim)
        self.lost_rows = max(self.lost_rows, lost)
        return self._method.aggregate(server, aggregate(upload))

    def _n_items(self, server: Any) -> int:
        return len(self._method.item_table(self._method.download(server)))


def robustness_command(spec: RunSpec, threat: Threat) -> str:
    """The command line that repeats the audit of this threat alone."""
    parts = ["unskew", "audit", "robustness", "--method", spec.method, "--data", spec.data]
    parts += ["--protocol", spec.protocol, "--seed", str(spec.seeds[0])]
    parts += [f"--set={key}={value}" for key, value in spec.settings.items()]
    parts += ["--evaluate-every", str(spec.evaluate_every)] if spec.evaluate_every > 1 else []
    parts += ["--attack", threat.attack, "--hostile", f"{threat.hostile:g}"]
    parts += ["--defence", threat.defence]
    if threat.nodes is not None:
        parts += ["--nodes", str(threat.nodes)]
    if threat.defence == "trimmed":
        parts += ["--trim", f"{threat.trim:g}"]
    return shlex.join(parts)


def threats(
    attacks: Sequence[str], hostile: Sequence[float], defences: Sequence[str], **options: Any
) -> list[Threat]:
    """All combinations to measure: for each defence without an attack, then with each of them."""
    for kind, given, known in (("attack", attacks, ATTACKS), ("defence", defences, DEFENCES)):
        for name in given:
            if name not in known and (kind, name) != ("attack", "none"):
                raise UnskewError(f'There is no {kind} "{name}"; give {", ".join(known)}.')
    found = []
    for rule in defences:
        some = [(name, share) for name in attacks for share in hostile if name != "none" and share]
        if "none" in attacks or 0.0 in hostile:
            some.insert(0, ("none", 0.0))
        found += [Threat(name, share, rule, **options) for name, share in some]  # type: ignore[arg-type]
    return found


_COLUMNS = ("method", "defence", "attack", "hostile", "NDCG@10", "kept", "ER@10", "last round")
"""Columns of the table. NDCG@10 and ER@10 are of the best round on validation; "kept" is the share
of the NDCG@10 without attack and defence; "last round" is its ER@10."""


def robustness_table(rows: Sequence[Row]) -> Table:
    """The results as a table by method, nodes, defence and attack; see ``_COLUMNS``."""
    plain = {
        _run_of(row): row["best"]["ndcg@10"]
        for row in rows
        if row["attack"] == row["defence"] == "none"
    }
    lines = []
    for row in sorted(rows, key=_table_order):
        before, quality = plain.get(_run_of(row)), row["best"]["ndcg@10"]
        kept = quality / before if before else None
        nodes = "" if row["nodes"] == row["users"] else f", {row['nodes']} nodes"
        nodes += f", {row['rounds']} rounds" if "rounds" in row["settings"] else ""
        lines.append(
            [
                Cell(row["method"] + nodes, row["method"]),
                Cell(row["defence"], row["defence"]),
                Cell(row["attack"] if row["hostile"] else MISSING, row["attack"]),
                Cell(f"{row['hostile']:.0%}" if row["hostile"] else MISSING, row["hostile"]),
                Cell.number(quality),
                Cell(MISSING if kept is None else f"{kept:.0%}", kept),
                Cell.number(row["best"]["exposure"], 3),
                Cell.number(row["last"]["exposure"], 3),
            ]
        )
    return Table.of(_COLUMNS, lines)


def _table_order(row: Row) -> tuple[Any, ...]:
    order = DEFENCES.index(row["defence"]), row["attack"] != "none", row["attack"], row["hostile"]
    return (row["data"], row["method"], -row["nodes"], -row["rounds"], *order)


def _run_of(row: Row) -> tuple[object, ...]:
    """Key of a row: qualities are compared between rows with the same key only."""
    settings = tuple(sorted((key, str(value)) for key, value in row["settings"].items()))
    return (*(row[key] for key in ("method", "data", "protocol", "seed", "rounds")), settings)


def _unpopular_item(split: Split, seed: int) -> tuple[int, int]:
    """An item of the less popular half, drawn by the seed, and its number of users."""
    users = np.bincount(split.seen.items, minlength=split.n_items)
    known = users[users > 0]
    choices = np.flatnonzero((users > 0) & (users <= np.median(known)))
    target = int(generator(seed, Purpose.AUDIT_DATA, _TARGET_DRAW).choice(choices))
    return target, int(users[target])


def _exposure(board: Scoreboard, target: int, users: Int64) -> float:
    """ER@10: share of these users whose ten best unseen items include the target."""
    return float((board.top[users] == target).any(axis=1).mean()) if len(users) else 0.0


def _quality(board: Scoreboard, users: Int64) -> dict[str, float]:
    """NDCG@10 of these users for their validation and test items, and the mean of the two, which
    varies less than either."""
    parts = {part: board.means(part, users) for part in ("validation", "test")}
    means = {f"{part}_ndcg@10": found["ndcg@10"] for part, found in parts.items()}
    return {"ndcg@10": float(np.mean(list(means.values()))), **means}
