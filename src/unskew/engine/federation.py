"""The round loop: which clients take part, in which chunks, and in which order steps happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from unskew.engine._memory import return_freed
from unskew.engine.devices import Devices
from unskew.engine.executor import ChunkResult, Executor, ThreadExecutor, Transform, train_chunk
from unskew.engine.scoreboard import Scoreboard
from unskew.kernels import empty_sum, fold, get_threads
from unskew.ragged import indptr_from_counts, select
from unskew.rng import Purpose, generator
from unskew.types import (
    Aggregation,
    Cohort,
    Int64,
    Method,
    Rows,
    Split,
    Upload,
    Uploads,
    UploadSum,
)

if TYPE_CHECKING:
    from unskew.engine.checkpoints import Checkpoints

CHUNK = 256
"""Maximum number of clients per chunk. It bounds memory and changes no result."""
MAX_CHUNK_BYTES = 8 * 2**20
"""Maximum size of a chunk's private state: chunks are smaller where clients hold whole tables."""
EVALUATION_BATCH_USERS = 32
"""Clients evaluated at a time: some methods make a whole item table for each of them."""
MIN_CHUNKS_PER_WORKER = 4
"""Minimum number of chunks per worker, so that workers finish at about the same time."""

Row = dict[str, Any]
"""The figures of a round, as they are saved."""


