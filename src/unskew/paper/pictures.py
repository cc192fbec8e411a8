"""Pictures of vectors, placed in the plane by t-SNE: paths of user vectors, what clients hold, and
the item tables they upload.

Rows hold points in the plane, not vectors. They are small, and drawing needs no training.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unskew.audit import auc_of_one
from unskew.data import load
from unskew.engine import Federation, State
from unskew.evaluation import prepare
from unskew.methods import create
from unskew.methods.gpfedrec import own_tables
from unskew.paper.cells import QUICK_ROUNDS, Task
from unskew.paper.noise import COMPARED
from unskew.paper.plan import Exhibit, Plan
from unskew.paper.rows import Record, Results
from unskew.report import Chart, Panel, Series
from unskew.rng import Purpose, generator
from unskew.types import Cohort, Float32, Int64, Rows, Split, UnskewError, Upload

CLIENTS = (94, 233, 449, 17)
"""Clients in pictures, the paper's three first; numbers beyond a federation's size wrap around."""
MAX_ITEMS, MAX_QUICK_ITEMS = 1000, 150
"""Most items in a panel."""
MakePoints = Callable[[Split, int, bool], Record]
"""From a split, a seed and whether it is a quick run."""


def picture_task(
    name: str, data: str, protocol: str, plan: Plan, methods: Sequence[str], make: MakePoints
) -> Task:
    """A task that splits the data and makes the points of a picture."""
    seed = plan.seeds[0]
    chosen = ["--methods", methods[0]] if name == "uploads" else []
    words = ["unskew", "reproduce", name, *chosen, "--data", data, "--protocol", protocol]
    command = shlex.join([*words, "--seeds", str(seed), *(["--quick"] if plan.quick else [])])

    def run(data_dir: Path | None) -> Record:
        points = make(prepare(load(data, data_dir=data_dir), protocol), seed, plan.quick)
        about = {"picture": name, "data": data, "protocol": protocol, "seeds": [seed]}
        return about | points | {"settings": {}}

    return Task(command, tuple(methods), run)


def pictured_clients(split: Split, quick: bool) -> Int64:
    wanted = np.array(CLIENTS[:2] if quick else CLIENTS) % split.n_users
    return np.unique(wanted).astype(np.int64)


def build_federation(
    split: Split, method: str, settings: Mapping[str, Any], seed: int, quick: bool
) -> Federation:
    short = {"rounds": 2 * QUICK_ROUNDS} if quick else {}
    return Federation(create(method, **{**settings, **short}), split, seed)


def place_in_plane(vectors: Any, seed: int, quick: bool) -> list[list[float]]:
    """Coordinates by t-SNE, rounded; few points are placed by their two principal components."""
    try:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ImportError:
        raise UnskewError(
            "Pictures need scikit-learn; install it with: pip install 'unskew[figures]'."
        ) from None
    vectors = np.asarray(vectors, np.float64)
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    if perplexity < 2 or not np.ptp(vectors, axis=0).any():
        flat = PCA(min(2, *vectors.shape)).fit_transform(vectors)
    else:
        steps = 250 if quick else 1000
        how = {"init": "pca", "random_state": seed, "max_iter": steps}
        flat = TSNE(2, perplexity=perplexity, **how).fit_transform(vectors)
    return [[round(float(x), 2), round(float(y), 2)] for x, y in flat]


def _panel_items(split: Split, client: int, seed: int, quick: bool) -> tuple[Int64, int]:
    """Items of a client's panel, its own first, and how many are its own. Of too many others a
    random part is taken."""
    own = split.seen.of(client).astype(np.int64)
    most = MAX_QUICK_ITEMS if quick else MAX_ITEMS
    own = own[: most // 2]
    others = np.setdiff1d(np.arange(split.n_items), split.seen.of(client))
    drawn = generator(seed, Purpose.AUDIT_DATA, client).permutation(others)[: most - len(own)]
    return np.concatenate([own, np.sort(drawn)]), len(own)


def _item_points(title: str, places: Sequence[Any], n_own: int, n_items: int) -> Record:
    """Points of items, the client's own first, and of the client itself if there is one more."""
    user = places[n_items] if len(places) > n_items else None
    own, other = places[:n_own], places[n_own:n_items]
    return {"title": title, "interacted": own, "other": other, "user": user}


def _item_panel(points: Record) -> Panel:
    labels = {"other": "not interacted", "interacted": "interacted", "user": "user"}
    series = []
    for key, label in labels.items():
        found = [points["user"]] if key == "user" else points[key]
        if found and found[0] is not None:
            xs, ys = zip(*found, strict=True)
            series.append(Series(label, key, xs, ys, "points"))
    return Panel(points["title"], "", "", tuple(series))


def embedding_tasks(plan: Plan) -> list[Task]:
    """Vectors of items and users as single clients hold them at the end."""
    methods = ("fedmf", "pfedclr")
    return [
        picture_task("embedding", source, protocol, plan, methods, _embeddings)
        for source in plan.sources("ml-100k")
        for protocol in plan.protocols
    ]


def _embeddings(split: Split, seed: int, quick: bool) -> Record:
    """Per client FedMF's Q_u, PFedCLR's Q_u, A_u B_u, and Q_u + A_u B_u, with p_u."""
    states = {}
    for name in ("fedmf", "pfedclr"):
        federation = build_federation(split, name, {}, seed, quick)
        states[name] = federation.run()
    panels = []
    for client in pictured_clients(split, quick).tolist():
        items, n_own = _panel_items(split, client, seed, quick)
        for title, (table, user) in _views(states, client).items():
            points = [table[items]] if user is None else [table[items], user[None]]
            places = place_in_plane(np.concatenate(points), seed, quick)
            panels.append(_item_points(f"client {client}: {title}", places, n_own, len(items)))
    return {"panels": panels}


