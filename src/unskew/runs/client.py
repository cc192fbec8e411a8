"""One client's own view of saved runs: what it had, what was held out, what each recommends."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from unskew.runs.runner import read_spec
from unskew.runs.saved import open_recommender, read_catalogue

K = 10


class ClientView(NamedTuple):
    """A client in one run; items by title, or by label where the data has no titles."""

    history: list[str]
    validation: list[str]
    test: list[tuple[str, int]]
    """Held-out items and their ranks."""
    top: list[tuple[str, str]]
    """The ten best: title, and "test" or "validation" where the item was held out."""
    among: int


def has_model(folder: Path) -> bool:
    """Whether a run folder holds what recommending needs."""
    first = f"seed-{read_spec(folder)[0].seeds[0]}"
    needed = ("items.parquet", "users.parquet", f"{first}/state/current.json")
    return all((folder / name).exists() for name in needed)


def median_client(folder: Path) -> str:
    """The user with the median number of training items; of equals one in the middle."""
    _, users = read_catalogue(folder)
    order = np.argsort(users["seen"].list.len().to_numpy(), kind="stable")
    return str(users["user"][int(order[len(order) // 2])])


def has_client(folder: Path, user: str) -> bool:
    return user in read_catalogue(folder)[1]["user"]


def client_view(folder: Path, user: str) -> ClientView:
    """The client as the run's first seed leaves it."""
    items, users = read_catalogue(folder)
    labels, titles = items["item"].to_list(), items["title"].to_list()
    _, seen, validation, test = users.row(by_predicate=pl.col("user") == user)
    held = {labels[i]: "validation" for i in validation} | {labels[i]: "test" for i in test}
    ranked = open_recommender(folder).recommend(user, len(labels))
    place = {found["item"]: found["rank"] for found in ranked}
    return ClientView(
        sorted(titles[i] for i in seen),
        [titles[i] for i in validation],
        [(titles[i], place[labels[i]]) for i in test if labels[i] in place],
        [(found["title"], held.get(found["item"], "")) for found in ranked[:K]],
        len(ranked),
    )
