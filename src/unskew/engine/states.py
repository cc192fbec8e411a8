"""The private states of many users in blocks, read and written some users at a time.

``put`` writes states to the end of the open block (see `blocks.py`); the arrays of an index say in
which block and row the state of each user is. A block without states in use is dropped. When
states that were replaced take up much of the blocks, those still in use are copied out of the
blocks that have fewest. Sealed blocks never change, so snapshots and checkpoints share them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from unskew.engine.blocks import USER, Block, Columns, Disk, StateFile, StateFolder
from unskew.ragged import indptr_from_counts
from unskew.types import Int64, Rows

VERSION = "_version"
"""Name of the column of numbers that states were put with (see `blocks.USER`)."""
BLOCKS = 64
"""Number of blocks that states are divided into, unless that makes blocks too small or large."""
MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 2**20, 2**28
"""Smallest and largest size at which a block is sealed and the next one opened."""
MAX_SMALL_BLOCKS = 64
"""Number of blocks of less than a quarter of this size, above which the smallest are merged."""
MAX_REPLACED_SHARE = 0.25
"""Largest size of replaced states in blocks, as a share of the size of all states in use."""
MAX_MAPPED_BYTES = 2**28
"""Number of bytes read from mapped files after which their memory is given back."""
FILE_PAGES = 2**16
"""Minimum number of bytes that the system loads when something is read from a mapped file."""
MAX_COLUMN_BYTES = 2**23
"""Maximum bytes of the states that ``column`` gathers at a time."""


class _Runs(NamedTuple):
    """Where some users' states are: runs of rows that follow each other in a block."""

    blocks: list[Block]
    rows: dict[str, tuple[list[int], list[int]]]
    """First row and end of each run: in the columns with a row per user (""), and in those of each
    ragged field."""
    counts: dict[str, Int64]
    """Number of entries of each user, by ragged field."""


