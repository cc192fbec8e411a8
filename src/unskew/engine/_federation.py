"""The round loop: who takes part, in which chunks, in which order the three steps happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unskew.engine._devices import Devices, select
from unskew.engine._scoreboard import Scoreboard
from unskew.kernels import empty_sum, fold
from unskew.rng import Purpose, generator
from unskew.types import Cohort, Int64, Method, Split, Upload, UploadSum

CHUNK = 512
"""Clients simulated at a time; bounds memory, changes nothing else."""

Transform = Callable[[Upload, Cohort], Upload]
"""A privacy mechanism: what the devices of a cohort really send in place of their upload."""


@dataclass
class State:
    """A training run between two rounds. Everything a later round depends on is here."""

    round: int
    server: Any
    devices: Devices
    scoreboard: Scoreboard
    best_round: int
    best_server: Any
    best_devices: Devices
    best_scoreboard: Scoreboard
    rows: list[dict[str, Any]] = field(default_factory=list)


class Federation:
    """A method, a split and a seed: all that determines a run's result."""

    def __init__(
        self,
        method: Method,
        split: Split,
        seed: int,
        *,
        chunk: int = CHUNK,
        transform: Transform | None = None,
    ) -> None:
        self.method, self.split, self.seed = method, split, seed
        self._chunk, self._transform = chunk, transform

    def start(self) -> State:
        """The federation before its first round, every client with the initial model."""
        server, private = self.method.init(self.split.n_users, self.split.n_items, self.seed)
        devices = Devices(private, self.method.download(server))
        board = Scoreboard(self.split)
        for users in self._chunks(np.arange(self.split.n_users)):
            board.update(users, self.method.score(devices.downloads[0], devices.take(users)))
        snapshot = devices.snapshot()
        return State(0, server, devices, board, 0, server, snapshot, board.snapshot())

    def step(self, state: State) -> dict[str, Any]:
        """Play one round, changing ``state``; returns the round's row of figures."""
        began = time.perf_counter()
        round = state.round + 1
        users = self.cohort_of(round)
        download = self.method.download(state.server)
        state.devices.remember(state.round, download)
        total: UploadSum | None = None
        losses, bytes_up, evaluating = [], 0, 0.0
        with ThreadPoolExecutor(1, thread_name_prefix="unskew-server") as server_side:
            for chunk in self._chunks(users):
                cohort = self._cohort(chunk, round)
                private = state.devices.take(chunk)
                private, upload, loss = self.method.local(download, private, cohort)
                if self._transform is not None:
                    upload = self._transform(upload, cohort)
                # Step 3 folds the upload in while the devices are busy with Step 2.
                total = empty_sum(self.split.n_items, upload) if total is None else total
                folding = server_side.submit(fold, total, upload)
                private = self.method.personalize(download, private, cohort)
                state.devices.put(chunk, private, state.round)
                total = folding.result()
                losses.append(loss)
                bytes_up += upload.nbytes
                paused = time.perf_counter()
                state.scoreboard.update(chunk, self.method.score(download, private))
                evaluating += time.perf_counter() - paused
        assert total is not None
        state.server = self.method.aggregate(state.server, total)
        state.round = round
        row = {
            "round": round,
            "seconds": time.perf_counter() - began - evaluating,
            "evaluation_seconds": evaluating,
            "clients": len(users),
            "loss": float(np.concatenate(losses).mean()),
            "bytes_up": bytes_up,
            "bytes_down": sum(array.nbytes for array in download) * len(users),
            "validation": _headline(state.scoreboard.means("validation")),
            "test": _headline(state.scoreboard.means("test")),
        }
        self._keep_best(state, row)
        state.rows.append(row)
        return row

    def cohort_of(self, round: int) -> Int64:
        """The clients of a round, in ascending order: drawn without replacement."""
        n = self.split.n_users
        size = max(1, int(n * self.method.config.participation))
        chosen = generator(self.seed, Purpose.COHORT, round).permutation(n)[:size]
        return np.sort(chosen).astype(np.int64)

    def _keep_best(self, state: State, row: dict[str, Any]) -> None:
        """The best round is chosen on validation NDCG@10 alone; the first of equals stays."""
        best = max(
            (r["validation"]["ndcg@10"] for r in state.rows if r["round"] <= state.best_round),
            default=-1.0,
        )
        if row["validation"]["ndcg@10"] > best:
            state.best_round, state.best_server = state.round, state.server
            state.best_devices = state.devices.snapshot()
            state.best_scoreboard = state.scoreboard.snapshot()

    def _cohort(self, users: Int64, round: int) -> Cohort:
        return Cohort(
            users,
            select(self.split.train, users),
            select(self.split.excluded, users),
            self.split.n_items,
            self.seed,
            round,
        )

    def _chunks(self, users: Int64) -> Iterator[Int64]:
        for low in range(0, len(users), self._chunk):
            yield users[low : low + self._chunk]


def _headline(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in ("hr@10", "ndcg@10")}
