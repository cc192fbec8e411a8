"""The devices of a part of the users, in a process of their own: what a Ray worker runs.

A shard has the data and the private state of its users and trains them with the same code as a run
in one process. `ray.py` calls it. Calls that change devices have numbers. The shard writes
checkpoints to a folder on its machine, with the number of the last call that they contain. A
process that is started again in place of a dead one reads them, and gets the later calls again.

A checkpoint is written when the next call has come, because its caller then has the result of the
one before: no call whose result was lost is in a checkpoint.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.engine.blocks import StateFile, StateFolder
from unskew.engine.checkpoints import MAX_WRITING_SHARE, SavedPart
from unskew.engine.devices import Devices
from unskew.engine.executor import batches
from unskew.engine.group import Group
from unskew.engine.memory import disk_for_state
from unskew.engine.scoreboard import Scoreboard
from unskew.files import read_json, write_json
from unskew.kernels import ExactSum, merge_sums, set_threads
from unskew.privacy import PrivateUploads
from unskew.ragged import select
from unskew.types import Float64, Int64, Method, Split

FORMAT, VERSION = "unskew-shard", 1
"""Format name and version of a shard's ``current.json``."""
NOT_PLACED = -1
"""What ``begin`` returns if the shard has no devices yet."""
MAX_UNSAVED_CALLS = 50
"""Number of calls after the last checkpoint at which one is written, however long that takes."""
MAX_MESSAGE_BYTES = 2**25
"""Size of the private states that are sent at a time, on average."""


class Loaded(NamedTuple):
    """The data and the method of a run, as a process has loaded them."""

    build: Callable[[], Method]
    split: Split
    facts: Mapping[str, str]
    """What has to be the same in all processes of a run: versions, the checksum of the data."""


class Report(NamedTuple):
    """What a shard tells of a round, apart from the sum of its uploads."""

    losses: Float64
    bytes_up: int
    sent: list[Any]
    """Records of private uploads (see `PrivateUploads.take_records`)."""
    saved: int
    """Number of the last call that is in the shard's checkpoint."""


