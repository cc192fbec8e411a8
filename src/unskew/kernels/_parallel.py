"""How clients run, apart from what they compute: blocks of similar work on a pool of threads.

Kernels release the interpreter lock and write only to their own clients' slots, so the number of
threads and the cut into blocks change the time a round takes and nothing else.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from unskew.types import Int64

_BLOCKS_PER_THREAD = 8


class _Thread(threading.local):
    """What this thread has said of itself."""

    alone = False


_thread = _Thread()


def work_alone() -> None:
    """From now on, blocks asked for by this thread run in it, one after another: for threads that
    themselves share the cores among them."""
    _thread.alone = True


def _cores() -> int:
    """Those this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Pool:
    def __init__(self) -> None:
        self.threads = _cores()
        self.executor: ThreadPoolExecutor | None = None

    def run(self, function: Callable[[Int64], object], blocks: list[Int64]) -> None:
        if self.threads == 1 or _thread.alone or len(blocks) == 1:
            for block in blocks:
                function(block)
            return
        if self.executor is None:
            self.executor = ThreadPoolExecutor(self.threads, thread_name_prefix="unskew")
        for _ in self.executor.map(function, blocks):
            pass


_pool = _Pool()


def set_threads(threads: int) -> None:
    """Use this many threads from now on (0: as many as there are cores)."""
    if _pool.executor is not None:
        _pool.executor.shutdown()
        _pool.executor = None
    _pool.threads = threads or _cores()


def get_threads() -> int:
    return _pool.threads


def for_each_block(work: Int64, function: Callable[[Int64], object]) -> None:
    """Call ``function`` on blocks of client numbers that together cover ``range(len(work))``.

    Clients are ordered by falling ``work`` and cut once the running total has reached equal shares,
    so the heaviest start first, one heavier than a share runs alone, and the last blocks are light.
    """
    if len(work) == 0:
        return
    order = np.argsort(-work, kind="stable")
    total = np.cumsum(work[order] + 1)
    threads = 1 if _thread.alone else _pool.threads
    pieces = min(len(work), threads * _BLOCKS_PER_THREAD)
    shares = total[-1] * np.arange(1, pieces) // pieces
    cuts = np.searchsorted(total, shares) + 1
    blocks = [block for block in np.split(order, cuts) if len(block)]
    _pool.run(function, blocks)


def in_parallel(n: int, kernel: Callable[..., None], *arguments: object) -> None:
    """Call ``kernel`` on blocks that together cover ``range(n)``, whose work is alike."""
    for_each_block(np.ones(n, np.int64), lambda block: kernel(block, *arguments))