def _views(states: Mapping[str, State], client: int) -> dict[str, tuple[Float32, Any]]:
    backbone, own = (_held(states[name], client) for name in ("fedmf", "pfedclr"))
    Q, private = own
    A = np.zeros((len(Q), private.A.values.shape[1]), np.float32)
    A[private.A.items] = private.A.values
    AB = A @ private.B[0]
    return {
        "FedMF, Q": (backbone[0], backbone[1].p[0]),
        "PFedCLR, Q": (Q, private.p[0]),
        "PFedCLR, A B": (AB, None),
        "PFedCLR, Q + A B": (Q + AB, private.p[0]),
    }


def _held(state: State, client: int) -> tuple[Float32, Any]:
    """The item table a client holds, and its private state."""
    private = state.devices.take(np.array([client]))
    download = state.devices.downloads[int(state.devices.version[client])]
    table, rows = download.Q.copy(), private.Q
    assert isinstance(rows, Rows)
    table[rows.items] = rows.values
    return table, private


def embedding_charts(results: Results) -> dict[str, Chart]:
    """A chart per data set and protocol, a row of panels per client."""
    return {
        f"embedding-{row['data']}-{row['protocol']}": Chart(
            f"Vectors of items and users (t-SNE), {row['data']}, protocol {row['protocol']}",
            tuple(_item_panel(panel) for panel in row["panels"]),
            columns=4,
        )
        for row in results.of("embedding")
    }


def uploads_tasks(plan: Plan) -> list[Task]:
    """The item tables that clients upload, as the server sees them, method by method."""
    methods = ("fedrefit", *COMPARED)
    return [
        picture_task("uploads", source, protocol, plan, (method,), partial(_uploads, method))
        for source in plan.sources("ml-100k")
        for protocol in plan.protocols
        for method in methods
        if method in (plan.methods or methods)
    ]


def _uploads(method: str, split: Split, seed: int, quick: bool) -> Record:
    """The last upload of some clients, with the AUC of an attack on it."""
    clients = pictured_clients(split, quick)
    sent = last_uploads(build_federation(split, method, {}, seed, quick), clients)
    panels = []
    for client, (table, change) in sorted(sent.items()):
        items, n_own = _panel_items(split, client, seed, quick)
        places = place_in_plane(table[items], seed, quick)
        owned = np.isin(np.arange(split.n_items), split.train.of(client))
        title = f"{method}, client {client}: attack's AUC {auc_of_one(change, owned):.2f}"
        panels.append(_item_points(title, places, n_own, len(items)))
    return {"method": method, "panels": panels}


def last_uploads(federation: Federation, clients: Int64) -> dict[int, tuple[Float32, Float32]]:
    """By client: the item table it sent last, and its difference from what the server had sent.
    Clients that never sent one are left out."""
    seen: dict[int, tuple[Float32, Float32]] = {}
    latest: dict[str, Any] = {}

    def record(upload: Upload, cohort: Cohort) -> Upload:
        for place in np.flatnonzero(np.isin(cohort.users, clients)).tolist():
            user, rows = int(cohort.users[place]), upload.rows
            if upload.weight[place] > 0 and rows.indptr[place] < rows.indptr[place + 1]:
                change = _change(upload, place, cohort.n_items)
                base = _base_table(latest["download"], upload, place, user)
                seen[user] = base + change, change
        return upload

    watched = Federation(federation.method, federation.split, federation.seed, transform=record)
    method = watched.method
    watched.run(before_round=lambda state: latest.update(download=method.download(state.server)))
    return seen


def _change(upload: Upload, place: int, n_items: int) -> Float32:
    """The rows that a client sent, zero elsewhere."""
    rows = upload.rows
    run = slice(rows.indptr[place], rows.indptr[place + 1])
    change = np.zeros((n_items, rows.values.shape[1]), np.float32)
    change[rows.items[run]] = rows.values[run]
    return change


def _base_table(download: Any, upload: Upload, place: int, user: int) -> Float32:
    """The table that uploaded rows are differences from: Q_g; for GPFedRec r_u + f (g - r_u); zero
    where they are no differences (FedRefit)."""
    if "Q" not in download._fields:
        return np.zeros((1, 1), np.float32)
    table: Float32 = download.Q.copy()
    if "scale" in download._fields and upload.dense.shape[1] == 1:
        own = own_tables(download, np.array([user])).reshape(table.shape)
        table += own * (1 - upload.dense[place, 0])
    return table


def uploads_charts(results: Results) -> dict[str, Chart]:
    """A chart per data set and protocol, a row of panels per method."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in results.of("uploads"):
        groups.setdefault((row["data"], row["protocol"]), []).append(row)
    return {
        f"uploads-{data}-{protocol}": Chart(
            f"Uploaded item tables (t-SNE), {data}, protocol {protocol}",
            tuple(_item_panel(panel) for row in rows for panel in row["panels"]),
            columns=max(len(row["panels"]) for row in rows) or 1,
        )
        for (data, protocol), rows in groups.items()
        if any(row["panels"] for row in rows)
    }


EMBEDDING = Exhibit(
    "embedding",
    "Vectors of items and users",
    "t-SNE of what single clients hold after the last round.",
    "embedding",
    embedding_tasks,
    charts=embedding_charts,
)
UPLOADS = Exhibit(
    "uploads",
    "Uploaded item tables",
    "t-SNE of the tables clients sent last. What such a picture does not show, the difference from "
    "the server's table does: beside each stands how often one of the client's items scores above "
    "another in an attack on this very upload; see [privacy.md](privacy.md).",
    "uploads",
    uploads_tasks,
    charts=uploads_charts,
)
