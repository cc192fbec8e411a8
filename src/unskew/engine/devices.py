"""A compact store of the private state of all devices, read and written one chunk at a time.

A dense field (a vector per user) is one array with the user axis first. A ragged field (item rows,
a varying number per user) is two arrays per user: item numbers and rows. These are replaced, never
changed in place, so snapshots share them. A device also has the version number of the download it
received last. A download is stored as long as it is the last one of some device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.files import Tensor
from unskew.ragged import indptr_from_counts
from unskew.types import Int32, Int64, Rows


class Devices:
    """Store of the private state of all devices of the federation."""

    def __init__(self, private: Any, download: Any) -> None:
        self._kind = type(private)
        self._dense: dict[str, NDArray[Any]] = {}
        self._ragged: dict[str, tuple[list[NDArray[Any]], list[NDArray[Any]]]] = {}
        for name, leaf in zip(private._fields, private, strict=True):
            if isinstance(leaf, Rows):
                cuts = leaf.indptr[1:-1]
                self._ragged[name] = (np.split(leaf.items, cuts), np.split(leaf.values, cuts))
            else:
                self._dense[name] = leaf.copy()
        first = private[0]
        self.n_users = len(first.indptr) - 1 if isinstance(first, Rows) else len(first)
        self._all: dict[int, Int32] = {}
        self.version = np.zeros(self.n_users, np.int64)
        self.downloads: dict[int, Any] = {0: download}

    def take(self, users: Int64, without: Collection[str] = ()) -> Any:
        """A copy of the private state of ``users``. Item rows of the fields named in ``without``,
        which the caller does not read, are left out."""
        leaves: dict[str, Any] = {name: array[users] for name, array in self._dense.items()}
        for name, (items, values) in self._ragged.items():
            if name in without:
                leaves[name] = Rows.empty(len(users), values[0].shape[1])
                continue
            chosen = [items[user] for user in users]
            leaves[name] = Rows(
                indptr_from_counts([len(part) for part in chosen]),
                np.concatenate(chosen),
                np.concatenate([values[user] for user in users]),
            )
        return self._kind(**leaves)

    def put(self, users: Int64, private: Any, version: int) -> None:
        """Replace the private state of ``users``, whose last download is now number ``version``."""
        for name, array in self._dense.items():
            array[users] = getattr(private, name)
        for name, (items, values) in self._ragged.items():
            rows: Rows = getattr(private, name)
            for i, user in enumerate(users):
                run = slice(rows.indptr[i], rows.indptr[i + 1])
                if not np.array_equal(items[user], rows.items[run]):
                    items[user] = self._copy_items(rows.items[run])
                values[user] = rows.values[run].copy()
        self.version[users] = version

    def _copy_items(self, items: Int32) -> Int32:
        """A copy of a list of item numbers. Lists of the whole catalogue share one copy."""
        if not len(items) or items[-1] != len(items) - 1:
            return items.copy()
        return self._all.setdefault(len(items), items.copy())

    def mean_bytes(self) -> float:
        """Mean size of a device's private state, in bytes."""
        dense = sum(array.nbytes for array in self._dense.values())
        ragged = sum(part.nbytes for _, values in self._ragged.values() for part in values)
        return (dense + ragged + 1) / self.n_users

    def remember(self, version: int, download: Any) -> None:
        """Store the download that the server is about to send, under its version number."""
        self.downloads = {**self.downloads, version: download}

    def forget(self) -> None:
        """Delete the downloads that are not the last one of any device."""
        live = set(np.unique(self.version).tolist())
        self.downloads = {number: held for number, held in self.downloads.items() if number in live}

    def snapshot(self) -> Devices:
        """A copy of all devices' state; cheap, because item rows are shared and never changed."""
        copy = object.__new__(Devices)
        copy._kind, copy.n_users, copy._all = self._kind, self.n_users, self._all
        copy._dense = {name: array.copy() for name, array in self._dense.items()}
        copy._ragged = {name: (list(a), list(b)) for name, (a, b) in self._ragged.items()}
        copy.version, copy.downloads = self.version.copy(), dict(self.downloads)
        return copy

    def tensors(self) -> Iterator[Tensor]:
        """Yield the state of all devices as named tensors, to be saved or hashed without a copy."""
        yield Tensor.whole("version", self.version)
        for name in self._kind._fields:
            if name in self._dense:
                yield Tensor.whole(name, self._dense[name])
                continue
            items, values = self._ragged[name]
            indptr = indptr_from_counts([len(part) for part in items])
            yield Tensor.whole(f"{name}.indptr", indptr)
            yield Tensor(f"{name}.items", np.dtype(np.int32), (int(indptr[-1]),), items)
            shape = (int(indptr[-1]), *values[0].shape[1:])
            yield Tensor(f"{name}.values", np.dtype(np.float32), shape, values)
        for version, download in sorted(self.downloads.items()):
            for field, array in zip(download._fields, download, strict=True):
                yield Tensor.whole(f"download.{version}.{field}", array)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The state of all devices as a dictionary of named arrays."""
        return {tensor.name: tensor.array() for tensor in self.tensors()}

    @staticmethod
    def from_arrays(named: Mapping[str, NDArray[Any]], private: Any, download: Any) -> Devices:
        """Build a store from the result of ``arrays``; the other arguments only give types."""
        leaves: dict[str, Any] = {}
        for name, leaf in zip(private._fields, private, strict=True):
            if isinstance(leaf, Rows):
                leaves[name] = Rows(*(named[f"{name}.{part}"] for part in Rows._fields))
            else:
                leaves[name] = named[name]
        devices = Devices(type(private)(**leaves), download)
        devices.version = named["version"].copy()
        versions = {int(n.split(".")[1]) for n in named if n.startswith("download.")}
        devices.downloads = {
            v: type(download)(*(named[f"download.{v}.{field}"] for field in download._fields))
            for v in versions
        }
        return devices