class States:
    """States of ``n_users`` users, NamedTuples of the same types as ``like``: a dense field is an
    array with the user axis first, a ragged one is `Rows`."""

    def __init__(self, like: Any, n_users: int) -> None:
        self._kind, self.n_users = type(like), n_users
        self._empty: Columns = {USER: np.empty(0, np.int64), VERSION: np.empty(0, np.int64)}
        """The columns of a block, without rows. A ragged field has three."""
        self._ragged: list[str] = []
        for name, leaf in zip(like._fields, like, strict=True):
            if isinstance(leaf, Rows):
                self._ragged.append(name)
                self._empty[f"{name}.counts"] = np.empty(0, np.int64)
                self._empty[f"{name}.items"] = leaf.items[:0].copy()
                self._empty[f"{name}.values"] = leaf.values[:0].copy()
            else:
                self._empty[name] = leaf[:0].copy()
        self._block = np.full(n_users, -1, np.int32)
        self._row = np.zeros(n_users, np.int32)
        self._start = {name: np.zeros(n_users, np.int64) for name in self._ragged}
        self._count = {name: np.zeros(n_users, np.int64) for name in self._ragged}
        self._blocks: dict[int, Block] = {}
        self._used: dict[int, int] = {}
        """Number of states in use, by block."""
        self._open = -1
        self._lock = threading.Lock()
        """Held while the index is read or changed: several threads take states."""
        self._widths = {
            name: int(np.prod(column.shape[1:], dtype=np.int64)) * column.itemsize
            for name, column in self._empty.items()
        }
        """Bytes of a row of each column."""
        self._length = {
            name: 0 if name.endswith((".items", ".values")) else n_users for name in self._empty
        }
        """Number of rows in use of each column."""
        self._mapped: set[Block] = set()
        self._mapped_bytes = 0
        """Mapped blocks that were read since their memory was given back, and how much of them."""
        # Shared with snapshots, as blocks are:
        self._numbers = count()
        self._sharing: WeakSet[States] = WeakSet([self])
        self._disk: Disk | None = None

    def take(self, users: Int64, without: Collection[str] = ()) -> Any:
        """A copy of the states of ``users``. Item rows of the fields named in ``without``, which
        the caller does not read, are left out."""
        runs = self._find(users)
        leaves: dict[str, Any] = {}
        for name in self._kind._fields:
            if name not in self._ragged:
                leaves[name] = self._gather(runs, name)
            elif name in without:
                leaves[name] = Rows.empty(len(users), self._empty[f"{name}.values"].shape[1])
            else:
                items, values = (self._gather(runs, f"{name}.{p}") for p in ("items", "values"))
                leaves[name] = Rows(indptr_from_counts(runs.counts[name]), items, values)
        return self._kind(**leaves)

    def put(self, users: Int64, private: Any, versions: Int64) -> None:
        """Replace the states of ``users``; ``versions`` are numbers to be saved with them."""
        leaves = [part for leaf in private for part in (leaf if isinstance(leaf, Rows) else [leaf])]
        size = max(1, sum(leaf.nbytes for leaf in leaves))
        step = max(1, len(users) * self._block_bytes() // size)
        for low in range(0, len(users), step):
            some, opened = slice(low, min(low + step, len(users))), self._open
            self._append(users[some], private, some, versions[some])
            if self._open != opened:
                self.clean_up()

    def mean_bytes(self) -> float:
        """Mean size of a user's state in bytes, without item numbers."""
        columns = [
            f"{name}.values" if name in self._ragged else name for name in self._kind._fields
        ]
        size = sum(self._length[name] * self._widths[name] for name in columns)
        return (size + 1) / self.n_users

    def entries(self, name: str) -> Int64:
        """Number of entries of each user in a ragged field."""
        return self._count[name]

    def column(self, name: str) -> Iterator[NDArray[Any]]:
        """The column ``name`` (a dense field, or ``FIELD.items`` or ``FIELD.values`` of a ragged
        one) of all users' states, in parts."""
        step = max(1, int(MAX_COLUMN_BYTES / self.mean_bytes()))
        for low in range(0, self.n_users, step):
            users = np.arange(low, min(low + step, self.n_users))
            yield self._gather(self._find(users), name)

    def snapshot(self) -> States:
        """A copy of all states; cheap, because blocks are shared and never changed."""
        self.clean_up()
        self._seal()
        copy = object.__new__(States)
        copy.__dict__.update(self.__dict__)
        copy._block, copy._row = self._block.copy(), self._row.copy()
        copy._start = {name: array.copy() for name, array in self._start.items()}
        copy._count = {name: array.copy() for name, array in self._count.items()}
        copy._length, copy._lock = dict(self._length), threading.Lock()
        copy._blocks, copy._used, copy._mapped = dict(self._blocks), dict(self._used), set()
        self._sharing.add(copy)
        return copy

    def differing(self, other: States) -> Int64:
        """The users whose states are not stored in the same place as in ``other``."""
        return np.flatnonzero((self._block != other._block) | (self._row != other._row))

    def keep_within(self, disk: Disk | None) -> None:
        """Move blocks to ``disk`` from now on if they do not fit in memory; None: never."""
        self._disk = disk
        for block in self._blocks.values():
            if disk is not None and block is not self._blocks.get(self._open):
                disk.add(block)

    @property
    def bytes_on_disk(self) -> int:
        """Number of bytes that were moved to the disk because memory was full."""
        return 0 if self._disk is None else self._disk.moved

    def save(self, folder: StateFolder) -> list[StateFile]:
        """Write the blocks that are not in files of this folder yet; returns all blocks' files, in
        an order in which later states of a user replace earlier ones."""
        self._seal()
        return [block.save(folder) for block in self._blocks.values()]

    @staticmethod
    def load(
        files: list[StateFile], like: Any, n_users: int, sharing: States | None = None
    ) -> tuple[States, Int64]:
        """Read the states that ``save`` wrote, and the versions that they were put with. ``like``
        only gives types. Blocks that ``sharing`` has, too, are shared with it."""
        states, versions = States(like, n_users), np.zeros(n_users, np.int64)
        known: dict[StateFile | None, tuple[int, Block]] = {}
        if sharing is not None:
            states._numbers, states._sharing = sharing._numbers, sharing._sharing
            states._sharing.add(states)
            known = {block.file: (number, block) for number, block in sharing._blocks.items()}
        for file in files:
            number, block = known.get(file) or (next(states._numbers), Block.load(file))
            for name in states._empty:
                block.column(name)  # a KeyError here, not in a later round, if the file lacks it
            users = block.column(USER)
            states._blocks[number] = block
            states._block[users], states._row[users] = number, np.arange(len(users))
            versions[users] = block.column(VERSION)
            for name in states._ragged:
                counts = block.column(f"{name}.counts")
                states._count[name][users] = counts
                states._start[name][users] = indptr_from_counts(counts)[:-1]
        for name, counts in states._count.items():
            states._length[f"{name}.items"] = states._length[f"{name}.values"] = int(counts.sum())
        used = np.bincount(states._block, minlength=1 + max(states._blocks, default=0))
        states._used = {number: int(used[number]) for number in states._blocks}
        states._drop_unused()
        return states, versions

    def clean_up(self) -> None:
        """Copy states in use to the open block, out of blocks with many replaced or few states.
        Blocks that a snapshot shares stay as they are: its states are in use, too."""
        limit, small_bytes = MAX_REPLACED_SHARE * self._bytes_in_use, self._block_bytes() // 4
        while True:
            shared = {n for other in self._sharing if other is not self for n in other._blocks}
            own = {n: b for n, b in self._blocks.items() if n not in shared and n != self._open}
            used = {n: block.nbytes * self._used[n] // len(block) for n, block in own.items()}
            small = [n for n in used if used[n] < small_bytes]
            if sum(block.nbytes for block in own.values()) - sum(used.values()) > limit:
                number = min(own, key=lambda n: self._used[n] / len(own[n]))
            elif len(small) > MAX_SMALL_BLOCKS:
                number = min(small, key=used.__getitem__)
            else:
                return
            users = own[number].column(USER)
            current = (self._block[users] == number) & (self._row[users] == np.arange(len(users)))
            users = users[current]
            versions = self._gather(self._find(users), VERSION)
            self._append(users, self.take(users), slice(0, len(users)), versions)

    @property
    def _bytes_in_use(self) -> int:
        return sum(n * self._widths[name] for name, n in self._length.items())

    def _block_bytes(self) -> int:
        """Size at which a block is sealed."""
        return min(MAX_BLOCK_BYTES, max(MIN_BLOCK_BYTES, self._bytes_in_use // BLOCKS))

    def _find(self, users: Int64) -> _Runs:
        with self._lock:
            block, row = self._block[users], self._row[users]
            begins = np.ones(len(users) + 1, bool)
            begins[1:-1] = (block[1:] != block[:-1]) | (row[1:] != row[:-1] + 1)
            first, last = np.flatnonzero(begins[:-1]), np.flatnonzero(begins[1:])
            blocks = [self._blocks[number] for number in block[first].tolist()]
            rows = {"": (row[first].tolist(), (row[last] + 1).tolist())}
            counts = {name: of[users] for name, of in self._count.items()}
            for name, start in self._start.items():
                end = start[users[last]] + counts[name][last]
                rows[name] = (start[users[first]].tolist(), end.tolist())
        return _Runs(blocks, rows, counts)

    def _gather(self, runs: _Runs, column: str) -> NDArray[Any]:
        """One column of the states in ``runs``."""
        blocks, (first, end) = runs.blocks, runs.rows[column.rpartition(".")[0]]
        found = [
            b.column(column)[low:high] for b, low, high in zip(blocks, first, end, strict=True)
        ]
        gathered = np.concatenate([self._empty[column], *found])
        for block, rows in zip(blocks, found, strict=True):
            if block.mapped:
                self._mapped_bytes += max(rows.nbytes, FILE_PAGES)
                self._mapped.add(block)
        if self._mapped_bytes > MAX_MAPPED_BYTES:
            read, self._mapped, self._mapped_bytes = self._mapped, set(), 0
            for block in read:
                block.release()
        return gathered

    def _append(self, users: Int64, private: Any, some: slice, versions: Int64) -> None:
        """Write the states ``some`` of ``private`` to the open block, as those of ``users``."""
        columns: Columns = {USER: users, VERSION: versions}
        for name in self._kind._fields:
            leaf = getattr(private, name)
            if name in self._ragged:
                indptr = leaf.indptr[some.start : some.stop + 1]
                columns[f"{name}.counts"] = np.diff(indptr)
                columns[f"{name}.items"] = leaf.items[indptr[0] : indptr[-1]]
                columns[f"{name}.values"] = leaf.values[indptr[0] : indptr[-1]]
            else:
                columns[name] = leaf[some]
        block, size = self._blocks.get(self._open), self._block_bytes()
        if block is None or (2 * block.nbytes > size and not block.fits(columns)):
            self._seal()
            self._open = next(self._numbers)
            block = self._blocks[self._open] = Block(self._empty, size)
            self._used[self._open] = 0
        row, entry = len(block), {name: block.used(f"{name}.items") for name in self._ragged}
        block.append(columns)
        with self._lock:
            old, replaced = np.unique(self._block[users], return_counts=True)
            for number, n in zip(old.tolist(), replaced.tolist(), strict=True):
                if number >= 0:
                    self._used[number] -= n
            self._used[self._open] += len(users)
            self._block[users] = self._open
            self._row[users] = np.arange(row, row + len(users))
            for name in self._ragged:
                counts = columns[f"{name}.counts"]
                more = int(counts.sum()) - int(self._count[name][users].sum())
                self._length[f"{name}.items"] += more
                self._length[f"{name}.values"] += more
                self._count[name][users] = counts
                self._start[name][users] = entry[name] + indptr_from_counts(counts)[:-1]
            self._drop_unused()

    def _seal(self) -> None:
        """Close the open block: a snapshot or a checkpoint shares it from here on."""
        if self._open < 0:
            return
        block, self._open = self._blocks[self._open], -1
        block.seal()
        self._drop_unused()
        if self._disk is not None and block in self._blocks.values():
            self._disk.add(block)

    def _drop_unused(self) -> None:
        for number in [n for n, used in self._used.items() if not used and n != self._open]:
            del self._blocks[number], self._used[number]