@dataclass
class State:
    """A run between two rounds: everything that later rounds depend on, and the devices of the
    best round, which hold all that recommending needs."""

    round: int
    server: Any
    devices: Devices
    scoreboard: Scoreboard
    best_round: int
    best_devices: Devices
    best_scoreboard: Scoreboard
    rows: list[Row] = field(default_factory=list)


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

    def run(
        self,
        rounds: int | None = None,
        *,
        state: State | None = None,
        checkpoints: Checkpoints | None = None,
        before_round: Callable[[State], object] | None = None,
        on_round: Callable[[State, Row], object] | None = None,
    ) -> State:
        """Train up to round ``rounds`` (by default the method's own number) and return the state.

        Training continues from ``state`` if there is one, else from the newest checkpoint, else it
        starts afresh. ``on_round`` gets the state after each round and the round's figures; what it
        adds to the figures is saved with them. The checkpoint of a round is written after it.
        """
        last = self.method.config.rounds if rounds is None else rounds
        if state is None and checkpoints is not None:
            state = checkpoints.load(self)
        if state is None:
            state = self.start()
        while state.round < last:
            if before_round is not None:
                before_round(state)
            row = self.step(state)
            if on_round is not None:
                on_round(state, row)
            if checkpoints is not None:
                checkpoints.after_round(state, final=state.round == last)
        return state

    def start(self) -> State:
        """The federation before its first round, every client with the initial model."""
        server, private = self.method.init(self.split.n_users, self.split.n_items, self.seed)
        download = self.method.download(server)
        devices = Devices(private, self.method.retained_download(download))
        board = Scoreboard(self.split)
        size = self._chunk_size(devices)
        for users in _batches(np.arange(self.split.n_users), size):
            board.update(users, self.method.score(devices.downloads[0], devices.take(users)))
        return State(0, server, devices, board, 0, devices.snapshot(), board.snapshot())

    def step(self, state: State) -> Row:
        """Train one round, changing ``state``; returns the round's figures."""
        central = self.method.aggregation == "central"
        row = self._train_epoch(state) if central else self._train_round(state)
        row |= {
            "validation": _headline(state.scoreboard.means("validation")),
            "test": _headline(state.scoreboard.means("test")),
        }
        self._remember_best(state, row)
        state.rows.append(row)
        return row

    def cohort_of(self, round: int) -> Int64:
        """The users who take part in a round."""
        return draw_cohort(self.seed, round, self.split.n_users, self.method.config.participation)

    def cohort(self, users: Int64, round: int) -> Cohort:
        """The cohort of these users in a round: their training items and excluded items."""
        return Cohort(
            users,
            select(self.split.train, users),
            select(self.split.excluded, users),
            self.split.n_items,
            self.seed,
            round,
        )

    def _train_round(self, state: State) -> Row:
        began = time.perf_counter()
        method, devices, round = self.method, state.devices, state.round + 1
        users = self.cohort_of(round)
        download = method.download(state.server)
        devices.remember(state.round, method.retained_download(download))
        unread = method.unread_fields(round)
        executor = self._executor()
        chunks = list(_batches(users, self._worker_chunk_size(devices, len(users), executor)))

        def train(chunk: Int64) -> ChunkResult:
            private, cohort = devices.take(chunk, unread), self.cohort(chunk, round)
            return train_chunk(method, download, private, cohort, self._transform)

        received = _Received(method.aggregation, self.split.n_items)
        losses, bytes_up = [], 0
        for result in executor.map_chunks(train, chunks):
            received.add(result.users, result.upload)
            # Stored by this thread alone: memory that one thread frees does not serve another.
            devices.put(result.users, result.private, state.round)
            losses.append(result.losses)
            bytes_up += result.upload.nbytes
        devices.forget()
        trained = time.perf_counter()
        for batch in _batches(users, min(self._chunk, EVALUATION_BATCH_USERS)):
            state.scoreboard.update(batch, method.score(download, devices.take(batch)))
        evaluating = time.perf_counter() - trained
        state.server = method.aggregate(state.server, received.total())
        state.round = round
        return {
            "round": round,
            "seconds": time.perf_counter() - began - evaluating,
            "evaluation_seconds": evaluating,
            "clients": len(users),
            "loss": float(np.concatenate(losses).mean()),
            "bytes_up": bytes_up,
            "bytes_down": int(method.download_bytes(download)) * len(users),
        }

    def _train_epoch(self, state: State) -> Row:
        """A round of a central baseline: one epoch over all data, then everyone is evaluated."""
        began = time.perf_counter()
        method: Any = self.method
        round = state.round + 1
        everyone = np.arange(self.split.n_users)
        private = state.devices.take(everyone)
        cohort = self.cohort(everyone, round)
        state.server, private, loss = method.epoch(state.server, private, cohort)
        seconds = time.perf_counter() - began
        download = method.download(state.server)
        state.devices.put(everyone, private, round)
        state.devices.remember(round, download)
        state.devices.forget()
        for users in _batches(everyone, self._chunk_size(state.devices)):
            state.scoreboard.update(users, method.score(download, state.devices.take(users)))
        state.round = round
        return {
            "round": round,
            "seconds": seconds,
            "evaluation_seconds": time.perf_counter() - began - seconds,
            "clients": len(everyone),
            "loss": float(loss),
            "bytes_up": 0,
            "bytes_down": 0,
        }

    def _remember_best(self, state: State, row: Row) -> None:
        """The best round has the highest validation NDCG@10; the first of equals stays."""
        best = max(
            (r["validation"]["ndcg@10"] for r in state.rows if r["round"] <= state.best_round),
            default=-1.0,
        )
        if row["validation"]["ndcg@10"] > best:
            state.best_round = state.round
            state.best_devices = state.devices.snapshot()
            state.best_scoreboard = state.scoreboard.snapshot()

    def _executor(self) -> Executor:
        """A worker per thread; a single one where a transform must see uploads in cohort order."""
        return ThreadExecutor(get_threads() if self._transform is None else 1)

    def _chunk_size(self, devices: Devices) -> int:
        return min(self._chunk, max(1, int(MAX_CHUNK_BYTES / devices.mean_bytes())))

    def _worker_chunk_size(self, devices: Devices, n_users: int, executor: Executor) -> int:
        """Small enough that chunks in training and chunks waiting to be stored stay within one
        chunk's size together, and that every worker gets several."""
        size = self._chunk_size(devices) // (2 * executor.workers)
        return max(1, min(size, -(-n_users // (executor.workers * MIN_CHUNKS_PER_WORKER))))


def _batches(users: Int64, size: int) -> Iterator[Int64]:
    for low in range(0, len(users), size):
        yield users[low : low + size]


class _Received:
    """The uploads of a round as the server gets them: their running sum, or each of them.

    They are added in the order of the cohort: the rounding of a sum depends on its order."""

    def __init__(self, aggregation: Aggregation, n_items: int) -> None:
        self._sums, self._n_items = aggregation == "sum", n_items
        self._sum: UploadSum | None = None
        self._each: list[tuple[Int64, Upload]] = []

    def add(self, users: Int64, upload: Upload) -> None:
        if not self._sums:
            self._each.append((users, upload))
            return
        total = empty_sum(self._n_items, upload) if self._sum is None else self._sum
        self._sum = fold(total, upload)

    def total(self) -> UploadSum | Uploads:
        return _concatenate(self._each) if self._sum is None else self._sum


def _concatenate(each: list[tuple[Int64, Upload]]) -> Uploads:
    """All chunks as one. Empties ``each``, so that no upload is in memory twice."""
    first = each[0][1]
    indptr = indptr_from_counts(np.concatenate([np.diff(one.rows.indptr) for _, one in each]))
    items = np.empty(indptr[-1], np.int32)
    values = np.empty((indptr[-1], first.rows.values.shape[1]), np.float32)
    users, dense, weight, at = [], [], [], 0
    while each:
        some, upload = each.pop(0)
        end = at + len(upload.rows.items)
        items[at:end], values[at:end] = upload.rows.items, upload.rows.values
        users.append(some)
        dense.append(upload.dense)
        weight.append(upload.weight)
        at = end
    rest = (np.concatenate(dense), np.concatenate(weight))
    return_freed()
    return Uploads(np.concatenate(users), Upload(Rows(indptr, items, values), *rest))


def draw_cohort(seed: int, round: int, n_users: int, share: float) -> Int64:
    """The clients of a round, ascending, drawn without replacement; a deployment draws the same."""
    size = max(1, int(n_users * share + 1e-9))
    chosen = generator(seed, Purpose.COHORT, round).permutation(n_users)[:size]
    return np.sort(chosen).astype(np.int64)


def _headline(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in ("hr@10", "ndcg@10")}
