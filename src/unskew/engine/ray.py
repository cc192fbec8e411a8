"""Train on more than one machine: a Ray cluster whose workers have the devices.

Each worker has a part of the users (a `Shard`). The process that starts the run, the driver, has
the server's state and everybody's ranks; it sends the users of a round and the download to the
workers. They add up the uploads of their users, and each other's sums along a tree, so that the
driver gets one. The sums are exact, so neither the number of workers nor their speed changes a bit.

The driver keeps the calls since each worker's last checkpoint, with the downloads in them. Ray
starts a worker that dies again; it reads its checkpoint and gets the later calls once more. When
the driver writes a checkpoint of the run, it first gathers the devices that have changed, so that a
run's folder is the same as if everything had been trained in one process.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np

from unskew.engine.executor import MAX_CHUNK_CLIENTS, batches
from unskew.engine.federation import Federation, State
from unskew.engine.group import Contribution
from unskew.engine.shard import MAX_MESSAGE_BYTES, NOT_PLACED, Loaded, Report, Shard
from unskew.kernels import ExactSum
from unskew.privacy import PrivateUploads
from unskew.types import Int64, Method, Split, UnskewError

MAX_RESTARTS = 10
"""Number of times that Ray starts a worker again before it counts as lost."""
MAX_SILENT_SECONDS = 300.0
"""Number of seconds in which a worker must start, or start again; after that it counts as lost."""
CLOSING_SECONDS = 10.0
"""Number of seconds that workers get to delete their checkpoints."""
LOCAL = "local"
"""The address that starts Ray on this machine, with a worker per core."""


class Place(NamedTuple):
    """Where a worker runs: a node, and a number of its processor cores."""

    node: str
    address: str
    cores: int


class _NotPlaced(Exception):
    """A worker died before it had all its devices."""


@dataclass(eq=False)
class _Call:
    """A call of a worker that may have to be made again."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    number: int | None
    """Position among the calls that change devices; None if it changes none."""
    returned: Any = None
    """Ray's reference to the result, or several."""


class Worker:
    """The driver's side of a shard: makes calls, and makes them again if the process dies."""

    def __init__(self, actor: Any, place: Place, first: int, end: int) -> None:
        self._actor, self._place = actor, place
        self.first, self.end = first, end
        self._unsaved: deque[_Call] = deque()
        self._number = 0
        self._begin: tuple[Any, ...] = ()

    def start(self, name: str, *arguments: Any, numbered: bool = False, **options: Any) -> _Call:
        """Make a call and return at once. ``numbered`` calls change devices."""
        number = None
        if numbered:
            self._number += 1
            number = self._number
        call = _Call(name, arguments, options, number)
        if numbered:
            self._unsaved.append(call)
        self._send(call)
        return call

    def finish(self, call: _Call) -> Any:
        """Wait for the result of a call. Of several results, it is the first."""
        while True:
            try:
                many = isinstance(call.returned, list)
                return _get(call.returned[0] if many else call.returned)
            except _errors().RayActorError:
                self.recover(call)

    def saved(self, number: int) -> None:
        """Take note that the calls up to this number are in the worker's checkpoint."""
        while self._unsaved and (self._unsaved[0].number or 0) <= number:
            self._unsaved.popleft()

    def wait_until_ready(self) -> None:
        """Wait until the worker's process runs; raises an UnskewError if it does not start."""
        errors, began = _errors(), time.monotonic()
        while True:
            try:
                _get(self._actor.ready.remote(), timeout=MAX_SILENT_SECONDS)
                return
            except (errors.ActorDiedError, errors.ActorUnschedulableError) as error:
                raise self.lost(str(error).strip().rpartition("\n")[2].rstrip(".")) from None
            except (errors.RayActorError, errors.GetTimeoutError):
                if time.monotonic() - began > MAX_SILENT_SECONDS:
                    raise self.lost("it does not answer, or its cores are not free") from None
                time.sleep(0.1)

    def begin(self, seed: int, transform: PrivateUploads | None) -> None:
        """Begin training with a seed; the worker has no devices then."""
        self._begin, self._number = (seed, transform), 0
        self._unsaved.clear()
        self._reach()

    def recover(self, call: _Call | None = None) -> None:
        """Bring a worker that was started again to where it was, and make ``call`` again."""
        if not self._begin:
            self.wait_until_ready()
        else:
            done = self._reach()
            if done == NOT_PLACED:
                raise _NotPlaced
            for earlier in self._unsaved:
                if (earlier.number or 0) > done:
                    self._send(earlier)
        if call is not None and call.number is None:
            self._send(call)

    def start_merge(self, one: Any, other: Any) -> Any:
        """Start to add two sums, given by Ray's references to them; returns that to the result."""
        return self._actor.merge.remote(one, other)

    def close(self) -> Any:
        """Start to delete the checkpoints; returns Ray's reference to wait for."""
        return self._actor.close.remote()

    def end_process(self) -> None:
        """End the process for good, so that its cores are free."""
        _ray().kill(self._actor)

    def lost(self, why: str) -> UnskewError:
        """The error that ends a run whose devices are gone."""
        return UnskewError(
            f"The Ray worker on {self._place.address} is lost ({why}), and with it the devices of "
            f"users {self.first} to {self.end - 1}; `unskew resume` goes on from the run's last "
            "checkpoint, on the rest of the cluster or without --ray."
        )

    def _send(self, call: _Call) -> None:
        method = getattr(self._actor, call.name)
        if call.name == "train":
            method = method.options(num_returns=2)
        numbered = () if call.number is None else (call.number,)
        call.returned = method.remote(*numbered, *call.arguments, **call.options)

    def _reach(self) -> int:
        """Call ``begin`` of the worker, as soon as it runs. Returns the number of its last call."""
        while True:
            self.wait_until_ready()
            try:
                done: int = _get(self._actor.begin.remote(*self._begin))
                return done
            except _errors().RayActorError:
                continue


