"""The round loop of the simulator: draw clients, train them in chunks, aggregate and evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from unskew.engine.blocks import StateFolder
from unskew.engine.contract import CheckedMethod
from unskew.engine.devices import Devices
from unskew.engine.executor import MAX_CHUNK_CLIENTS, Executor, Transform
from unskew.engine.group import Contribution, Group, concatenate_uploads
from unskew.engine.memory import check_memory, disk_for_state, memory_errors_explained
from unskew.engine.scoreboard import Scoreboard
from unskew.rng import Purpose, generator
from unskew.types import Int64, Method, Split

if TYPE_CHECKING:
    from unskew.engine.checkpoints import Checkpoints

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


class Federation(Group):
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
        options: dict[str, Any] = {"transform": transform, "executor": executor}
        super().__init__(method, split, seed, chunk=chunk, **options)
        self._evaluate_every, self._counted = evaluate_every, self._draw_counted(evaluate_users)
        self._state_on_disk = state_on_disk

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
            else:
                self._place(state)
            while state.round < last:
                if before_round is not None:
                    before_round(state)
                row = self.step(state, last)
                if state.round >= last:
                    self._evaluate_everybody(state)
                if on_round is not None:
                    on_round(state, row)
                if checkpoints is not None:
                    checkpoints.after_round(state, state.round >= last, self._gather)
            self._gather(state)
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
        self._place(state)
        self._evaluate(state)
        self._keep_best(state)
        return state

    def step(self, state: State, last: int | None = None) -> Row:
        """Train and evaluate one round. Changes ``state``; returns the round's losses and metrics.
        ``last`` is the number of the last round, which is always evaluated.

        The best round is the one with the highest validation NDCG@10, the first one in a tie; the
        last round if nobody has validation items. After a round without an evaluation the metrics
        are those of the last one.
        """
        began, board = time.perf_counter(), state.scoreboard
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
            self._keep_best(state)
        state.rows.append(row)
        return row

    def cohort_of(self, round: int) -> Int64:
        """Indices of the users who take part in a round, ascending."""
        n_users = self.split.n_users
        return draw_cohort(self.seed, round, n_users, self.method.cohort_size(round, n_users))

    def _train_clients(self, state: State) -> tuple[Int64, Row]:
        """Train the clients of a round and aggregate on the server. Returns the participating
        users, and the round's mean loss and bytes sent."""
        users, download = self.cohort_of(state.round + 1), self.method.download(state.server)
        total, each, losses, bytes_up = self._train_devices(state, users, download)
        received = concatenate_uploads(each) if total is None else total.result()
        state.server = self.first_checked("aggregate").aggregate(state.server, received)
        bytes_down = int(self.method.download_bytes(download)) * len(users)
        figures = {"loss": float(losses.mean()), "bytes_up": bytes_up, "bytes_down": bytes_down}
        return users, figures

    def _train_epoch(self, state: State) -> tuple[Int64, Row]:
        """Train a central baseline for one epoch over all data, which counts as a round. Returns
        all users, and the mean loss."""
        method = self.first_checked("epoch")
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
        method = self.method
        figures: Row = {}
        if self._is_stateless:
            self._deliver_newest(state, self._counted)
            if state.round:
                bytes_down = int(method.download_bytes(method.download(state.server)))
                figures["evaluation_bytes_down"] = bytes_down * len(self._counted)
        users = self._counted[state.scoreboard.outdated[self._counted]]
        self._evaluate_devices(state, users)
        return figures | {"evaluated": len(users)}

    def _evaluate_everybody(self, state: State) -> None:
        """After the last round: evaluate all users whose ranks are out of date, with the last and
        with the best model."""
        users = np.flatnonzero(state.scoreboard.outdated)
        if self._is_stateless and len(users):
            self._deliver_newest(state, users)
        self._evaluate_devices(state, users)
        users = np.flatnonzero(state.best_scoreboard.outdated)
        if self._is_stateless and len(users):
            self._deliver(state, users, state.best_round, best=True)
        self._evaluate_devices(state, users, best=True)

    @property
    def _is_stateless(self) -> bool:
        return self.method.stateless and self.method.aggregation != "central"

    def _deliver_newest(self, state: State, users: Int64) -> None:
        """Send the newest download to ``users`` of a method without parameters per user."""
        download = self.method.retained_download(self.method.download(state.server))
        self._deliver(state, users, state.round, download)

    # What is done to devices. They are in this process; `ray.py` has them in others.

    def _place(self, state: State) -> None:
        """Called before the first round with the state that training starts or continues from."""

    def _train_devices(self, state: State, users: Int64, download: Any) -> Contribution:
        return self.train(state.devices, users, state.round + 1, download)

    def _deliver(
        self,
        state: State,
        users: Int64,
        version: int,
        download: Any | None = None,
        *,
        best: bool = False,
    ) -> None:
        devices = state.best_devices if best else state.devices
        self.deliver(devices, users, version, download)

    def _evaluate_devices(self, state: State, users: Int64, *, best: bool = False) -> None:
        devices = state.best_devices if best else state.devices
        self.evaluate(devices, state.best_scoreboard if best else state.scoreboard, users)

    def _keep_best(self, state: State) -> None:
        """Keep the devices and their ranks as those of the best round."""
        devices, board = state.devices, state.scoreboard
        # The old best first: what only it shares with the devices can then be cleaned up.
        state.best_devices, state.best_scoreboard = devices, board
        state.best_devices, state.best_scoreboard = devices.snapshot(), board.snapshot()

    def _gather(self, state: State) -> None:
        """Called before the state is saved or returned: ``state`` has all devices afterwards."""


def draw_cohort(seed: int, round: int, n_users: int, size: int) -> Int64:
    """Draw ``size`` users for a round without replacement, ascending. Deployments draw the same
    users."""
    chosen = generator(seed, Purpose.COHORT, round).permutation(n_users)[:size]
    return np.sort(chosen).astype(np.int64)


def _headline(metrics: dict[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in ("hr@10", "ndcg@10")}
