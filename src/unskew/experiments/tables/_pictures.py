"""The vectors behind the paper's pictures, and their place in the plane by t-SNE.

Rows hold points in the plane, not vectors: small enough to keep, and drawing needs no training.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import load
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.experiments.tables._chart import Panel, Series
from unskew.experiments.tables._plan import QUICK_ROUNDS, Plan, Row, Task
from unskew.methods import create
from unskew.rng import Purpose, generator
from unskew.types import Float32, Int64, Split, UnskewError

CLIENTS = (94, 233, 449, 17)
"""The paper shows the first three; numbers beyond a federation's size wrap around."""
_ITEMS, _QUICK_ITEMS = 1000, 150
"""Items of a picture at most."""

_KEYS = {
    "FedMF": "fedmf",
    "FedMF w/ AF": "fedmf-af",
    "FedMF w/ CF": "fedmf-cf",
    "FedMF w/ CLR": "pfedclr",
    "w/ GA (1-)": "fedmf",
    "LT w/o GA": "fedmf alone",
    "FedMF w/o GA": "fedmf alone",
}
"""Labels that stand for methods, which look the same everywhere."""

Variants = Mapping[str, tuple[str, Mapping[str, Any]]]
"""By label: a method and its settings."""
Draw = Callable[[Split, int, bool], Row]


def picture(
    name: str, data: str, protocol: str, plan: Plan, methods: Sequence[str], make: Draw
) -> Task:
    """A picture's task: split the data, have the points made, and say how they were made."""
    seed = plan.seeds[0]
    # Of a table with a picture per method: which.
    chosen = ["--methods", methods[0]] if name == "uploads" else []
    words = ["unskew", "reproduce", name, *chosen, "--data", data, "--protocol", protocol]
    command = shlex.join([*words, "--seeds", str(seed), *(["--quick"] if plan.quick else [])])

    def run(data_dir: Path | None) -> Row:
        made = make(prepare(load(data, data_dir=data_dir), protocol), seed, plan.quick)
        about = {"picture": name, "data": data, "protocol": protocol, "seeds": [seed]}
        return about | made | {"settings": {}}

    return Task(command, tuple(methods), run)


def clients_of(split: Split, quick: bool) -> Int64:
    wanted = np.array(CLIENTS[:2] if quick else CLIENTS) % split.n_users
    return np.unique(wanted).astype(np.int64)


def federation(
    split: Split, method: str, settings: Mapping[str, Any], seed: int, quick: bool
) -> Federation:
    short = {"rounds": 2 * QUICK_ROUNDS} if quick else {}
    return Federation(create(method, **{**settings, **short}), split, seed)


def plane(vectors: Any, seed: int, quick: bool) -> list[list[float]]:
    """t-SNE into the plane, rounded; few points are placed by their two main directions."""
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


def trails(variants: Variants, split: Split, seed: int, quick: bool) -> Row:
    """The user vectors of some clients after every round, per variant; a client's are placed
    together, so that they can be compared."""
    clients = clients_of(split, quick)
    walked: dict[str, list[Float32]] = {}
    for label, (method, settings) in variants.items():
        runner = federation(split, method, settings, seed, quick)
        state = runner.start()
        walked[label] = [state.devices.take(clients).p]
        for _ in range(runner.method.config.rounds):
            runner.step(state)
            walked[label].append(state.devices.take(clients).p)
    panels = []
    for at, client in enumerate(clients.tolist()):
        paths = {label: [p[at] for p in steps] for label, steps in walked.items()}
        places = plane(np.concatenate(list(paths.values())), seed, quick)
        trail, begin = {}, 0
        for label, path in paths.items():
            trail[label] = places[begin : begin + len(path)]
            begin += len(path)
        panels.append({"client": client, "trails": trail})
    return {"panels": panels}


def chosen_items(split: Split, client: int, seed: int, quick: bool) -> tuple[Int64, Any]:
    """Items of a client's picture, its own first, and how many are its own; of the others a
    random part where there are too many."""
    own = split.seen.of(client).astype(np.int64)
    most = _QUICK_ITEMS if quick else _ITEMS
    own = own[: most // 2]
    others = np.setdiff1d(np.arange(split.n_items), split.seen.of(client))
    drawn = generator(seed, Purpose.AUDIT_DATA, client).permutation(others)[: most - len(own)]
    return np.concatenate([own, np.sort(drawn)]), len(own)


def panel_of(title: str, places: Sequence[Sequence[float]], n_own: int, n_items: int) -> Row:
    """Points of items, the client's own first, and of the client itself where there is one more."""
    user = places[n_items] if len(places) > n_items else None
    return {
        "title": title,
        "interacted": places[:n_own],
        "other": places[n_own:n_items],
        "user": user,
    }


def item_panel(found: Row) -> Panel:
    """The panel of such points; the client on top."""
    labels = {"other": "not interacted", "interacted": "interacted", "user": "user"}
    series = []
    for key, label in labels.items():
        points = [found["user"]] if key == "user" else found[key]
        if points and points[0] is not None:
            xs, ys = zip(*points, strict=True)
            series.append(Series(label, key, xs, ys, "points"))
    return Panel(found["title"], "", "", tuple(series))


def key_of(label: str) -> str:
    """What a label stands for: the same thing looks the same in every figure."""
    return _KEYS.get(label, label)


def trail_panel(found: Row) -> Panel:
    series = []
    for label, points in found["trails"].items():
        xs, ys = zip(*points, strict=True)
        series.append(Series(label, key_of(label), xs, ys, "trail"))
    return Panel(f"client {found['client']}", "", "", tuple(series))
