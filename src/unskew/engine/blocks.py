"""Blocks of private state, in memory or in files, and the folder that the files are in.

A block holds the states of some users one after another. It is only appended to until it is
sealed, and never changes afterwards, so snapshots and checkpoints share it. A sealed block is
written to a file at most once. That file serves as a part of a checkpoint and, for state that is
kept on disk, as the block's memory (it is mapped).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from unskew.files import (
    MappedTensors,
    Tensor,
    changed,
    check_tensors,
    named_tensors,
    read_tensors,
    sync_file,
    write_tensors,
)
from unskew.types import UnskewError

VERSION = 2
"""Format version of all files of a run's state."""
USER = "_user"
"""Name of the column of user numbers. No field of a method's state can have it: a NamedTuple's
fields do not start with an underscore."""
Columns = dict[str, NDArray[Any]]
"""Arrays by name. Those of a block have a row per stored state, or per entry of such a state."""


class StateFile(NamedTuple):
    """A file of a run's state: folder, name, size and checksum."""

    folder: Path
    name: str
    size: int
    sha256: str

    def read(self) -> Columns:
        """Read the file's arrays, after checking it."""
        self._check_size()
        return read_tensors(self.folder / self.name, self._format, VERSION, self.sha256)

    def map(self) -> MappedTensors:
        """Map the file into memory, after checking it."""
        self._check_size()
        check_tensors(self.folder / self.name, self._format, VERSION, self.sha256)
        return MappedTensors(self.folder / self.name)

    @property
    def _format(self) -> str:
        return f"unskew-{self.name.rpartition('-')[0]}"

    def _check_size(self) -> None:
        path = self.folder / self.name
        if not path.exists():
            raise UnskewError(f"{path} is missing; restore it or run again.")
        if path.stat().st_size != self.size:
            raise changed(path)


class StateFolder:
    """A folder of write-once files, numbered in the order in which they were written."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a ``path``, a temporary folder, which disappears with this object."""
        self.temporary = None if path else tempfile.TemporaryDirectory(prefix="unskew-")
        self.path = path or Path(self.temporary.name if self.temporary else "")
        numbers = [path.stem.rpartition("-")[2] for path in self.path.glob("*.safetensors")]
        self._last = max((int(number) for number in numbers if number.isdecimal()), default=0)

    def write(self, kind: str, tensors: Iterable[Tensor], *, sync: bool = True) -> StateFile:
        """Write tensors to a new file, whose name starts with ``kind``."""
        while True:
            self._last += 1
            path = self.path / f"{kind}-{self._last:06d}.safetensors"
            if not path.exists():
                break
        sha256 = write_tensors(path, tensors, f"unskew-{kind}", VERSION, sync=sync)
        return StateFile(self.path, path.name, path.stat().st_size, sha256)

    def remove_all_but(self, names: Iterable[str]) -> None:
        """Delete all other files. One that cannot be deleted yet is deleted another time."""
        keep = set(names)
        for path in self.path.glob("*.safetensors"):
            if path.name not in keep:
                with suppress(OSError):
                    path.unlink()


class Block:
    """Rows of several columns. Rows are added at the end until the block is sealed."""

    def __init__(self, empty: Columns, size: int = 0) -> None:
        """``empty`` has the columns' types, as arrays without rows; ``size`` is the number of
        bytes that the block will grow to, if that is known."""
        self._columns, self._size = dict(empty), size
        self._used = dict.fromkeys(empty, 0)
        self._map: MappedTensors | None = None
        self.file: StateFile | None = None
        """The file that has the block's rows, if there is one."""
        self._synced = False
        self.nbytes = 0
        """Size of the rows in use."""

    @staticmethod
    def load(file: StateFile) -> Block:
        """The block in a file, mapped into memory."""
        block = Block({})
        block._map, block.file, block._synced = file.map(), file, True
        block._columns = block._map.arrays
        block._used = {name: len(rows) for name, rows in block._columns.items()}
        block.nbytes = sum(rows.nbytes for rows in block._columns.values())
        return block

    def __len__(self) -> int:
        return self._used[USER]

    @property
    def mapped(self) -> bool:
        """Whether rows are read from the block's file, not from memory."""
        return self._map is not None

    def column(self, name: str) -> NDArray[Any]:
        """All rows of a column, of which those in use never change."""
        return self._columns[name]

    def used(self, name: str) -> int:
        """Number of rows of a column that are in use."""
        return self._used[name]

    def fits(self, rows: Mapping[str, NDArray[Any]]) -> bool:
        """Whether rows can be appended without moving those that are there."""
        return all(self._used[n] + len(more) <= len(self._columns[n]) for n, more in rows.items())

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Copy rows to the end of all columns. They are in use once this returns."""
        size = sum(more.nbytes for more in rows.values())
        for name, more in rows.items():
            column, used = self._columns[name], self._used[name]
            end = used + len(more)
            if end > len(column):
                # As large as the column will become if the following rows are like these.
                rest = len(more) * max(0, self._size - self.nbytes) // max(size, 1)
                larger = np.empty((used + max(len(more), rest), *column.shape[1:]), column.dtype)
                larger[:used] = column[:used]
                self._columns[name] = column = larger
            column[used:end] = more
        for name, more in rows.items():
            self._used[name] += len(more)
        self.nbytes += size

    def seal(self) -> None:
        """Trim the columns; nothing is added to the block from here on."""
        for name, column in self._columns.items():
            used = column[: self._used[name]]
            self._columns[name] = used if 2 * len(used) > len(column) else used.copy()

    def save(self, folder: StateFolder) -> StateFile:
        """The sealed block's file in this folder, which is written unless there is one."""
        if self.file is None or self.file.folder != folder.path:
            self.file, self._synced = self._write(folder, sync=True), True
        if not self._synced:
            sync_file(folder.path / self.file.name)
            self._synced = True
        return self.file

    def move_to_disk(self, folder: StateFolder) -> None:
        """Give the memory of the sealed block back; its rows are read from its file from now on."""
        if self.file is None:
            self.file = self._write(folder, sync=False)
        path = self.file.folder / self.file.name
        self._map = MappedTensors(path)
        self._columns = self._map.arrays
        if folder.temporary is not None:  # nothing is left if the process is killed
            with suppress(OSError):
                path.unlink()

    def _write(self, folder: StateFolder, *, sync: bool) -> StateFile:
        # Wide types first, so that all columns are aligned in the file.
        wide_first = sorted(self._columns.items(), key=lambda column: -column[1].itemsize)
        return folder.write("devices", named_tensors(dict(wide_first)), sync=sync)

    def release(self) -> None:
        """Give back the memory of rows that were read from the file."""
        if self._map is not None:
            self._map.release()


class Disk:
    """Where blocks go that do not fit in memory. Stores that share blocks share one."""

    def __init__(self, folder: StateFolder | None, memory: float) -> None:
        """``memory`` is the number of bytes that sealed blocks may take up in memory. Others go to
        files in ``folder``, or in a temporary one."""
        self._folder, self._memory = folder, memory
        self._blocks: WeakSet[Block] = WeakSet()
        self.moved = 0
        """Number of bytes moved to the disk so far."""

    def add(self, block: Block) -> None:
        """Take note of a sealed block, and move it to the disk if memory is full."""
        if block.mapped:
            return
        self._blocks.add(block)
        if sum(one.nbytes for one in self._blocks if not one.mapped) > self._memory:
            self._folder = self._folder or StateFolder()
            self.moved += block.nbytes
            block.move_to_disk(self._folder)
