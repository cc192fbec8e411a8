"""How much memory is available, how much a run needs, and a refusal that gives both figures.

The size of a method's states is estimated from the states of one user and a few items. What
training takes is estimated by the method's settings, if these have ``training_bytes``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from unskew.engine.blocks import Disk, StateFolder
from unskew.engine.executor import MAX_CHUNK_CLIENTS
from unskew.types import Method, Rows, Split, UnskewError

STATE_SHARE = 0.5
"""Share of the available memory above which private state goes to the disk by itself."""
LARGE_SETTING = 1024
"""Whole-number settings above this are lowered to it while the size of states is measured."""
_MEMINFO, _OWN_GROUP, _GROUPS = (
    Path(path) for path in ("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup")
)
"""Files in which Linux says how much memory is free and which control group the process is in, and
the folder with the groups' limits."""


def available_memory() -> int | None:
    """Bytes that this process can still use: what the machine has left, and what the limits of the
    process and its control groups leave. None if the system does not tell."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        (line,) = (one for one in _MEMINFO.read_text().splitlines() if "MemAvailable" in one)
        found.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError, IndexError):
        group = _GROUPS / _OWN_GROUP.read_text().split("::/", 1)[1].strip()
        while group.is_relative_to(_GROUPS):
            with suppress(OSError, ValueError):  # "max" is no number
                cached = (group / "memory.stat").read_text().split("\ninactive_file ")[1].split()[0]
                used = int((group / "memory.current").read_text()) - int(cached)
                found.append(int((group / "memory.max").read_text()) - used)
            group = group.parent
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(limit - pages * resource.getpagesize())
    return max(0, min(found)) if found else None


def disk_for_state(folder: StateFolder | None, on_disk: bool | None) -> Disk | None:
    """Where private state goes that is not kept in memory: all of it if ``on_disk``, what is above
    a share of the available memory if that is None. Returns None if all is kept in memory."""
    available = available_memory()
    if on_disk:
        return Disk(folder, 0.0)
    return None if on_disk is False or available is None else Disk(folder, STATE_SHARE * available)


def check_memory(method: Method, split: Split, seed: int, *, state_on_disk: bool) -> None:
    """Raise an UnskewError if a run needs more memory than there is, before it is taken."""
    available = available_memory()
    if available is None:
        return
    # Of all users' states there are those that the method makes, and those in the store.
    users = split.n_users * (1 if state_on_disk else 2)
    # With at least as many items as a lowered setting, because some methods have no more dimensions
    # than items.
    few, step = max(2, min(LARGE_SETTING, split.n_items // 2)), split.n_items // 16

    def states(method: Method, *n_items: int) -> float:
        """Size of the server's states, old and new, and of all users', from few items."""
        sizes = zip(*(_state_bytes(method, n, seed) for n in n_items), strict=True)
        server, private = (_extrapolate(each, n_items[0], split.n_items) for each in sizes)
        return 2 * server + users * private

    try:
        need = _extrapolate_settings(method, lambda method: states(method, few, 2 * few))
        if need < available and step > 4:  # enough items to see squares of their number
            need = states(method, step, 2 * step, 3 * step)
    except MemoryError as error:
        raise _refusal(method, split, _figure(error), available) from None
    except Exception:  # a method may need more items than these to start
        return
    training_bytes = getattr(method.config, "training_bytes", None)
    if training_bytes is not None:
        clients = min(split.n_users, MAX_CHUNK_CLIENTS)
        need += clients * float(training_bytes(split.train.counts(), split.n_items).mean())
    if need > available:
        raise _refusal(method, split, f"about {_size(need)}", available)


def _extrapolate_settings(method: Method, measure: Callable[[Method], float]) -> float:
    """What ``measure`` would be for the method, measured with large settings lowered, so that
    nothing large is made: it is taken to grow in proportion to each."""
    kind: Any = type(method)
    config, fields = method.config, dataclasses.fields(method.config)
    values = {field.name: getattr(config, field.name) for field in fields}
    large = {n: v for n, v in values.items() if type(v) is int and v > LARGE_SETTING}
    if not large:
        return measure(method)
    config = dataclasses.replace(config, **dict.fromkeys(large, LARGE_SETTING))
    need = base = measure(kind(config))
    for name, value in large.items():
        half = measure(kind(dataclasses.replace(config, **{name: LARGE_SETTING // 2})))
        need += (base - half) * (value - LARGE_SETTING) / (LARGE_SETTING / 2)
    return need


@contextmanager
def memory_errors_explained(method: Method, split: Split) -> Iterator[None]:
    """Turn a MemoryError into an UnskewError with the size of what could not be had."""
    try:
        yield
    except MemoryError as error:
        raise _refusal(method, split, _figure(error), available_memory()) from None


def _state_bytes(method: Method, n_items: int, seed: int) -> tuple[int, int]:
    """Bytes of the server's state and of one user's."""
    server, private = method.init(1, n_items, seed)
    return sum(map(_nbytes, server)), sum(map(_nbytes, private))


def _nbytes(leaf: Any) -> int:
    return sum(part.nbytes for part in leaf) if isinstance(leaf, Rows) else int(leaf.nbytes)


def _extrapolate(values: Sequence[int], step: int, to: int) -> float:
    """The value at ``to`` from those at ``step``, twice and three times it, along a line or a
    parabola that opens upwards."""
    s, first = (to - step) / step, values[1] - values[0]
    second = values[2] - values[1] - first if len(values) > 2 else 0
    return values[0] + s * first + s * (s - 1) / 2 * max(second, 0)


def _figure(error: MemoryError) -> str:
    """The size in a MemoryError, of which NumPy's tell the shape of the array."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is None or dtype is None:
        return "more than that"
    return f"at least {_size(math.prod(shape) * dtype.itemsize)}"


def _refusal(method: Method, split: Split, need: str, available: int | None) -> UnskewError:
    config, names = method.config, []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, int) and isinstance(field.default, int) and value > field.default:
            names.append(f"{field.name} = {value}")
    there = "less" if available is None else _size(available)
    return UnskewError(
        f"{method.name} needs {need} of memory for {split.n_users:,} users and {split.n_items:,} "
        f"items, and {there} is available; lower {' or '.join(names) or 'its settings'}, or give "
        "fewer data."
    )


def _size(n: float) -> str:
    unit, name = (2**30, "GB") if n >= 2**30 else (2**20, "MB")
    return f"{n / unit:,.0f} {name}" if n >= 10 * unit else f"{n / unit:.1f} {name}"
