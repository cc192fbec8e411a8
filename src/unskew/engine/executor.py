"""Train a chunk of clients, and run many chunks side by side.

The round loop asks an executor for the results of all chunks and adds them up in order. Chunks do
not depend on each other, so where and when one is trained changes no result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from unskew.kernels import work_alone
from unskew.types import Cohort, Float64, Int64, Method, Upload

Transform = Callable[[Upload, Cohort], Upload]
"""A privacy mechanism: what the devices of a cohort send in place of their upload."""


class ChunkResult(NamedTuple):
    """A trained chunk: its users, their new private state, what they send, and their losses."""

    users: Int64
    private: Any
    upload: Upload
    losses: Float64


def train_upload(
    method: Method, download: Any, private: Any, cohort: Cohort, transform: Transform | None
) -> tuple[Any, Upload, Float64]:
    """Step 1 and the privacy transform: the private state, what leaves the devices, the losses.

    The simulator and a real device both call it. Step 2 (``personalize``) follows in the simulator
    at once; on a device it may happen later and in another process."""
    private, upload, losses = method.local(download, private, cohort)
    if transform is not None:
        upload = transform(upload, cohort)
    return private, upload, losses


def train_chunk(
    method: Method, download: Any, private: Any, cohort: Cohort, transform: Transform | None
) -> ChunkResult:
    """Both steps of a round on the devices of a cohort, on samples that are drawn once."""
    cohort = method.draw(cohort)
    private, upload, losses = train_upload(method, download, private, cohort, transform)
    private = method.personalize(download, private, cohort)
    return ChunkResult(cohort.users, private, upload, losses)


class Executor(Protocol):
    """How chunks are trained: on threads here, elsewhere on other machines."""

    @property
    def workers(self) -> int:
        """The number of chunks trained at the same time."""

    def map_chunks(
        self, train: Callable[[Int64], ChunkResult], chunks: Sequence[Int64]
    ) -> Iterator[ChunkResult]:
        """The results of ``train`` for all chunks (the users in each), in the order of chunks."""


class ThreadExecutor:
    """Trains each chunk on one thread. A single worker shares each step among all threads."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map_chunks(
        self, train: Callable[[Int64], ChunkResult], chunks: Sequence[Int64]
    ) -> Iterator[ChunkResult]:
        prepare = work_alone if self.workers > 1 else None
        with ThreadPoolExecutor(self.workers, "unskew-worker", initializer=prepare) as pool:
            pending: deque[Future[ChunkResult]] = deque()
            for users in chunks:
                pending.append(pool.submit(train, users))
                if len(pending) > self.workers:  # finished results waiting here take up memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
