"""A node's data: its users' training and held-out items, and their numbers in the federation.

``data.safetensors`` holds the item lists, ``labels.json`` the labels of users and items. A device
makes both with ``unskew deploy data``, from its own file and the catalogue that all nodes share.
Demos divide a whole data set among nodes. All files of a node are readable by their owner only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.files import named_tensors, read_json, read_tensors, write_json, write_tensors
from unskew.ragged import filter_entries, owners, positions, select
from unskew.types import Bool, Int64, Ragged, Split, UnskewError

FORMAT, LABELS, CATALOGUE, VERSION = "unskew-node-data", "unskew-labels", "unskew-catalogue", 1
"""Format names of data, labels and catalogue files, and their version."""
_LISTS = ("train", "seen", "excluded", "validation", "test")
"""Fields of ``Split`` that are lists of items per user."""
_ONLY_SIMULATED = ("train_ratings", "item_features")
"""Fields of ``Split`` that nodes do not have; methods that need them are not deployed."""


class NodeData(NamedTuple):
    """A node's users: their numbers in the federation, and their training and held-out items. Also
    how many users of the federation have each item, if the catalogue says so."""

    users: Int64
    split: Split
    item_users: Int64 | None = None


def take_users(split: Split, users: Int64) -> NodeData:
    """Select these users from the split (training and held-out items) of a whole data set."""
    lists: dict[str, Any] = {name: select(getattr(split, name), users) for name in _LISTS}
    lists |= dict.fromkeys(_ONLY_SIMULATED)
    if split.train_timestamps is not None:
        lists["train_timestamps"] = split.train_timestamps[positions(split.train.indptr, users)]
    labels = [split.user_ids[user] for user in users.tolist()]
    own = replace(split, user_ids=labels, sampled=split.sampled[users], **lists)
    return NodeData(users, own, count_users(split))


def count_users(split: Split) -> Int64:
    """Number of users who have each item."""
    counts: Int64 = np.bincount(split.seen.items, minlength=split.n_items).astype(np.int64)
    return counts


def common_items(node: NodeData, least_users: int) -> Bool | None:
    """Mask of the items that so many users of the federation have; None if it does not matter."""
    if least_users == 0:
        return None
    if node.item_users is None:
        raise UnskewError(
            "least-users needs the number of users of each item; give the catalogue a list "
            '"users" and prepare the node\'s data again with `unskew deploy data`.'
        )
    common: Bool = node.item_users >= least_users
    return common


def catalogue_digest(items: Sequence[str]) -> str:
    """SHA-256 of the item labels in order. Nodes with another digest number other items."""
    return hashlib.sha256(json.dumps(list(items)).encode()).hexdigest()


def divide_users(n_users: int, n_nodes: int) -> list[Int64]:
    """Divide users among nodes as evenly as possible; returns the user numbers of each node."""
    if not 1 <= n_nodes <= n_users:
        raise UnskewError(f"{n_users} users cannot be shared by {n_nodes} nodes.")
    return [part.astype(np.int64) for part in np.array_split(np.arange(n_users), n_nodes)]


def check_catalogue(node: NodeData, data: Path, wanted: str) -> None:
    """Raise an error unless the node's items have the digest ``wanted`` (empty: any)."""
    if wanted and catalogue_digest(node.split.item_ids) != wanted:
        raise UnskewError(
            f"{data} has other items than the federation, or in another order; prepare the data "
            "again with the federation's catalogue.json."
        )


