"""What the deployment tests share: small federations cut into nodes, and the same without Flower.

``Twin`` plays rounds with the nodes' own code, in this process and without a message: what a run on
Flower must agree with, whichever nodes' uploads it took in.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unskew.deploy.device import Device
from unskew.deploy.messages import (
    Limits,
    add_node,
    merge_uploads,
    read_download,
    read_each,
    read_sum,
    upload_shape,
)
from unskew.deploy.node_data import divide_users, take_users, write_node_data
from unskew.deploy.task import Task
from unskew.engine import Federation, State
from unskew.kernels import empty_sum
from unskew.types import Split

SEED = 5
SETTINGS = "rounds=3 local_epochs=2 dim=8"
EVERYONE = f"{SETTINGS} participation=1"


def task_of(split: Split, method: str, settings: str = SETTINGS) -> Task:
    return Task(method, settings, SEED, split.n_users, split.n_items)


def run_config(task: Task, folder: Path, **more: Any) -> dict[str, Any]:
    given = {"method": task.method, "settings": task.settings, "seed": task.seed}
    given |= {"users": task.n_users, "items": task.n_items, "state": str(folder)}
    return given | {key.replace("_", "-"): value for key, value in more.items()}


def write_nodes(folder: Path, split: Split, n_nodes: int) -> list[Path]:
    paths = []
    for number, users in enumerate(divide_users(split.n_users, n_nodes), 1):
        paths.append(folder / f"data-{number}")
        write_node_data(paths[-1], take_users(split, users))
    return paths


def simulated(task: Task, split: Split, rounds: int = 3) -> State:
    federation = Federation(task.build(), split, task.seed)
    state = federation.start()
    for _ in range(rounds):
        federation.step(state)
    return state


class Twin:
    """A federation of nodes without messages."""

    def __init__(self, folder: Path, split: Split, task: Task, n_nodes: int) -> None:
        self.folder, self.task, self.method = folder, task, task.build()
        self.data = write_nodes(folder, split, n_nodes)
        self.server, _ = self.method.init(task.n_users, task.n_items, task.seed)

    def device(self, node: int) -> Device:
        folder = self.folder / f"state-{node + 1}"
        return Device.join(folder, self.data[node], self.task, shared_seed=True)

    def play(self, round: int, nodes: Sequence[int], trained: Sequence[int] = ()) -> None:
        """A round with the uploads of ``nodes``; those in ``trained`` train but are not heard."""
        download = self.method.download(self.server)
        sizes = self.task.n_users, self.task.n_items
        download = read_download(self.method, download._asdict(), *sizes)  # as a node would
        shape = upload_shape(self.method, download, self.task.n_items, round)
        total, each = empty_sum(*shape), []
        for node in [*nodes, *trained]:
            upload = self.device(node).step1(round, download)
            if node in trained:
                continue
            if self.method.aggregation == "sum":
                total = add_node(total, read_sum(upload, shape, Limits()))
            else:
                each.append(read_each(upload, shape, Limits()))
        sums = self.method.aggregation == "sum"
        self.server = self.method.aggregate(
            self.server, total.result() if sums else merge_uploads(each, shape)
        )


def distance(server: Any, other: Any) -> float:
    """How far two models are apart, relative to their length: the worst of their parts."""
    pairs = [
        (a.astype(np.float64), b.astype(np.float64)) for a, b in zip(server, other, strict=True)
    ]
    return max(float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)) for a, b in pairs)