class Cluster:
    """A Ray cluster that runs are trained on; ``with`` disconnects from it at the end."""

    def __init__(self, address: str, *, cores: int = 0) -> None:
        """``address`` is that of a cluster's head, "auto" for the one that runs on this machine, or
        "local", which starts Ray here with a worker on each of ``cores`` cores (0: all)."""
        ray = _ray()
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == LOCAL:
            options |= {"include_dashboard": False, "num_cpus": cores or None}
        try:
            ray.init(address=address, **options)
        except Exception as error:  # of many kinds, Exception itself among them
            why, what = str(error).strip().partition("\n")[0].rstrip("."), "start"
            if address != LOCAL:
                what = f"be reached at {address}"
            raise UnskewError(
                f"Ray cannot {what} ({why}); start a cluster with `ray start --head`, and see "
                "docs/ray.md."
            ) from None
        self.places = [
            Place(node["NodeID"], node["NodeManagerAddress"], int(node["Resources"]["CPU"]))
            for node in sorted(ray.nodes(), key=lambda node: str(node["NodeID"]))
            if node["Alive"] and node["Resources"].get("CPU", 0) >= 1
        ]
        if address == LOCAL:
            self.places = [place._replace(cores=1) for place in self.places * self.places[0].cores]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _ray().shutdown()

    @contextmanager
    def workers(
        self,
        load: Callable[[], Loaded],
        here: Loaded,
        *,
        state_on_disk: bool | None = None,
        chunk: int = MAX_CHUNK_CLIENTS,
    ) -> Iterator[list[Worker]]:
        """Yield a worker for each place, with its part of the users. ``load`` loads the data on any
        node; ``here`` is what this process has loaded."""
        check_method(here.build())
        strategy = _ray().util.scheduling_strategies.NodeAffinitySchedulingStrategy
        top = Path(tempfile.gettempdir()) / f"unskew-ray-{uuid.uuid4().hex}"
        cuts = divide(here.split, [place.cores for place in self.places])
        remote, workers = _ray().remote(Shard), list[Worker]()
        for number, (place, first, end) in enumerate(
            zip(self.places, cuts, cuts[1:], strict=False)
        ):
            actor = remote.options(
                num_cpus=place.cores,
                max_restarts=MAX_RESTARTS,
                max_task_retries=0,
                scheduling_strategy=strategy(place.node, soft=False),
            ).remote(load, first, end, top / str(number), place.cores, state_on_disk, chunk)
            workers.append(Worker(actor, place, first, end))
        try:
            for worker in workers:
                worker.wait_until_ready()
            calls = [worker.start("facts") for worker in workers]
            for worker, call in zip(workers, calls, strict=True):
                _check_facts(worker, worker.finish(call), here.facts)
            yield workers
        finally:
            _ray().wait(
                [w.close() for w in workers], num_returns=len(workers), timeout=CLOSING_SECONDS
            )
            for worker in workers:
                worker.end_process()


