"""Run a kernel on blocks of clients of similar total work, on a pool of threads.

Kernels release the interpreter lock and write only the results of their own clients, so the number
of threads and the division into blocks change nothing but the time a round takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from unskew.types import Int64

_BLOCKS_PER_THREAD = 8
"""Blocks of clients per thread, so that threads finish at about the same time."""


class _ThreadSettings(threading.local):
    alone = False
    """Whether kernels called from this thread run in it instead of on the pool."""


_this_thread = _ThreadSettings()


def work_alone() -> None:
    """From now on run kernels called from this thread in it, not on the thread pool. Used when
    several threads that call kernels already keep all cores busy."""
    _this_thread.alone = True


def _available_cores() -> int:
    """Number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool:
    def __init__(self) -> None:
        self.threads = _available_cores()
        self.executor: ThreadPoolExecutor | None = None

    def run(self, function: Callable[[Int64], object], blocks: list[Int64]) -> None:
        if self.threads == 1 or _this_thread.alone or len(blocks) == 1:
            for block in blocks:
                function(block)
            return
        if self.executor is None:
            self.executor = ThreadPoolExecutor(self.threads, thread_name_prefix="unskew")
        for _ in self.executor.map(function, blocks):
            pass


_pool = _Pool()


def set_threads(threads: int) -> None:
    """Set the number of threads on which kernels run (0: one per core)."""
    if _pool.executor is not None:
        _pool.executor.shutdown()
        _pool.executor = None
    _pool.threads = threads or _available_cores()


def get_threads() -> int:
    """Number of threads on which kernels run."""
    return _pool.threads


def for_each_block(work: Int64, function: Callable[..., object], *arguments: object) -> None:
    """Call ``function(block, *arguments)`` on the thread pool, for blocks of client positions that
    together cover ``range(len(work))``.

    Clients are sorted by decreasing ``work`` and divided into blocks of about equal total work, so
    the heaviest clients start first and the last blocks are light.
    """
    if len(work) == 0:
        return
    order = np.argsort(-work, kind="stable")
    total = np.cumsum(work[order] + 1)
    threads = 1 if _this_thread.alone else _pool.threads
    pieces = min(len(work), threads * _BLOCKS_PER_THREAD)
    shares = total[-1] * np.arange(1, pieces) // pieces
    cuts = np.searchsorted(total, shares) + 1
    blocks = [block for block in np.split(order, cuts) if len(block)]
    _pool.run(lambda block: function(block, *arguments), blocks)


def in_parallel(n: int, function: Callable[..., object], *arguments: object) -> None:
    """Call ``function`` as :func:`for_each_block` does, for ``n`` clients of equal work."""
    for_each_block(np.ones(n, np.int64), function, *arguments)


class _BlasLimit:
    """Counts the threads that are inside :func:`one_blas_thread`."""

    lock = threading.Lock()
    inside = 0
    limit: Any = None


@cache
def _blas() -> ThreadpoolController:
    import scipy.linalg.blas  # noqa: F401 (numba's matrix products call this library)

    return ThreadpoolController().select(user_api="blas")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread per call, so that results do not depend on its number of threads.
    Several threads may be inside at once.

    Enter it in the main thread before starting workers: OpenBLAS ignores a limit that another
    thread sets.
    """
    with _BlasLimit.lock:
        _BlasLimit.inside += 1
        if _BlasLimit.inside == 1:
            _BlasLimit.limit = _blas().limit(limits=1)
    try:
        yield
    finally:
        with _BlasLimit.lock:
            _BlasLimit.inside -= 1
            if not _BlasLimit.inside:
                _BlasLimit.limit.restore_original_limits()
