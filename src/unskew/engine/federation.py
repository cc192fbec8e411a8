"""The round loop of the simulator: draw clients, train them in chunks, aggregate and evaluate."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from unskew.engine.blocks import StateFolder
from unskew.engine.contract import CheckedMethod
from unskew.engine.devices import Devices
from unskew.engine.evaluate import evaluate
from unskew.engine.executor import (
    MAX_CHUNK_CLIENTS,
    Executor,
    ThreadExecutor,
    Trained,
    Transform,
    batches,
    train_chunk,
)
from unskew.engine.memory import check_memory, disk_for_state, memory_errors_explained
from unskew.engine.scoreboard import Scoreboard
from unskew.kernels import ExactSum, add_uploads, get_threads
from unskew.ragged import indptr_from_counts, positions, select
from unskew.rng import Purpose, generator
from unskew.types import (
    Cohort,
    Int64,
    Method,
    Rows,
    Split,
    UnskewError,
    Upload,
    Uploads,
)

if TYPE_CHECKING:
    from unskew.engine.checkpoints import Checkpoints

MAX_CHUNK_BYTES = 8 * 2**20
"""Maximum bytes of the private state of a chunk's clients; large states make chunks smaller."""
MIN_CHUNKS_PER_WORKER = 4
"""Minimum number of chunks per worker and round, so that workers finish at about the same time."""

Row = dict[str, Any]
"""A round's numbers (losses, metrics, seconds, bytes) as a JSON object."""


@dataclass
class State:
    """State of a run between two rounds: everything that later rounds depend on, and the devices of
    the best round so far, which are used to recommend."""

    round: int
    server: Any
    devices: Devices
    scoreboard: Scoreboard
    best_round: int
    best_devices: Devices
    best_scoreboard: Scoreboard
    rows: list[Row] = field(default_factory=list)


