"""t-SNE pictures: paths of user vectors, vectors that clients hold, and uploaded item tables.

Result rows store 2-D points, not the vectors, so they are small and drawing needs no training.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from unskew.audit import auc_of_one
from unskew.data import load
from unskew.display import Chart, Panel, Series
from unskew.engine import Federation, State
from unskew.evaluation import prepare
from unskew.methods import create
from unskew.paper.noise import COMPARED
from unskew.paper.plan import QUICK_ROUNDS, Exhibit, Places, Plan, Task
from unskew.paper.rows import Record, Results
from unskew.rng import Purpose, generator
from unskew.types import Cohort, Float32, Int64, Rows, Split, UnskewError, Upload

CLIENTS = (94, 233, 449, 17)
"""User indices shown in pictures, modulo the number of users; the first three are the paper's."""
MAX_ITEMS, MAX_QUICK_ITEMS = 1000, 150
"""Maximum number of items in a panel, in a full and in a quick run."""
MakePoints = Callable[[Split, int, bool], Record]
"""Function that computes a picture's points from a split, a seed and whether the run is quick."""


def picture_task(
    name: str, data: str, protocol: str, plan: Plan, methods: Sequence[str], make: MakePoints
) -> Task:
    """Make a task that loads and splits the data and computes the 2-D points of a picture."""
    seed = plan.seeds[0]
    chosen = ["--methods", methods[0]] if name == "uploads" else []
    words = ["unskew", "reproduce", name, *chosen, "--data", data, "--protocol", protocol]
    command = shlex.join([*words, "--seeds", str(seed), *(["--quick"] if plan.quick else [])])

    def run(places: Places) -> Record:
        interactions = load(data, data_dir=places.data_dir)
        points = make(prepare(interactions, protocol), seed, plan.quick)
        about = {"picture": name, "data": data, "protocol": protocol, "seeds": [seed]}
        return about | points | {"settings": {}}

    return Task(command, tuple(methods), run)


def pictured_clients(split: Split, quick: bool) -> Int64:
    wanted = np.array(CLIENTS[:2] if quick else CLIENTS) % split.n_users
    return np.unique(wanted).astype(np.int64)


def build_federation(
    split: Split, method: str, settings: Mapping[str, Any], seed: int, quick: bool, **options: Any
) -> Federation:
    short = {"rounds": 2 * QUICK_ROUNDS} if quick else {}
    return Federation(create(method, **{**settings, **short}), split, seed, **options)


