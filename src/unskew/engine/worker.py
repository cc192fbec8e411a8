"""The driver's side of a Ray worker: make calls, and make them again if the process dies.

The driver keeps the calls since each worker's last checkpoint, with the downloads in them. Ray
starts a worker that dies again; it reads its checkpoint and gets the later calls once more.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from unskew.engine.shard import NOT_PLACED
from unskew.privacy import PrivateUploads
from unskew.types import UnskewError

MAX_RESTARTS = 10
"""Number of times that Ray starts a worker again before it counts as lost."""
MAX_SILENT_SECONDS = 300.0
"""Number of seconds in which a worker must start, or start again; after that it counts as lost."""


class Place(NamedTuple):
    """Where a worker runs: a node, and a number of its processor cores."""

    node: str
    address: str
    cores: int


class NotPlaced(Exception):
    """A worker died before it had all its devices."""


@dataclass(eq=False)
class Call:
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
        self._unsaved: deque[Call] = deque()
        self._number = 0
        self._begin: tuple[Any, ...] = ()

    def start(self, name: str, *arguments: Any, numbered: bool = False, **options: Any) -> Call:
        """Make a call and return at once. ``numbered`` calls change devices."""
        number = None
        if numbered:
            self._number += 1
            number = self._number
        call = Call(name, arguments, options, number)
        if numbered:
            self._unsaved.append(call)
        self._send(call)
        return call

    def finish(self, call: Call) -> Any:
        """Wait for the result of a call. Of several results, it is the first."""
        while True:
            try:
                many = isinstance(call.returned, list)
                return result_of(call.returned[0] if many else call.returned)
            except ray_errors().RayActorError:
                self.recover(call)

    def saved(self, number: int) -> None:
        """Take note that the calls up to this number are in the worker's checkpoint."""
        while self._unsaved and (self._unsaved[0].number or 0) <= number:
            self._unsaved.popleft()

    def wait_until_ready(self) -> None:
        """Wait until the worker's process runs; raises an UnskewError if it does not start."""
        errors, began = ray_errors(), time.monotonic()
        while True:
            try:
                result_of(self._actor.ready.remote(), timeout=MAX_SILENT_SECONDS)
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

    def recover(self, call: Call | None = None) -> None:
        """Bring a worker that was started again to where it was, and make ``call`` again."""
        if not self._begin:
            self.wait_until_ready()
        else:
            done = self._reach()
            if done == NOT_PLACED:
                raise NotPlaced
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
        ray_package().kill(self._actor)

    def lost(self, why: str) -> UnskewError:
        """The error that ends a run whose devices are gone."""
        return UnskewError(
            f"The Ray worker on {self._place.address} is lost ({why}), and with it the devices of "
            f"users {self.first} to {self.end - 1}; `unskew resume` goes on from the run's last "
            "checkpoint, on the rest of the cluster or without --ray."
        )

    def _send(self, call: Call) -> None:
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
                done: int = result_of(self._actor.begin.remote(*self._begin))
                return done
            except ray_errors().RayActorError:
                continue


def result_of(reference: Any, timeout: float | None = None) -> Any:
    """Ray's result; an UnskewError of a worker is raised as it was there."""
    try:
        return ray_package().get(reference, timeout=timeout)
    except ray_errors().RayTaskError as error:
        if isinstance(error.cause, UnskewError):
            raise UnskewError(str(error.cause)) from None
        raise


def ray_package() -> Any:
    """The package ray, an extra, with what is used of it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError:
        raise UnskewError("--ray needs Ray; install it with: pip install 'unskew[ray]'.") from None
    return ray


def ray_errors() -> Any:
    """The errors that Ray raises."""
    return ray_package().exceptions
