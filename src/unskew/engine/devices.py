"""The devices of all users: their private states, and the downloads that they received last.

Private states are read and written one chunk at a time. What a snapshot or a checkpoint costs
depends on what has changed, because both share blocks of states (see `states.py`). States that do
not fit in memory can be kept on disk. A device also has the version number of the download it
received last. A download is stored as long as it is the last one of some device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from unskew.engine.blocks import Disk, StateFile, StateFolder
from unskew.engine.executor import MAX_CHUNK_CLIENTS
from unskew.engine.states import States
from unskew.files import Tensor, named_tensors
from unskew.ragged import indptr_from_counts
from unskew.types import Int64, Rows


class SavedDevices(NamedTuple):
    """The files of all devices: of the blocks of states, in order, and of downloads, by version."""

    blocks: list[StateFile]
    downloads: dict[int, StateFile]


class Devices:
    """Store of the private state of all devices of the federation."""

    def __init__(self, private: Any, download: Any, disk: Disk | None = None) -> None:
        """``private`` is the state of all users. What of it does not fit in memory goes to
        ``disk``."""
        first = private[0]
        n_users = len(first.indptr) - 1 if isinstance(first, Rows) else len(first)
        self._fill(States(private, n_users), np.zeros(n_users, np.int64), {0: download})
        self.keep_within(disk)
        self.put(np.arange(n_users), private, 0)

    def _fill(self, states: States, version: Int64, downloads: dict[int, Any]) -> None:
        self._states, self.n_users = states, states.n_users
        self._version, self.downloads = version, downloads
        # Shared with snapshots:
        self._files: dict[int, tuple[Any, StateFile]] = {}
        """Downloads that are in files, by version."""
        self._sharing: WeakSet[Devices] = WeakSet([self])

    @staticmethod
    def empty(n_users: int, private: Any, downloads: Mapping[int, Any]) -> Devices:
        """A store without states: `put` those of all ``n_users`` users before anything else.
        ``private`` only gives types."""
        devices = object.__new__(Devices)
        devices._fill(States(private, n_users), np.zeros(n_users, np.int64), dict(downloads))
        return devices

    @property
    def version(self) -> Int64:
        """Number of the last download of each device. Change it by ``put``, or as a whole."""
        return self._version

    @version.setter
    def version(self, version: Int64) -> None:
        everyone = np.arange(self.n_users)
        for users in np.array_split(everyone, max(1, self.n_users // MAX_CHUNK_CLIENTS)):
            self.put(users, self.take(users), version[users])

    def take(self, users: Int64, without: Collection[str] = ()) -> Any:
        """A copy of the private state of ``users``. Item rows of the fields named in ``without``,
        which the caller does not read, are left out."""
        return self._states.take(users, without)

    def put(self, users: Int64, private: Any, version: int | Int64) -> None:
        """Replace the private state of ``users``, whose last download is now number ``version``."""
        self._states.put(users, private, np.broadcast_to(version, len(users)))
        self._version[users] = version

    def mean_bytes(self) -> float:
        """Mean size of a device's private state, in bytes."""
        return self._states.mean_bytes()

    def remember(self, version: int, download: Any) -> None:
        """Store the download that the server is about to send, under its version number."""
        self.downloads = {**self.downloads, version: download}

    def forget(self) -> None:
        """Delete the downloads that are not the last one of any device."""
        live = set(np.unique(self.version).tolist())
        self.downloads = {number: held for number, held in self.downloads.items() if number in live}
        held = {number for devices in self._sharing for number in devices.downloads}
        for number in self._files.keys() - held:
            del self._files[number]

    def snapshot(self) -> Devices:
        """A copy of all devices' state; cheap, because it shares what does not change."""
        copy = object.__new__(Devices)
        copy._fill(self._states.snapshot(), self.version.copy(), dict(self.downloads))
        copy._files, copy._sharing = self._files, self._sharing
        self._sharing.add(copy)
        return copy

    def differing(self, other: Devices) -> Int64:
        """The users whose state may differ from that in ``other``, with which this store shares
        what they have in common: a snapshot, or a store loaded like it."""
        return self._states.differing(other._states)

    def keep_within(self, disk: Disk | None) -> None:
        """Move private state to ``disk`` from now on if it does not fit in memory; None: never."""
        self._states.keep_within(disk)

    @property
    def bytes_on_disk(self) -> int:
        """Number of bytes of private state that were moved to the disk, as memory was full."""
        return self._states.bytes_on_disk

    def tensors(self) -> Iterator[Tensor]:
        """Yield the state of all devices as named tensors, to be saved or hashed once; states are
        gathered while a tensor's parts are read."""
        yield Tensor.whole("version", self.version)
        for name, leaf in self._states.take(np.zeros(0, np.int64))._asdict().items():
            if not isinstance(leaf, Rows):
                shape = (self.n_users, *leaf.shape[1:])
                yield Tensor(name, leaf.dtype, shape, self._states.column(name))
                continue
            indptr = indptr_from_counts(self._states.entries(name))
            yield Tensor.whole(f"{name}.indptr", indptr)
            for part, array in (("items", leaf.items), ("values", leaf.values)):
                shape = (int(indptr[-1]), *array.shape[1:])
                column = self._states.column(f"{name}.{part}")
                yield Tensor(f"{name}.{part}", array.dtype, shape, column)
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
        versions = {int(n.split(".")[1]) for n in named if n.startswith("download.")}
        downloads = {
            v: type(download)(*(named[f"download.{v}.{field}"] for field in download._fields))
            for v in versions
        }
        n_users = len(named["version"])
        devices = Devices.empty(n_users, private, downloads)
        devices.put(np.arange(n_users), type(private)(**leaves), named["version"])
        return devices

    def save(self, folder: StateFolder) -> SavedDevices:
        """Write what is not in files of this folder yet; returns all files of the devices."""
        for version, download in self.downloads.items():
            known, file = self._files.get(version, (None, None))
            if file is None or known is not download or file.folder != folder.path:
                written = folder.write("download", named_tensors(download._asdict()))
                self._files[version] = download, written
        downloads = {version: self._files[version][1] for version in self.downloads}
        return SavedDevices(self._states.save(folder), downloads)

    @staticmethod
    def load(
        saved: SavedDevices, n_users: int, private: Any, download: Any, like: Devices | None = None
    ) -> Devices:
        """Read what ``save`` wrote; ``private`` and ``download`` only give types. Files that the
        devices ``like`` have, too, are read once and shared with them."""
        sharing = None if like is None else like._states
        states, version = States.load(saved.blocks, private, n_users, sharing)
        devices = object.__new__(Devices)
        devices._fill(states, version, {})
        if like is not None:
            devices._files, devices._sharing = like._files, like._sharing
            devices._sharing.add(devices)
        for number, file in saved.downloads.items():
            if devices._files.get(number, (None, None))[1] != file:
                arrays = file.read()
                leaves = (arrays[field] for field in download._fields)
                devices._files[number] = type(download)(*leaves), file
            devices.downloads[number] = devices._files[number][0]
        return devices
