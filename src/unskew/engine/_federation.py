"""The round loop: who takes part, in which chunks, in which order the three steps happen."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from unskew.engine._devices import Devices
from unskew.engine._memory import return_freed
from unskew.engine._scoreboard import Scoreboard
from unskew.kernels import empty_sum, fold, get_threads, work_alone
from unskew.ragged import indptr_from_counts, select
from unskew.rng import Purpose, generator
from unskew.types import (
    Aggregation,
    Cohort,
    Float64,
    Int64,
    Method,
    Rows,
    Split,
    Upload,
    Uploads,
    UploadSum,
)

CHUNK = 256
"""Clients simulated at a time, at most; bounds memory, changes nothing else."""
_HELD = 8 * 2**20
"""Bytes that the clients of a chunk may have on their devices together: fewer clients where each
holds a whole item table."""
_EVALUATED = 32
"""Clients evaluated at a time: some methods make a whole item table for each of them."""
_TURNS = 4
"""Chunks that a lane plays in a round at least, so that no lane waits long for another's last."""

Transform = Callable[[Upload, Cohort], Upload]
"""A privacy mechanism: what the devices of a cohort really send in place of their upload."""


_Played = TypeVar("_Played")


@dataclass
class State:
    """A training run between two rounds: everything a later round depends on, and of the best round
    the devices, which have all that recommending needs."""

    round: int
    server: Any
    devices: Devices
    scoreboard: Scoreboard
    best_round: int
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
        devices = Devices(private, kept_download(self.method, self.method.download(server)))
        board = Scoreboard(self.split)
        for users in self._chunks(np.arange(self.split.n_users), devices):
            board.update(users, self.method.score(devices.downloads[0], devices.take(users)))
        snapshot = devices.snapshot()
        return State(0, server, devices, board, 0, snapshot, board.snapshot())

    def step(self, state: State) -> dict[str, Any]:
        """Play one round, changing ``state``; returns the round's row of figures."""
        central = self.method.aggregation == "central"
        row = self._epoch(state) if central else self._round(state)
        row |= {
            "validation": _headline(state.scoreboard.means("validation")),
            "test": _headline(state.scoreboard.means("test")),
        }
        self._keep_best(state, row)
        state.rows.append(row)
        return row

    def _round(self, state: State) -> dict[str, Any]:
        began = time.perf_counter()
        round = state.round + 1
        users = self.cohort_of(round)
        download = self.method.download(state.server)
        state.devices.remember(state.round, kept_download(self.method, download))
        chunks = list(self._chunks(users, state.devices, self._lanes()))
        unread = unread_leaves(self.method, round)
        server_side = _ServerSide(self.method.aggregation, self.split.n_items)
        losses, bytes_up = [], 0
        with ThreadPoolExecutor(1, thread_name_prefix="unskew-server") as server:

            def play(number: int) -> tuple[Int64, Any, Float64, int]:
                """The chunk, its new private state, its losses, and the bytes it has sent."""
                chunk = chunks[number]
                cohort = self._cohort(chunk, round)
                private = state.devices.take(chunk, unread)
                private, upload, loss = self.method.local(download, private, cohort)
                if self._transform is not None:
                    upload = self._transform(upload, cohort)
                # Step 3 takes the upload in while the devices are busy with Step 2.
                received = server.submit(server_side.receive, number, chunk, upload)
                private = self.method.personalize(download, private, cohort)
                received.result()
                return chunk, private, loss, upload.nbytes

            for chunk, private, loss, sent in self._in_lanes(play, len(chunks)):
                # Stored by this thread alone: an allocator keeps apart what threads allocate, and
                # what one of them had freed would not serve another.
                state.devices.put(chunk, private, state.round)
                losses.append(loss)
                bytes_up += sent
        state.devices.forget()
        paused = time.perf_counter()
        for chunk in _portions(users, min(self._chunk, _EVALUATED)):
            board, private = state.scoreboard, state.devices.take(chunk)
            board.update(chunk, self.method.score(download, private))
        evaluating = time.perf_counter() - paused
        state.server = self.method.aggregate(state.server, server_side.received())
        state.round = round
        return {
            "round": round,
            "seconds": time.perf_counter() - began - evaluating,
            "evaluation_seconds": evaluating,
            "clients": len(users),
            "loss": float(np.concatenate(losses).mean()),
            "bytes_up": bytes_up,
            "bytes_down": download_bytes(self.method, download) * len(users),
        }

    def _epoch(self, state: State) -> dict[str, Any]:
        """A central baseline's round: an epoch over everything, then everyone is evaluated."""
        began = time.perf_counter()
        method: Any = self.method
        round = state.round + 1
        everyone = np.arange(self.split.n_users)
        private = state.devices.take(everyone)
        cohort = self._cohort(everyone, round)
        state.server, private, loss = method.epoch(state.server, private, cohort)
        seconds = time.perf_counter() - began
        download = method.download(state.server)
        state.devices.put(everyone, private, round)
        state.devices.remember(round, download)
        state.devices.forget()
        for users in self._chunks(everyone, state.devices):
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

    def cohort_of(self, round: int) -> Int64:
        return draw_cohort(self.seed, round, self.split.n_users, self.method.config.participation)

    def _keep_best(self, state: State, row: dict[str, Any]) -> None:
        """The best round is chosen on validation NDCG@10 alone; the first of equals stays."""
        best = max(
            (r["validation"]["ndcg@10"] for r in state.rows if r["round"] <= state.best_round),
            default=-1.0,
        )
        if row["validation"]["ndcg@10"] > best:
            state.best_round = state.round
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

    def _lanes(self) -> int:
        """How many chunks are played side by side: as many as there are threads, unless somebody
        looks at the uploads, who is shown them one after another in the order of the cohort."""
        return get_threads() if self._transform is None else 1

    def _in_lanes(self, play: Callable[[int], _Played], count: int) -> Iterator[_Played]:
        """``play`` all chunks; results in order. A lane works by itself from a chunk's first step
        to its last, so none waits for another until the round ends; a single lane shares each
        step's work among all threads instead."""
        lanes = self._lanes()
        prepare = work_alone if lanes > 1 else None
        with ThreadPoolExecutor(lanes, "unskew-lane", initializer=prepare) as executor:
            playing: deque[Future[_Played]] = deque()
            for number in range(count):
                playing.append(executor.submit(play, number))
                if len(playing) > lanes:  # no more than are needed to keep the lanes busy
                    yield playing.popleft().result()
            for rest in playing:
                yield rest.result()

    def _chunks(self, users: Int64, devices: Devices, lanes: int = 0) -> Iterator[Int64]:
        """The users in portions; where lanes play them, small enough that what is being played and
        what waits to be stored stay within a chunk together, and that there are some for each."""
        size = min(self._chunk, max(1, int(_HELD / devices.mean_bytes())))
        if lanes:
            size = max(1, min(size // (2 * lanes), -(-len(users) // (lanes * _TURNS))))
        yield from _portions(users, size)


def _portions(users: Int64, size: int) -> Iterator[Int64]:
    for low in range(0, len(users), size):
        yield users[low : low + size]


class _ServerSide:
    """What the server has of a round's uploads: their running sum, or each of them."""

    def __init__(self, aggregation: Aggregation, n_items: int) -> None:
        self._sums, self._n_items = aggregation == "sum", n_items
        self._total: UploadSum | None = None
        self._each: list[tuple[Int64, Upload]] = []
        self._early: dict[int, tuple[Int64, Upload]] = {}
        self._next = 0

    def receive(self, number: int, users: Int64, upload: Upload) -> None:
        """Take in the upload of a chunk, or keep it until all chunks before it have come: a sum's
        roundings depend on its order."""
        self._early[number] = (users, upload)
        while self._next in self._early:
            self._take_in(*self._early.pop(self._next))
            self._next += 1

    def _take_in(self, users: Int64, upload: Upload) -> None:
        if not self._sums:
            self._each.append((users, upload))
            return
        total = empty_sum(self._n_items, upload) if self._total is None else self._total
        self._total = fold(total, upload)

    def received(self) -> UploadSum | Uploads:
        if self._total is not None:
            return self._total
        return _joined(self._each)


def _joined(each: list[tuple[Int64, Upload]]) -> Uploads:
    """All chunks as one, which empties ``each``: a round's uploads are never in memory twice."""
    first = each[0][1]
    counts = np.concatenate([np.diff(upload.rows.indptr) for _, upload in each])
    indptr = indptr_from_counts(counts)
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
    """The clients of a round, in ascending order: drawn without replacement. A deployment draws the
    same."""
    size = max(1, int(n_users * share + 1e-9))
    chosen = generator(seed, Purpose.COHORT, round).permutation(n_users)[:size]
    return np.sort(chosen).astype(np.int64)


def download_bytes(method: Method, download: Any) -> int:
    """Bytes one client receives: the whole download, unless the method sends each its own part."""
    own = getattr(method, "download_bytes", None)
    return int(own(download)) if own else sum(array.nbytes for array in download)


def kept_download(method: Method, download: Any) -> Any:
    """What of a download a device still needs once the round is over."""
    own = getattr(method, "kept", None)
    return own(download) if own else download


def unread_leaves(method: Method, round: int) -> Collection[str]:
    """Parts of the private state that the method replaces in this round without looking at them."""
    own = getattr(method, "unread", None)
    return own(round) if own else ()


def _headline(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in ("hr@10", "ndcg@10")}
