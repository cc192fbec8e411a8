"""Train a chunk (a group of clients), or many chunks in parallel.

The round loop asks an executor for the results of all chunks and adds them up. Chunks do not
depend on each other, so where and when a chunk is trained does not change the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from unskew.kernels import one_blas_thread, work_alone
from unskew.types import Cohort, Float64, Int64, Method, Upload

Transform = Callable[[Upload, Cohort], Upload]
"""A privacy mechanism: maps the upload of a cohort to the one that its devices send instead."""
Trained = tuple[Any, Upload, Float64]
"""The new private state of some devices, their upload, and their losses."""
_Result = TypeVar("_Result")

MAX_CHUNK_CLIENTS = 256
"""Maximum number of clients trained together (a chunk). It bounds memory and changes no result."""


def batches(users: Int64, size: int = MAX_CHUNK_CLIENTS) -> Iterator[Int64]:
    """Yield consecutive parts of the array ``users``, each of at most ``size`` users."""
    for low in range(0, len(users), size):
        yield users[low : low + size]


def train_upload(
    method: Method, download: Any, private: Any, cohort: Cohort, transform: Transform | None
) -> Trained:
    """Do Step 1 (training before the upload) and apply the privacy transform to the upload.

    Called by the simulator and by real devices. Step 2 (``personalize``) follows at once in the
    simulator; on a device it may run later and in another process."""
    private, upload, losses = method.local(download, private, cohort)
    if transform is not None:
        upload = transform(upload, cohort)
    return private, upload, losses


def train_chunk(
    method: Method, download: Any, private: Any, cohort: Cohort, transform: Transform | None
) -> Trained:
    """Train one chunk: Steps 1 and 2 (before and after the upload), both on the same samples."""
    cohort = method.draw(cohort)
    private, upload, losses = train_upload(method, download, private, cohort, transform)
    return method.personalize(download, private, cohort), upload, losses


class Executor(Protocol):
    """Interface for training chunks; ThreadExecutor uses threads, others may use other machines."""

    workers: int
    """Number of chunks trained at the same time."""

    def map_chunks(
        self, work: Callable[[Int64], _Result], chunks: Sequence[Int64]
    ) -> Iterator[_Result]:
        """Yield the results of ``work`` for all chunks (arrays of users), in their order."""


class ThreadExecutor:
    """Works on each chunk in one thread. A single worker uses all threads for its chunk instead."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def map_chunks(
        self, work: Callable[[Int64], _Result], chunks: Sequence[Int64]
    ) -> Iterator[_Result]:
        prepare = work_alone if self.workers > 1 else None
        pool_of_threads = ThreadPoolExecutor(self.workers, "unskew-worker", initializer=prepare)
        with one_blas_thread(), pool_of_threads as pool:
            pending: deque[Future[_Result]] = deque()
            for users in chunks:
                pending.append(pool.submit(work, users))
                if len(pending) > self.workers:  # finished results waiting here take up memory
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