def place_in_plane(vectors: Any, seed: int, quick: bool) -> list[list[float]]:
    """Rounded 2-D coordinates of vectors by t-SNE, or by PCA if they are few or all equal."""
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
    """Items to draw for a client: items it interacted with, then others (a sample if there are too
    many). Also returns the number of the former."""
    own = split.seen.of(client).astype(np.int64)
    most = MAX_QUICK_ITEMS if quick else MAX_ITEMS
    own = own[: most // 2]
    others = np.setdiff1d(np.arange(split.n_items), split.seen.of(client))
    drawn = generator(seed, Purpose.AUDIT_DATA, client).permutation(others)[: most - len(own)]
    return np.concatenate([own, np.sort(drawn)]), len(own)


def _item_points(title: str, places: Sequence[Any], n_own: int, n_items: int) -> Record:
    """Points of a panel by kind. The first ``n_own`` of ``places`` are items that the client
    interacted with, then come other items, up to ``n_items``, and possibly the user."""
    user = places[n_items] if len(places) > n_items else None
    own, other = places[:n_own], places[n_own:n_items]
    return {"title": title, "interacted": own, "other": other, "user": user}


def _item_panel(points: Record) -> Panel:
    user = [] if points["user"] is None else [points["user"]]
    kinds = {
        ("not interacted", "other"): points["other"],
        ("interacted", "interacted"): points["interacted"],
        ("user", "user"): user,
    }
    series = [
        Series(label, key, [x for x, _ in places], [y for _, y in places], "points")
        for (label, key), places in kinds.items()
        if places
    ]
    return Panel(points["title"], "", "", tuple(series))


def embedding_tasks(plan: Plan) -> list[Task]:
    """Tasks for pictures of the item and user vectors of a few clients after the last round."""
    methods = ("fedmf", "pfedclr")
    return [
        picture_task("embedding", source, protocol, plan, methods, _embeddings)
        for source, protocol in plan.pairs("ml-100k")
    ]


def _embeddings(split: Split, seed: int, quick: bool) -> Record:
    """2-D points of a few clients' item vectors and user vector under FedMF and PFedCLR; for
    PFedCLR also of its low-rank matrix (added to the items) and of items plus matrix."""
    states = {
        name: build_federation(split, name, {}, seed, quick).run() for name in ("fedmf", "pfedclr")
    }
    panels = []
    for client in pictured_clients(split, quick).tolist():
        items, n_own = _panel_items(split, client, seed, quick)
        for title, (table, user) in _views(states, client).items():
            points = [table[items]] if user is None else [table[items], user[None]]
            places = place_in_plane(np.concatenate(points), seed, quick)
            panels.append(_item_points(f"client {client}: {title}", places, n_own, len(items)))
    return {"panels": panels}


def _views(states: Mapping[str, State], client: int) -> dict[str, tuple[Float32, Any]]:
    backbone, own = (_client_state(states[name], client) for name in ("fedmf", "pfedclr"))
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


def _client_state(state: State, client: int) -> tuple[Float32, Any]:
    """A client's item table (its download, with the rows that it trained) and private state."""
    private = state.devices.take(np.array([client]))
    download = state.devices.downloads[int(state.devices.version[client])]
    table, rows = download.Q.copy(), private.Q
    assert isinstance(rows, Rows)
    table[rows.items] = rows.values
    return table, private


def embedding_charts(results: Results) -> dict[str, Chart]:
    """Charts of item and user vectors by data set and protocol, with a row of panels per client."""
    return {
        f"embedding-{row['data']}-{row['protocol']}": Chart(
            f"Vectors of items and users (t-SNE), {row['data']}, protocol {row['protocol']}",
            tuple(_item_panel(panel) for panel in row["panels"]),
            columns=4,
        )
        for row in results.of("embedding")
    }


def uploads_tasks(plan: Plan) -> list[Task]:
    """Tasks for pictures of uploaded item tables, one per data set, protocol and method."""
    return [
        picture_task("uploads", source, protocol, plan, (method,), partial(_uploads, method))
        for source, protocol in plan.pairs("ml-100k")
        for method in plan.chosen(("fedrefit", *COMPARED))
    ]


def _uploads(method: str, split: Split, seed: int, quick: bool) -> Record:
    """2-D points of a few clients' last uploaded item tables, and an attack's AUC on each."""
    panels = []
    for client, (table, change) in sorted(_last_uploads(method, split, seed, quick).items()):
        items, n_own = _panel_items(split, client, seed, quick)
        places = place_in_plane(table[items], seed, quick)
        owned = np.isin(np.arange(split.n_items), split.train.of(client))
        title = f"{method}, client {client}: attack's AUC {auc_of_one(change, owned):.2f}"
        panels.append(_item_points(title, places, n_own, len(items)))
    return {"method": method, "panels": panels}


def _last_uploads(
    method: str, split: Split, seed: int, quick: bool
) -> dict[int, tuple[Float32, Float32]]:
    """For each pictured client: its item table after the changes of its last upload, and these
    changes (zero in rows not sent). Clients that never uploaded are left out."""
    clients = pictured_clients(split, quick)
    sent: dict[int, tuple[Float32, Float32]] = {}
    latest: dict[str, Any] = {}

    def record(upload: Upload, cohort: Cohort) -> Upload:
        rows = upload.rows
        for place in np.flatnonzero(np.isin(cohort.users, clients)).tolist():
            user, run = int(cohort.users[place]), slice(*rows.indptr[place : place + 2])
            if upload.weight[place] > 0 and len(rows.items[run]):
                change = np.zeros((cohort.n_items, rows.values.shape[1]), np.float32)
                change[rows.items[run]] = rows.values[run]
                base = trainer.upload_base(latest["download"], user, upload.dense[place])
                sent[user] = base + change, change
        return upload

    federation = build_federation(split, method, {}, seed, quick, transform=record)
    trainer = federation.method
    federation.run(
        before_round=lambda state: latest.update(download=trainer.download(state.server))
    )
    return sent


def uploads_charts(results: Results) -> dict[str, Chart]:
    """Charts of uploaded item tables by data set and protocol, with a row of panels per method."""
    return {
        f"uploads-{data}-{protocol}": Chart(
            f"Uploaded item tables (t-SNE), {data}, protocol {protocol}",
            tuple(_item_panel(panel) for row in rows for panel in row["panels"]),
            columns=max(len(row["panels"]) for row in rows),
        )
        for (data, protocol), rows in results.by_pair("uploads").items()
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
    "t-SNE of the item tables that clients sent last. Above each picture stands what it does not "
    "show: an attack compares the upload with the server's table, and its AUC is the share of "
    "pairs in which an item of the client scores above an item that the client does not have; see "
    "[privacy.md](privacy.md).",
    "uploads",
    uploads_tasks,
    charts=uploads_charts,
)