def write_node_data(folder: Path, data: NodeData) -> None:
    """Write a node's data into files that only their owner can read."""
    named: dict[str, NDArray[Any]] = {"users": data.users, "sampled": data.split.sampled}
    for name in _LISTS:
        ragged: Ragged = getattr(data.split, name)
        named |= {f"{name}.indptr": ragged.indptr, f"{name}.items": ragged.items}
    split = data.split
    if split.train_timestamps is not None:
        named["train.timestamps"] = split.train_timestamps
    if data.item_users is not None:
        named["item_users"] = data.item_users
    labels = {
        "format": LABELS,
        "version": VERSION,
        "data": split.data,
        "protocol": split.protocol,
        "rank_all": split.rank_all,
        "validation_in_history": split.validation_in_history,
        "period": split.period,
        "users": list(split.user_ids),
        "items": list(split.item_ids),
        "titles": None if split.titles is None else list(split.titles),
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    with owner_only():
        write_json(folder / "labels.json", labels)
        write_tensors(folder / "data.safetensors", named_tensors(named), FORMAT, VERSION)


def read_node_data(folder: Path) -> NodeData:
    """Read a node's data, as :func:`write_node_data` writes it."""
    if not (folder / "data.safetensors").exists():
        raise UnskewError(f"{folder} holds no node data; make it with `unskew deploy data`.")
    labels = read_json(folder / "labels.json", LABELS, VERSION)
    named = read_tensors(folder / "data.safetensors", FORMAT, VERSION)
    lists: dict[str, Any] = {
        name: Ragged(named[f"{name}.indptr"], named[f"{name}.items"]) for name in _LISTS
    }
    split = Split(
        data=labels["data"],
        protocol=labels["protocol"],
        user_ids=labels["users"],
        item_ids=labels["items"],
        titles=labels["titles"],
        sampled=named["sampled"],
        rank_all=labels["rank_all"],
        validation_in_history=labels.get("validation_in_history", False),
        train_timestamps=named.get("train.timestamps"),
        period=_pair(labels.get("period")),
        **lists,
    )
    return NodeData(named["users"], split, named.get("item_users"))


def write_catalogue(path: Path, split: Split) -> None:
    """Write the catalogue that all nodes share: item labels and titles in order of item number, how
    many users have each, and the period from which ages count."""
    titles = None if split.titles is None else list(split.titles)
    header = {"format": CATALOGUE, "version": VERSION, "period": split.period}
    items = {"items": list(split.item_ids), "titles": titles}
    write_json(path, header | items | {"users": count_users(split).tolist()})


def read_catalogue(path: Path) -> dict[str, Any]:
    """Read a catalogue: its item labels, and what else it has."""
    return read_json(path, CATALOGUE, VERSION)


def renumber(split: Split, catalogue: Path, first_user: int) -> tuple[NodeData, int]:
    """Convert a node's split to the catalogue's item numbers and number its users from
    ``first_user``. Also returns how many rows were left out: items not in the catalogue."""
    labels = read_catalogue(catalogue)
    number = {label: n for n, label in enumerate(labels["items"])}
    known = np.array([number.get(label, -1) for label in split.item_ids], np.int32)
    lists: dict[str, Any] = {}
    for name in _LISTS:
        numbered = getattr(split, name)._replace(items=known[getattr(split, name).items])
        lists[name] = filter_entries(numbered, numbered.items >= 0)
    times = split.train_timestamps
    if times is not None:
        times = times[known[split.train.items] >= 0]
    empty = np.flatnonzero(lists["train"].counts() == 0)
    if len(empty):
        raise UnskewError(
            f"User {split.user_ids[empty[0]]} has no training item in {catalogue}; "
            "are the items labelled as in the catalogue?"
        )
    rows = ("train", "validation", "test")
    lost = sum(len(getattr(split, name).items) - len(lists[name].items) for name in rows)
    for name in ("seen", "excluded"):
        order = np.lexsort((lists[name].items, owners(lists[name].indptr)))
        lists[name] = lists[name]._replace(items=lists[name].items[order])
    sampled = np.where(split.sampled < 0, -1, known[split.sampled]).astype(np.int32)
    lists |= dict.fromkeys(_ONLY_SIMULATED)
    lists |= {"item_ids": labels["items"], "titles": labels["titles"]}
    lists |= {"train_timestamps": times, "period": _pair(labels.get("period"))}
    users = np.arange(first_user, first_user + split.n_users, dtype=np.int64)
    counts = labels.get("users")
    if counts is not None and len(counts) != len(labels["items"]):
        raise UnskewError(
            f"{catalogue}: users must have a number for each of the items, or be left out."
        )
    item_users = None if counts is None else np.array(counts, np.int64)
    return NodeData(users, replace(split, sampled=sampled, **lists), item_users), lost


def _pair(numbers: list[int] | None) -> tuple[int, int] | None:
    """A period as read from JSON; None if the file has none."""
    return None if numbers is None else (int(numbers[0]), int(numbers[1]))


@contextmanager
def owner_only() -> Iterator[None]:
    """Within the ``with`` block, new files and folders are readable by their owner only."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def lock_folder(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Lock a state folder for this process; new files are readable by their owner only. If another
    process has locked it, wait for that one to end, or raise an error without ``wait``."""
    with owner_only():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise UnskewError(
                    f"Another run is using {folder}; stop it first, or give this one another state."
                ) from None
            yield


def check_size(node: NodeData, data: Path, n_users: int, n_items: int) -> NodeData:
    """Return ``node``; an error unless its items and users fit a federation of this size."""
    if node.split.n_items != n_items or node.users.max() >= n_users:
        raise UnskewError(
            f"{data} has {node.split.n_items} items and users up to {node.users.max()}; the "
            f"federation has {n_items} items and {n_users} users."
        )
    return node


def user_labels(node: NodeData) -> dict[str, Any]:
    """Labels and federation-wide numbers of a node's users, in the order of the state's rows."""
    return {"users": list(node.split.user_ids), "numbers": node.users.tolist()}
