"""Models and histories for the tests of exported files."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import unskew
from unskew.data import load
from unskew.engine import newcomer_scores
from unskew.kernels.history_network import count_weights
from unskew.methods import create
from unskew.methods._fednext import FIRST_STAGE_ROUNDS, POPULARITY_STEP, Download
from unskew.ragged import distinct
from unskew.types import Cohort, Float32, Int32, Ragged

N_HISTORIES = 300
LINEAR = ("popularity", "ease", "item-knn", "markov", "slist")
MODELS = (*LINEAR, "fedrefit", "fedrefit, first rounds", "fednext", "fednext, popularity round")


@cache
def fitted(method: str) -> unskew.Run:
    return unskew.fit(method, load("demo"))


def model(name: str) -> tuple[Any, Any, int]:
    """A method, a download of it, and the number of items."""
    if name in (*LINEAR, "fedrefit"):
        return *fitted(name).recommender().model, 1500
    if name == "fedrefit, first rounds":
        method, download = fitted("fedrefit").recommender().model
        return method, download._replace(V=download.V[:, :0]), 1500
    return *random_fednext(name), 200


def random_fednext(name: str) -> tuple[Any, Download]:
    """FedNext with random tables, in which every part of the network has its say."""
    method, n_items, d = create("fednext", dim=16, base_dim=12), 200, 16
    random = np.random.default_rng(5)
    draw = lambda *shape: random.standard_normal(shape).astype(np.float32)  # noqa: E731
    late = name == "fednext"
    step = FIRST_STAGE_ROUNDS if late else POPULARITY_STEP + 1
    return method, Download(
        draw(n_items, 12),
        random.integers(1, 90, n_items).astype(np.float32),
        draw(n_items, 25),
        np.array([step], np.int32),
        np.array([3.0], np.float32),
        random.random(n_items).astype(np.float32),
        draw(n_items if late else 0, d + 1),
        0.4 * draw(count_weights(d) if late else 0),
        np.arange(5, dtype=np.int32),
    )


def histories(n_items: int, n: int = N_HISTORIES) -> list[Int32]:
    """Random histories of distinct items: an empty one, one with every item but three, others."""
    random = np.random.default_rng(1)
    sizes = [0, n_items - 3, 1, *random.integers(1, 80, n - 3)]
    return [random.permutation(n_items)[:size].astype(np.int32) for size in sizes]


def python_scores(method: Any, download: Any, lists: list[Int32], n_items: int) -> Float32:
    ends = np.cumsum([0, *map(len, lists)])
    history = Ragged(ends, np.concatenate(lists))
    users = np.arange(len(lists))
    cohort = Cohort(users, history, distinct(history), n_items, 0, 1)
    return newcomer_scores(method, download, cohort)


def error(found: Float32, wanted: Float32) -> float:
    """Largest difference between two lists of scores, relative to the largest score."""
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def check_best(items: list[int], wanted: Float32, history: Int32, tolerance: float) -> None:
    """The items are the best outside the history; near-ties may be in any order."""
    unseen = np.delete(wanted, history)
    best = np.sort(unseen)[::-1][:10]
    assert len(set(items)) == len(items) == min(10, len(unseen))
    assert not set(items) & set(history.tolist())
    assert np.abs(wanted[items] - best).max() <= tolerance * np.abs(wanted).max()
