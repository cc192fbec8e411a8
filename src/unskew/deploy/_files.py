"""A device's files: its owner's alone to read, and one process at a time to write."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unskew.files import sync_folder


def keep(path: Path, name: Path) -> None:
    """Give a file a second name, in place of what had it; writing anew leaves that one alone."""
    link = path.with_name(f"link-{path.name}")
    link.unlink(missing_ok=True)
    os.link(path, link)
    link.replace(name)
    link.unlink(missing_ok=True)  # renaming one of a file's names to another does nothing
    sync_folder(path.parent)


@contextmanager
def private() -> Iterator[None]:
    """Files and folders made meanwhile are their owner's alone: 0600 and 0700."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works on a device's folder, and what it writes is private; the lock
    goes with the process that holds it."""
    with private():
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
