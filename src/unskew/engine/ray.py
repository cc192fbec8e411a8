"""Train on more than one machine: a Ray cluster whose workers have the devices.

Each worker has a part of the users (a `Shard`). The process that starts the run, the driver, has
the server's state and everybody's ranks; it sends the users of a round and the download to the
workers. They add up the uploads of their users, and each other's sums along a tree, so that the
driver gets one. The sums are exact, so neither the number of workers nor their speed changes a bit.

A worker that dies is started again and goes on from its own checkpoint (see `worker.py`). When the
driver writes a checkpoint of the run, it first gathers the devices that have changed, so that a
run's folder is the same as if everything had been trained in one process.
"""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from unskew.engine.executor import MAX_CHUNK_CLIENTS, batches
from unskew.engine.federation import Federation, State
from unskew.engine.group import Contribution
from unskew.engine.shard import MAX_MESSAGE_BYTES, Loaded, Report, Shard
from unskew.engine.worker import (
    MAX_RESTARTS,
    Call,
    NotPlaced,
    Place,
    Worker,
    ray_errors,
    ray_package,
    result_of,
)
from unskew.kernels import ExactSum
from unskew.privacy import PrivateUploads
from unskew.types import Int64, Method, Split, UnskewError

CLOSING_SECONDS = 10.0
"""Number of seconds that workers get to delete their checkpoints."""
LOCAL = "local"
"""The address that starts Ray on this machine, with a worker per core."""


class Cluster:
    """A Ray cluster that runs are trained on; ``with`` disconnects from it at the end."""

    def __init__(self, address: str, *, cores: int = 0) -> None:
        """``address`` is that of a cluster's head, "auto" for the one that runs on this machine, or
        "local", which starts Ray here with a worker on each of ``cores`` cores (0: all)."""
        ray = ray_package()
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
        if not self.places:
            raise UnskewError(
                f"The Ray cluster at {address} has no node with a core; start its nodes with "
                "--num-cpus=1 or more."
            )
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
        ray_package().shutdown()

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
        strategy = ray_package().util.scheduling_strategies.NodeAffinitySchedulingStrategy
        top = Path(tempfile.gettempdir()) / f"unskew-ray-{uuid.uuid4().hex}"
        cuts = divide(here.split, [place.cores for place in self.places])
        remote, workers = ray_package().remote(Shard), list[Worker]()
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
            ray_package().wait(
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
        held = ray_package().put({**state.best_devices.downloads, **state.devices.downloads})
        changed = state.devices.differing(state.best_devices)
        for worker in self._workers:
            while True:
                try:
                    self._place_shard(worker, state, changed, held)
                    break
                except NotPlaced:
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
        sent = ray_package().put(download)
        calls = self._start("train", users, state.round + 1, sent, numbered=True)
        reports: list[Report] = [worker.finish(call) for worker, call in calls]
        for (worker, _), report in zip(calls, reports, strict=True):
            worker.saved(report.saved)
            if self._private is not None:
                self._private.add_records(report.sent)
        losses = np.concatenate([report.losses for report in reports])
        bytes_up = sum(report.bytes_up for report in reports)
        return Contribution(self._add_up(calls), [], losses, bytes_up)

    def _add_up(self, calls: Sequence[tuple[Worker, Call]]) -> ExactSum:
        """The sum of the workers' sums, which they add up in pairs, pairs of pairs, and so on."""
        for _ in range(MAX_RESTARTS):
            sums = [(worker, call.returned[1]) for worker, call in calls]
            while len(sums) > 1:
                pairs = zip(sums[::2], sums[1::2], strict=False)
                merged = [(one[0], one[0].start_merge(one[1], two[1])) for one, two in pairs]
                sums = merged + sums[2 * len(merged) :]
            try:
                total: ExactSum = result_of(sums[0][1])
                return total
            except ray_errors().RayError:  # one has died; its sum is made again
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
            download = ray_package().put(download)
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
    ) -> list[tuple[Worker, Call]]:
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
