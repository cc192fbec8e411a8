"""Work on several threads, with results in order and bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def map_ahead(function: Callable[[_Job], _Result], jobs: Iterable[_Job]) -> Iterator[_Result]:
    """Yield ``function(job)`` for every job, in order. A few results are computed ahead on
    threads, and no more jobs are taken than that."""
    threads, rest = os.cpu_count() or 1, iter(jobs)
    with ThreadPoolExecutor(threads) as pool:
        waiting = deque(pool.submit(function, job) for job in islice(rest, threads + 1))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, job) for job in islice(rest, 1))
            yield result