class RayFederation(Federation):
    """A federation whose devices are in the workers of a cluster."""

    def __init__(
        self,
        workers: Sequence[Worker],
        method: Method,
        split: Split,
        seed: int,
        *,
        transform: PrivateUploads | None = None,
        **options: Any,
    ) -> None:
        """``options`` are those of `Federation`. In this process, devices that were gathered are
        kept on disk."""
        options["state_on_disk"] = True
        super().__init__(method, split, seed, transform=transform, **options)
        self._workers, self._private = workers, transform
        self._gathered_best: int | None = None

    def _place(self, state: State) -> None:
        for worker in self._workers:
            worker.begin(self.seed, self._private)
        if not state.rows:  # `start` has not kept the best round's devices yet
            state.best_devices = state.devices.snapshot()
        self._gathered_best = state.best_round if state.rows else None
        held = _ray().put({**state.best_devices.downloads, **state.devices.downloads})
        changed = state.devices.differing(state.best_devices)
        for worker in self._workers:
            while True:
                try:
                    self._place_shard(worker, state, changed, held)
                    break
                except _NotPlaced:
                    continue

    def _place_shard(self, worker: Worker, state: State, changed: Int64, held: Any) -> None:
        worker.finish(worker.start("place", held))
        for best, users in ((True, np.arange(worker.first, worker.end)), (False, changed)):
            devices = state.best_devices if best else state.devices
            most = max(1, int(MAX_MESSAGE_BYTES / devices.mean_bytes()))
            for some in batches(_of(worker, users) + worker.first, most):
                private, versions = devices.take(some), devices.version[some]
                worker.finish(worker.start("put", some - worker.first, private, versions))
            worker.finish(worker.start("placed", best=best))

    def _train_devices(self, state: State, users: Int64, download: Any) -> Contribution:
        if not self.method.stateless:
            state.devices.remember(state.round, self.method.retained_download(download))
        sent = _ray().put(download)
        calls = self._start("train", users, state.round + 1, sent, numbered=True)
        reports: list[Report] = [worker.finish(call) for worker, call in calls]
        for (worker, _), report in zip(calls, reports, strict=True):
            worker.saved(report.saved)
            if self._private is not None:
                self._private.add_records(report.sent)
        losses = np.concatenate([report.losses for report in reports])
        bytes_up = sum(report.bytes_up for report in reports)
        return Contribution(self._add_up(calls), [], losses, bytes_up)

    def _add_up(self, calls: Sequence[tuple[Worker, _Call]]) -> ExactSum:
        """The sum of the workers' sums, which they add up in pairs, pairs of pairs, and so on."""
        for _ in range(MAX_RESTARTS):
            sums = [(worker, call.returned[1]) for worker, call in calls]
            while len(sums) > 1:
                pairs = zip(sums[::2], sums[1::2], strict=False)
                merged = [(one[0], one[0].start_merge(one[1], two[1])) for one, two in pairs]
                sums = merged + sums[2 * len(merged) :]
            try:
                total: ExactSum = _get(sums[0][1])
                return total
            except _errors().RayError:  # one has died; its sum is made again
                for worker, _ in calls:
                    worker.recover()
        raise calls[0][0].lost("sums of uploads do not arrive")

    def _deliver(
        self,
        state: State,
        users: Int64,
        version: int,
        download: Any | None = None,
        *,
        best: bool = False,
    ) -> None:
        if download is not None:
            state.devices.remember(version, download)
            download = _ray().put(download)
        calls = self._start("deliver", users, version, download, numbered=True, best=best)
        for worker, call in calls:
            worker.saved(worker.finish(call))

    def _evaluate_devices(self, state: State, users: Int64, *, best: bool = False) -> None:
        board = state.best_scoreboard if best else state.scoreboard
        for worker, call in self._start("evaluate", users, best=best):
            board.receive(_of(worker, users) + worker.first, worker.finish(call))

    def _keep_best(self, state: State) -> None:
        state.best_scoreboard = state.scoreboard.snapshot()
        calls = [(worker, worker.start("keep_best", numbered=True)) for worker in self._workers]
        for worker, call in calls:
            worker.saved(worker.finish(call))

    def _gather(self, state: State) -> None:
        if self._gathered_best == state.best_round:
            self._fetch(state.best_devices, best=True)
        else:
            state.best_devices = state.devices  # the old best first, see `Federation._keep_best`
            self._fetch(state.devices, best=True)
            state.best_devices = state.devices.snapshot()
            self._gathered_best = state.best_round
        self._fetch(state.devices, best=False)
        state.best_devices.forget()
        state.devices.forget()

    def _fetch(self, devices: Any, *, best: bool) -> None:
        """Put what has changed in the workers' devices to ``devices``."""
        received = {worker: np.zeros(0, np.int64) for worker in self._workers}
        while received:
            calls = [(w, w.start("fetch", users, best=best)) for w, users in received.items()]
            received = {}
            for worker, call in calls:
                found = worker.finish(call)
                if found is not None:
                    users, private, versions = found
                    devices.put(users + worker.first, private, versions)
                    received[worker] = users

    def _start(
        self, name: str, users: Int64, *arguments: Any, **options: Any
    ) -> list[tuple[Worker, _Call]]:
        """Make a call of every worker that has any of ``users``, with those that it has."""
        parts = [(worker, _of(worker, users)) for worker in self._workers]
        return [(w, w.start(name, own, *arguments, **options)) for w, own in parts if len(own)]


