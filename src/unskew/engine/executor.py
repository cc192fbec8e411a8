"""Train a chunk of clients, and train many chunks side by side.

The round loop asks an executor for the results of all chunks and adds them up in order. Chunks do
not depend on each other, so where and when one is trained changes no result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from unskew.kernels import work_alone
from unskew.types import Cohort, Float64, Int64, Method, Upload

Transform = Callable[[Upload, Cohort], Upload]
"""A privacy mechanism: what the devices of a cohort send in place of their upload."""
Trained = tuple[Any, Upload, Float64]
"""The new private state of some devices, what they send, and their losses."""


def train_upload(
    method: Method, download: Any, private: Any, cohort: Cohort, transform: Transform | None
) -> Trained:
    """Step 1 and the privacy transform: the private state, what leaves the devices, the losses.

    The simulator and a real device both call it. Step 2 (``personalize``) follows in the simulator
    at once; on a device it may happen later and in another process."""
    private, upload, losses = method.local(download, private, cohort)
    if transform is not None:
        upload = transform(upload, cohort)
    return private, upload, losses


def train_chunk(
    method: Method, download: Any, private: Any, cohort: Cohort, transform: Transform | None
) -> Trained:
    """Both steps of a round on the devices of a cohort, on samples that are drawn once: the private
    state, what leaves the devices, the losses."""
    cohort = method.draw(cohort)
    private, upload, losses = train_upload(method, download, private, cohort, transform)
    return method.personalize(download, private, cohort), upload, losses


class Executor(Protocol):
    """How chunks are trained: on threads here, elsewhere on other machines."""

    workers: int
    """Number of chunks trained at the same time."""

    def map_chunks(
        self, train: Callable[[Int64], Trained], chunks: Sequence[Int64]
    ) -> Iterator[Trained]:
        """The results of ``train`` for all chunks (the users in each), in the order of chunks."""


class ThreadExecutor:
    """Trains each chunk on one thread. A single worker shares each step among all threads."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map_chunks(
        self, train: Callable[[Int64], Trained], chunks: Sequence[Int64]
    ) -> Iterator[Trained]:
        prepare = work_alone if self.workers > 1 else None
        with ThreadPoolExecutor(self.workers, "unskew-worker", initializer=prepare) as pool:
            pending: deque[Future[Trained]] = deque()
            for users in chunks:
                pending.append(pool.submit(train, users))
                if len(pending) > self.workers:  # finished results waiting here take up memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