class Shard:
    """Devices of the users ``first`` to ``end`` - 1."""

    def __init__(
        self,
        load: Callable[[], Loaded],
        first: int,
        end: int,
        folder: Path,
        threads: int,
        state_on_disk: bool | None,
        chunk: int,
    ) -> None:
        """``load`` loads the data when they are needed; ``folder`` is for checkpoints."""
        set_threads(threads)
        self._load, self._first, self._end, self._top = load, first, end, folder
        self._state_on_disk, self._chunk = state_on_disk, chunk
        self._loaded: Loaded | None = None
        self._devices: Devices | None = None
        self._best: Devices | None = None

    def ready(self) -> int:
        """Tell that the process runs; returns its number."""
        return os.getpid()

    def facts(self) -> Mapping[str, str]:
        """Load the data; returns what has to be the same in all processes."""
        return self._part().facts

    def begin(self, seed: int, transform: PrivateUploads | None) -> int:
        """Prepare for training with this seed. Returns the number of the last call in the
        checkpoint with which the shard goes on, or ``NOT_PLACED``."""
        build, part, _ = self._part()
        options: dict[str, Any] = {"first_user": self._first, "chunk": self._chunk}
        self._transform = transform
        self._group = Group(build(), part, seed, transform=transform, **options)
        self._board, self._folder = Scoreboard(part), StateFolder(self._top / f"seed-{seed}")
        self._devices = self._best = None
        self._began, self._writing = time.monotonic(), 0.0
        # Whatever the driver has got before, it gets again.
        self._unsent = {best: np.ones(part.n_users, bool) for best in (False, True)}
        self._done = self._saved = NOT_PLACED
        if self._manifest.exists():
            self._read_checkpoint()
        return self._done

    # Placing devices: calls without numbers, which are all made again if the process dies.

    def place(self, downloads: Mapping[int, Any]) -> None:
        """Start to receive the devices. ``downloads`` are those that any of them holds."""
        _, private = self._group.method.init(1, self._group.split.n_items, self._group.seed)
        held = {version: _own(download) for version, download in downloads.items()}
        self._devices = Devices.empty(self._group.split.n_users, private, held)
        self._keep_within_memory()

    def put(self, users: Int64, private: Any, versions: Int64) -> None:
        """Replace devices. Those of the best round come first, then ``placed`` is called, and then
        those that have changed since then come."""
        self._last.put(_own(users), _own(private), _own(versions))

    def placed(self, *, best: bool) -> None:
        """All devices of the best round, or of the last, have come."""
        if best:
            self._best = self._last.snapshot()
            self._best.forget()
            return
        self._last.forget()
        self._done = 0
        self._unsent = {best: np.zeros(self._last.n_users, bool) for best in (False, True)}
        self._save()

    # Calls with numbers: they change devices.

    def train(
        self, number: int, users: Int64, round: int, download: Any
    ) -> tuple[Report, ExactSum | None]:
        """Train ``users`` in a round; returns the sum of their uploads, and the rest."""
        saved, users = self._before(number), _own(users)
        total, _, losses, bytes_up = self._group.train(self._last, users, round, _own(download))
        sent = [] if self._transform is None else self._transform.take_records()
        if not self._group.method.stateless:
            self._unsent[False][users] = True
        return Report(losses, bytes_up, sent, saved), total

    def deliver(
        self, number: int, users: Int64, version: int, download: Any | None, *, best: bool
    ) -> int:
        """Send ``users`` a download (see `Group.deliver`); returns the call that is saved."""
        saved, users = self._before(number), _own(users)
        self._group.deliver(self._devices_of(best), users, version, _own(download))
        for changed in {False, best}:  # the driver puts the best devices over the last ones
            self._unsent[changed][users] = True
        return saved

    def keep_best(self, number: int) -> int:
        """Keep the devices as those of the best round; returns the call that is saved."""
        saved = self._before(number)
        self._best = self._last  # the old best first, see `Federation._keep_best`
        self._best = self._last.snapshot()
        self._unsent[True] |= self._unsent[False]
        self._unsent[False][:] = False
        return saved

    # Calls that change no device.

    def merge(self, one: ExactSum, other: ExactSum) -> ExactSum:
        """The sum of two sums."""
        return merge_sums(_own(one), other)

    def evaluate(self, users: Int64, *, best: bool) -> dict[str, NDArray[Any]]:
        """Ranks and lists of ``users``, as named arrays."""
        users = _own(users)
        self._group.evaluate(self._devices_of(best), self._board, users)
        return self._board.arrays_of(users)

    def fetch(self, received: Int64, *, best: bool) -> tuple[Int64, Any, Int64] | None:
        """Some of the devices that the driver does not have: users, states, versions; None if there
        are none. ``received`` are the users who came last."""
        devices, unsent = self._devices_of(best), self._unsent[best]
        unsent[received] = False
        most = max(1, int(MAX_MESSAGE_BYTES / devices.mean_bytes()))
        users = next(batches(np.flatnonzero(unsent), most), None)
        if users is None:
            return None
        return users, devices.take(users), devices.version[users]

    def close(self) -> None:
        """Delete the checkpoints."""
        shutil.rmtree(self._top, ignore_errors=True)
        with suppress(OSError):  # other workers on this machine may have theirs in it
            self._top.parent.rmdir()

    @property
    def _last(self) -> Devices:
        assert self._devices is not None
        return self._devices

    def _devices_of(self, best: bool) -> Devices:
        if not best:
            return self._last
        assert self._best is not None
        return self._best

    def _part(self) -> Loaded:
        """What was loaded, without the data of other users."""
        if self._loaded is None:
            loaded = self._load()
            part = split_part(loaded.split, self._first, self._end)
            self._loaded = loaded._replace(split=part)
        return self._loaded

    def _keep_within_memory(self) -> None:
        self._last.keep_within(disk_for_state(self._folder, self._state_on_disk))

    @property
    def _manifest(self) -> Path:
        return self._folder.path / "current.json"

    def _before(self, number: int) -> int:
        """Write a checkpoint before this call is made, unless that takes too much time. Returns the
        number of the last call that is saved."""
        if number != self._done + 1:
            raise RuntimeError(f"call {number} after call {self._done}")
        now = time.monotonic()
        allowed = MAX_WRITING_SHARE * (now - self._began)
        if self._writing <= allowed or self._done - self._saved >= MAX_UNSAVED_CALLS:
            self._save()
            self._writing += time.monotonic() - now
        self._done = number
        return self._saved

    def _save(self) -> None:
        parts = {"last": self._last, "best": self._devices_of(True)}
        saved = {
            name: SavedPart(*devices.save(self._folder), []) for name, devices in parts.items()
        }
        files = {file.name: file for part in saved.values() for file in part.files()}
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "done": self._done,
            "parts": {name: part.names() for name, part in saved.items()},
            "files": {name: [file.size, file.sha256] for name, file in files.items()},
        }
        write_json(self._manifest, manifest, compact=True)
        self._folder.remove_all_but(files)
        self._saved = self._done

    def _read_checkpoint(self) -> None:
        manifest = read_json(self._manifest, FORMAT, VERSION, sealed=True)

        def file(name: str) -> StateFile:
            return StateFile(self._folder.path, name, *manifest["files"][name])

        def part(name: str, like: Devices | None) -> Devices:
            names = manifest["parts"][name]
            downloads = {int(version): file(one) for version, one in names["downloads"].items()}
            blocks = [file(one) for one in names["blocks"]]
            return SavedPart(blocks, downloads, []).devices(self._group, like)

        self._devices = part("last", None)
        self._best = part("best", self._devices)
        self._keep_within_memory()
        self._done = self._saved = int(manifest["done"])


def split_part(split: Split, first: int, end: int) -> Split:
    """The part of a split that is the users' from ``first`` to ``end`` - 1."""
    users = np.arange(first, end)
    rows = slice(split.train.indptr[first], split.train.indptr[end])
    lists = {
        name: select(getattr(split, name), users)
        for name in ("train", "seen", "excluded", "validation", "test")
    }
    values = {name: getattr(split, name) for name in ("train_ratings", "train_timestamps")}
    values = {name: None if of is None else of[rows].copy() for name, of in values.items()}
    return Split(
        split.data,
        split.protocol,
        split.user_ids[first:end],
        split.item_ids,
        None,
        **lists,
        sampled=split.sampled[first:end].copy(),
        rank_all=split.rank_all,
        **values,
        period=split.period,
        item_features=split.item_features,
        validation_in_history=split.validation_in_history,
    )


def _own(value: Any) -> Any:
    """A copy of arrays that came from another process, which can be written: kernels are compiled
    anew for arrays that cannot."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_own, value))
    return value