class Federation:
    """Simulates the training of a method. Method, data split and seed determine the result."""

    def __init__(
        self,
        method: Method,
        split: Split,
        seed: int,
        *,
        chunk: int = MAX_CHUNK_CLIENTS,
        transform: Transform | None = None,
        executor: Executor | None = None,
        evaluate_every: int = 1,
        evaluate_users: int | None = None,
        state_on_disk: bool | None = None,
    ) -> None:
        """``chunk`` is the maximum number of clients per chunk. ``transform`` is applied to uploads
        before they are sent. ``executor`` trains the chunks; default: one worker per thread, or a
        single one with ``transform``, which must see the uploads in a fixed order.

        The model is evaluated after every ``evaluate_every`` rounds and after the last one, for
        ``evaluate_users`` users drawn once (default: all); after the last round for everybody."""
        self.method, self.split, self.seed = method, split, seed
        self._chunk, self._transform, self._executor = chunk, transform, executor
        self._evaluate_every, self._counted = evaluate_every, self._draw_counted(evaluate_users)
        self._checked, self._state_on_disk = False, state_on_disk
        self._needs = frozenset(getattr(method, "needs", ()))
        self._ages = split.train_ages if method.uses_ages else None
        if "item_features" in self._needs:
            method.set_item_features(self._needed("item_features", split.item_features))

    def run(
        self,
        rounds: int | None = None,
        *,
        state: State | None = None,
        checkpoints: Checkpoints | None = None,
        before_round: Callable[[State], object] | None = None,
        on_round: Callable[[State, Row], object] | None = None,
    ) -> State:
        """Train up to round ``rounds`` (default: the method's setting) and return the state.

        Training continues from ``state`` if given, else from the newest checkpoint, else it starts
        afresh. ``on_round`` is called after each round with the state and the round's row (losses,
        metrics, seconds, bytes). Entries that it adds to the row are saved in the checkpoint.
        """
        last = self.method.config.rounds if rounds is None else rounds
        with memory_errors_explained(self.method, self.split):
            if state is None and checkpoints is not None:
                state = checkpoints.load(self)
                if state is not None:
                    disk = disk_for_state(checkpoints.folder, self._state_on_disk)
                    state.devices.keep_within(disk)
            if state is None:
                state = self.start(None if checkpoints is None else checkpoints.folder)
            while state.round < last:
                if before_round is not None:
                    before_round(state)
                row = self.step(state, last)
                if state.round >= last:
                    self._evaluate_everybody(state)
                if on_round is not None:
                    on_round(state, row)
                if checkpoints is not None:
                    checkpoints.after_round(state, final=state.round >= last)
        return state

    def start(self, folder: StateFolder | None = None) -> State:
        """State before the first round: all clients have the initial model. ``folder`` is for
        private state that is kept on disk (default: a temporary one)."""
        on_disk = bool(self._state_on_disk)
        check_memory(self.method, self.split, self.seed, state_on_disk=on_disk)
        checked = CheckedMethod(self.method)
        server, private = checked.init(self.split.n_users, self.split.n_items, self.seed)
        download = self.method.retained_download(self.method.download(server))
        disk = disk_for_state(folder, self._state_on_disk)
        devices, board = Devices(private, download, disk), Scoreboard(self.split)
        state = State(0, server, devices, board, 0, devices, board)
        self._evaluate(state)
        state.best_devices, state.best_scoreboard = devices.snapshot(), board.snapshot()
        return state

    def step(self, state: State, last: int | None = None) -> Row:
        """Train and evaluate one round. Changes ``state``; returns the round's losses and metrics.
        ``last`` is the number of the last round, which is always evaluated.

        The best round is the one with the highest validation NDCG@10, the first one in a tie; the
        last round if nobody has validation items. After a round without an evaluation the metrics
        are those of the last one.
        """
        began, board, devices = time.perf_counter(), state.scoreboard, state.devices
        central = self.method.aggregation == "central"
        users, figures = self._train_epoch(state) if central else self._train_clients(state)
        state.round += 1
        board.outdated[slice(None) if self.method.stateless else users] = True
        trained, clients = time.perf_counter(), len(users)
        due = state.round % self._evaluate_every == 0 and self.method.evaluated(state.round)
        if evaluated := due or state.round == last:
            figures |= self._evaluate(state)
        row = {
            "round": state.round,
            "seconds": trained - began,
            "evaluation_seconds": time.perf_counter() - trained,
            "clients": clients,
            **figures,
            "validation": _headline(board.means("validation", self._counted)),
            "test": _headline(board.means("test", self._counted)),
        }
        best_so_far = -1.0
        if state.best_round:
            best_so_far = state.rows[state.best_round - 1]["validation"]["ndcg@10"]
        if evaluated and not row["validation"]["ndcg@10"] <= best_so_far:  # also if it is NaN
            state.best_round = state.round
            # The old best first: what only it shares with the devices can then be cleaned up.
            state.best_devices, state.best_scoreboard = devices, board
            state.best_devices, state.best_scoreboard = devices.snapshot(), board.snapshot()
        state.rows.append(row)
        return row

    def cohort_of(self, round: int) -> Int64:
        """Indices of the users who take part in a round, ascending."""
        n_users = self.split.n_users
        return draw_cohort(self.seed, round, n_users, self.method.cohort_size(round, n_users))

    def cohort(self, users: Int64, round: int) -> Cohort:
        """The data for training ``users`` in a round: training items, items never drawn as
        negatives and, if the method needs them, ratings and timestamps."""
        split = self.split
        cohort = Cohort(
            users,
            select(split.train, users),
            select(split.excluded, users),
            split.n_items,
            self.seed,
            round,
        )
        asked = bool(self._needs) or self._ages is not None
        place = positions(split.train.indptr, users) if asked else users
        if "ratings" in self._needs:
            ratings = self._needed("ratings", split.train_ratings)
            cohort = cohort._replace(ratings=ratings[place])
        if "timestamps" in self._needs:
            timestamps = self._needed("timestamps", split.train_timestamps)
            cohort = cohort._replace(timestamps=timestamps[place])
        if self._ages is not None:
            cohort = cohort._replace(ages=self._ages[place])
        return cohort

    def _needed(self, name: str, values: Any) -> Any:
        """Return ``values``: ratings, timestamps or item features, as ``name`` says. Raises an
        UnskewError if they are None, because the method needs them."""
        if values is None:
            what = name.replace("_", " ")
            raise UnskewError(
                f"{self.method.name} needs {what} and {self.split.data} has none; give data with "
                f"{what}, or another method."
            )
        return values

    def _train_clients(self, state: State) -> tuple[Int64, Row]:
        """Train the clients of a round and aggregate on the server. Returns the participating
        users, and the round's mean loss and bytes sent."""
        method, devices, round = self.method, state.devices, state.round + 1
        users = self.cohort_of(round)
        download = method.download(state.server)
        # States of a stateless method are computed when it is evaluated; until then it has none.
        keeps_state = not method.stateless
        if keeps_state:
            devices.remember(state.round, method.retained_download(download))
        unread = method.unread_fields(round)
        executor = self._executor or ThreadExecutor(get_threads() if self._transform is None else 1)
        size = self._worker_chunk_size(devices, len(users), executor.workers)
        chunks = list(batches(users, size))
        # The first results that a method returns to this process are checked.
        checked: Any = method if self._checked else CheckedMethod(method)
        self._checked = True

        def train(chunk: Int64) -> Trained:
            private, cohort = devices.take(chunk, unread), self.cohort(chunk, round)
            trainer = checked if chunk is chunks[0] else method
            return train_chunk(trainer, download, private, cohort, self._transform)

        total: ExactSum | None = None
        each: list[tuple[Int64, Upload]] = []
        losses, bytes_up = [], 0
        results = executor.map_chunks(train, chunks)
        for chunk, (private, upload, chunk_losses) in zip(chunks, results, strict=True):
            if method.aggregation == "sum":
                total = add_uploads(total, upload, self.split.n_items)
            else:
                each.append((chunk, upload))
            if keeps_state:
                # Stored by this thread only: memory freed by one thread is not reused by another.
                devices.put(chunk, private, state.round)
            losses.append(chunk_losses)
            bytes_up += upload.nbytes
        devices.forget()
        received = concatenate_uploads(each) if total is None else total.result()
        state.server = checked.aggregate(state.server, received)
        loss, bytes_down = np.concatenate(losses).mean(), method.download_bytes(download)
        figures = {"loss": float(loss), "bytes_up": bytes_up}
        return users, figures | {"bytes_down": int(bytes_down) * len(users)}

    def _train_epoch(self, state: State) -> tuple[Int64, Row]:
        """Train a central baseline for one epoch over all data, which counts as a round. Returns
        all users, and the mean loss."""
        method: Any = self.method if self._checked else CheckedMethod(self.method)
        self._checked = True
        devices, round, everyone = state.devices, state.round + 1, np.arange(self.split.n_users)
        private, cohort = devices.take(everyone), self.cohort(everyone, round)
        state.server, private, loss = method.epoch(state.server, private, cohort)
        devices.put(everyone, private, round)
        devices.remember(round, method.retained_download(method.download(state.server)))
        devices.forget()
        return everyone, {"loss": float(loss), "bytes_up": 0, "bytes_down": 0}

    def _draw_counted(self, size: int | None) -> Int64:
        """Users who are evaluated between rounds: ``size`` of those with items held out."""
        held_out = np.flatnonzero(self.split.validation.counts() + self.split.test.counts())
        if size is None or size >= len(held_out):
            return np.arange(self.split.n_users)
        random = generator(self.seed, Purpose.EVALUATED_USERS, 0)
        return np.sort(random.permutation(held_out)[:size])

    def _evaluate(self, state: State) -> Row:
        """Evaluate those counted users whose ranks are out of date. Returns their number, and the
        bytes sent. The newest model of a stateless method goes to all counted users first."""
        method, devices, board = self.method, state.devices, state.scoreboard
        figures: Row = {}
        if method.stateless and method.aggregation != "central":
            download = method.retained_download(method.download(state.server))
            devices.remember(state.round, download)
            self._deliver(devices, state.round, self._counted)
            if state.round:
                bytes_down = int(method.download_bytes(method.download(state.server)))
                figures["evaluation_bytes_down"] = bytes_down * len(self._counted)
        users = self._counted[board.outdated[self._counted]]
        evaluate(method, self.split, devices, board, users, self._chunk_size(devices))
        return figures | {"evaluated": len(users)}

    def _evaluate_everybody(self, state: State) -> None:
        """After the last round: evaluate all users whose ranks are out of date, with the last and
        with the best model."""
        stateless = self.method.stateless and self.method.aggregation != "central"
        if stateless and state.scoreboard.outdated.any():
            download = self.method.download(state.server)
            state.devices.remember(state.round, self.method.retained_download(download))
        for devices, board in (
            (state.devices, state.scoreboard),
            (state.best_devices, state.best_scoreboard),
        ):
            users = np.flatnonzero(board.outdated)
            if stateless and len(users):
                self._deliver(devices, max(devices.downloads), users)
            size = self._chunk_size(devices)
            evaluate(self.method, self.split, devices, board, users, size)

    def _deliver(self, devices: Devices, version: int, users: Int64) -> None:
        """Send ``users`` the download with this number and compute their states from it and their
        training items, for methods without parameters per user."""
        download = devices.downloads[version]
        for batch in batches(users, self._chunk_size(devices)):
            history = select(self.split.train, batch)
            private = self.method.refresh(download, devices.take(batch), history)
            devices.put(batch, private, version)
        devices.forget()

    def _chunk_size(self, devices: Devices) -> int:
        return min(self._chunk, max(1, int(MAX_CHUNK_BYTES / devices.mean_bytes())))

    def _worker_chunk_size(self, devices: Devices, n_users: int, workers: int) -> int:
        """Number of clients per chunk: few enough that every worker gets several chunks, and that
        all chunks in memory at the same time stay within ``MAX_CHUNK_BYTES``. Methods with
        ``large_chunks`` get as few chunks as memory allows, of equal size."""
        if self.method.large_chunks:
            parts = workers * -(-n_users // (workers * self._chunk_size(devices)))
            return max(1, -(-n_users // parts))
        size = self._chunk_size(devices) // (2 * workers)
        return max(1, min(size, -(-n_users // (workers * MIN_CHUNKS_PER_WORKER))))


def concatenate_uploads(each: list[tuple[Int64, Upload]]) -> Uploads:
    """Concatenate the uploads in ``each``, a (users, upload) pair per chunk. Empties the list, to
    save memory."""
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


def draw_cohort(seed: int, round: int, n_users: int, size: int) -> Int64:
    """Draw ``size`` users for a round without replacement, ascending. Deployments draw the same
    users."""
    chosen = generator(seed, Purpose.COHORT, round).permutation(n_users)[:size]
    return np.sort(chosen).astype(np.int64)


def _headline(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in ("hr@10", "ndcg@10")}


def return_freed() -> None:
    """Make the GNU C library return freed memory to the operating system, because small freed
    blocks cannot hold the large arrays needed next. No effect with other C libraries."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
