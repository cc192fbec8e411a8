"""State and data folders of a deployed device with damaged files: what a device sends, stores,
recommends and reports is refused with a sentence or exactly what it is without the damage."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.fuzz.cases import Failure, Kind, attempt, command
from benchmarks.fuzz.damage import damage_file, files_of
from unskew.data import load
from unskew.deploy.device import Device
from unskew.deploy.node_data import divide_users, lock_folder, take_users, write_node_data
from unskew.deploy.task import Task
from unskew.evaluation import prepare
from unskew.privacy import LocalPrivacy, PrivateUploads
from unskew.types import Split

METHODS = {
    "pfedclr": "rounds=5 dim=4 local_epochs=2 participation=1",
    "gpfedrec": "rounds=5 dim=4",
    "fednext": "rounds=5 dim=8 base_dim=8 window=5 negatives=4 cohort=24",
}
"""Methods that keep state per user, need single uploads, and have no state per user."""
ROUNDS = 2
"""Number of rounds that the devices have trained."""


class Devices(Kind):
    name, share = "device-folders", 0.1

    def prepare(self) -> None:
        rows = [f"u{u},i{(u * 3 + k) % 20},{10**9 + k}" for u in range(24) for k in range(6)]
        Path("own.csv").write_text("user,item,timestamp\n" + "\n".join(rows) + "\n")
        split = prepare(load("own.csv"))
        self._given: dict[str, tuple[Task, Any, Any]] = {}
        self._wanted: dict[tuple[str, str], Any] = {}
        for method, settings in METHODS.items():
            task = Task(method, settings, 5, split.n_users, split.n_items)
            self._given[method] = _train(Path(f"sound-{method}"), split, task, node=0)
            other = dataclasses.replace(task, seed=6)
            _train(Path(f"foreign-1-{method}"), split, task, node=1)  # other users
            _train(Path(f"foreign-2-{method}"), split, other, node=0)  # of another federation
            for use in USES:
                self._copy(method)
                self._wanted[method, use] = self._result(method, use)

    def play(self, rng: random.Random) -> str | None:
        method = rng.choice(list(METHODS))
        folder, foreign = self._copy(method), Path(f"foreign-{rng.choice((1, 2))}-{method}")
        files = [file for file in files_of(folder) if file.name != "lock"]
        self.about = [f"{method}, {foreign}"]
        for file in rng.sample(files, rng.choice((1, 1, 1, 2))):
            self.about.append(damage_file(folder / file, foreign / file, rng))
        use = rng.choice(list(USES))
        self.about.append(use)
        found, wanted = self._result(method, use), self._wanted[method, use]
        if isinstance(found, str):
            return found
        if not _equal(found, wanted):
            raise Failure(f"{use} differs silently: {str(found)[:300]} not {str(wanted)[:300]}")
        return None

    def _copy(self, method: str) -> Path:
        shutil.rmtree("device", ignore_errors=True)
        shutil.copytree(f"sound-{method}", "device")
        return Path("device")

    def _result(self, method: str, use: str) -> Any:
        """The result of a use of the device in a list, or the sentence of its refusal."""
        result, told = attempt(lambda: USES[use](*self._given[method]))
        if isinstance(result, Refused):
            return str(result)
        return [result] if told is None else told


class Refused(str):
    """The sentence with which the command refused."""


def _train(folder: Path, split: Split, task: Task, node: int) -> tuple[Task, Any, Any]:
    """Two rounds of a node, with noise; returns the task, and the downloads of the last round and
    of the next one."""
    shutil.rmtree("device", ignore_errors=True)
    users = divide_users(split.n_users, 2)[node]
    write_node_data(Path("device/data"), take_users(split, users))
    method = task.build()
    server, _ = method.init(task.n_users, task.n_items, task.seed)
    downloads = [_scaled(method.download(server), 0.9**n) for n in range(ROUNDS + 1)]
    with mock.patch("secrets.randbits", return_value=12345 + task.seed + 100 * node):
        for round in range(1, ROUNDS + 1):
            device = _joined(task)
            device.step1(round, downloads[round - 1], _noise(device))
            if method.stateless:
                device.deliver(round, downloads[round])
            if round == 1:
                device.keep_as_best(1)
    shutil.move("device", folder)
    return task, downloads[-2], downloads[-1]


def _scaled(download: Any, factor: float) -> Any:
    arrays = (a * np.float32(factor) if a.dtype.kind == "f" else a for a in download)
    return type(download)(*arrays)


def _noise(device: Device) -> PrivateUploads:
    return PrivateUploads(LocalPrivacy(noise=0.1, clip=1.0).with_noise(0.1), device.seeds.noise)


def _joined(task: Task) -> Device:
    return Device.join(Path("device/state"), Path("device/data"), task, shared_seed=True)


def _next_round(task: Task, last: Any, fresh: Any) -> Any:
    with lock_folder(Path("device/state")):
        device = _joined(task)
        reply = device.step1(ROUNDS + 1, fresh, _noise(device))
        return reply, _joined(task).devices.arrays()


def _round_again(task: Task, last: Any, fresh: Any) -> Any:
    with lock_folder(Path("device/state")):
        return _joined(task).step1(ROUNDS, last)


def _evaluate(task: Task, last: Any, fresh: Any) -> Any:
    with lock_folder(Path("device/state")):
        device = _joined(task)
        return [device.metric_sums(part) for part in ("validation", "test")]


def _keep_best(task: Task, last: Any, fresh: Any) -> Any:
    with lock_folder(Path("device/state")):
        _joined(task).keep_as_best(ROUNDS)
        return Device.open(Path("device/state"), best=True).devices.arrays()


def _told(*words: str) -> Any:
    told = command("device", *words, "--state", "device/state", "--data", "device/data", "--json")
    if told.refusal is not None:
        return Refused(told.refusal)
    return {name: value for name, value in json.loads(told.out).items() if name != "bytes"}


USES: dict[str, Callable[[Task, Any, Any], Any]] = {
    "next round": _next_round,
    "round again": _round_again,
    "evaluate": _evaluate,
    "keep as best": _keep_best,
    "status": lambda *_: _told("status"),
    "recommend": lambda *_: _told("recommend", "--user", "u3"),
    "device evaluate": lambda *_: _told("evaluate"),
}
"""What a device does with its folders: for the server, and for its user."""


def _equal(a: Any, b: Any) -> bool:
    """Whether two results are equal, with arrays in dicts and lists."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)