def check_method(method: Method) -> None:
    """Raise an UnskewError unless workers can add up what a method's devices send."""
    if method.aggregation == "sum":
        return
    why = "its server needs every single upload"
    if method.aggregation == "central":
        why = "it trains on all data in one place"
    raise UnskewError(
        f"{method.name} cannot be trained on several machines: {why}; leave out --ray."
    )


def divide(split: Split, cores: Sequence[int]) -> list[int]:
    """Divide the users among workers with so many cores each, by the number of their training
    items. Returns the number of each worker's first user, and that of all users at the end."""
    work = np.cumsum(split.train.counts() + 1)
    shares = np.cumsum(cores)[:-1] / sum(cores)
    cuts = np.searchsorted(work, shares * work[-1]) + 1
    return sorted({0, *(int(cut) for cut in cuts if cut < split.n_users), split.n_users})


def _of(worker: Worker, users: Int64) -> Int64:
    """Those of ``users``, ascending numbers, whom the worker has, as it numbers them."""
    low, high = np.searchsorted(users, (worker.first, worker.end))
    return users[low:high] - worker.first


def _check_facts(worker: Worker, found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise an UnskewError unless a worker has the same data and packages as this process."""
    for name, value in wanted.items():
        if found.get(name) != value:
            raise UnskewError(
                f"The Ray node {worker._place.address} has another {name} ({found.get(name)}) than "
                f"this machine ({value}); results would differ. Make them the same."
            )


def _get(reference: Any, timeout: float | None = None) -> Any:
    """Ray's result; an UnskewError of a worker is raised as it was there."""
    try:
        return _ray().get(reference, timeout=timeout)
    except _errors().RayTaskError as error:
        if isinstance(error.cause, UnskewError):
            raise UnskewError(str(error.cause)) from None
        raise


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError:
        raise UnskewError("--ray needs Ray; install it with: pip install 'unskew[ray]'.") from None
    return ray


def _errors() -> Any:
    return _ray().exceptions
