"""Files that outlive a power cut: written beside the old one, forced to the disk, then renamed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unskew.engine import Tensor, write_tensors


def save(
    path: Path, tensors: Iterable[Tensor], format: str, version: int, *, keep: Path | None = None
) -> None:
    """Replace ``path`` by these tensors; ``keep`` gets the file that was there before."""
    fresh = path.with_name(f"next-{path.name}")
    write_tensors(fresh, tensors, format, version)
    _force(fresh)
    if keep is not None and path.exists():
        # A second name for the old file first: at no moment is there no state at all.
        link = path.with_name(f"link-{path.name}")
        link.unlink(missing_ok=True)
        os.link(path, link)
        link.replace(keep)
    fresh.replace(path)
    _force(path.parent)


def whole(named: dict[str, NDArray[Any]]) -> list[Tensor]:
    return [Tensor.whole(name, array) for name, array in named.items()]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works on a folder; the lock goes with the process that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _force(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
