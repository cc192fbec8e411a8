"""What is done to the devices of a group of users: train them, send them a download, evaluate them.

The group is the whole federation, or the users of one Ray worker. It does not know the others: what
a device computes depends on its own state and data and on the download alone.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from unskew.engine.contract import CheckedMethod
from unskew.engine.devices import Devices
from unskew.engine.evaluate import evaluate
from unskew.engine.executor import (
    MAX_CHUNK_CLIENTS,
    Executor,
    ThreadExecutor,
    Trained,
    Transform,
    batches,
    train_chunk,
)
from unskew.engine.scoreboard import Scoreboard
from unskew.kernels import ExactSum, add_uploads, get_threads
from unskew.ragged import indptr_from_counts, positions, select
from unskew.types import (
    Cohort,
    Float64,
    Int64,
    Method,
    Rows,
    Split,
    UnskewError,
    Upload,
    Uploads,
)

MAX_CHUNK_BYTES = 8 * 2**20
"""Maximum bytes of the private state of a chunk's clients; large states make chunks smaller."""
MIN_CHUNKS_PER_WORKER = 4
"""Minimum number of chunks per worker and round, so that workers finish at about the same time."""


class Contribution(NamedTuple):
    """What the devices of a group contribute to a round."""

    total: ExactSum | None
    """The sum of the uploads; None if the server needs each of them."""
    each: list[tuple[Int64, Upload]]
    """Otherwise the uploads: users and their upload, chunk by chunk."""
    losses: Float64
    """Loss of each device, in the order of the users."""
    bytes_up: int


class Group:
    """The users of a split, with a method and a seed. Users are numbered as in the split."""

    def __init__(
        self,
        method: Method,
        split: Split,
        seed: int,
        *,
        first_user: int = 0,
        chunk: int = MAX_CHUNK_CLIENTS,
        transform: Transform | None = None,
        executor: Executor | None = None,
    ) -> None:
        """``first_user`` is the number in the federation of the split's first user. For the other
        arguments see `Federation`."""
        self.method, self.split, self.seed = method, split, seed
        self._first_user, self._chunk = first_user, chunk
        self._transform, self._executor = transform, executor
        self._checked: set[str] = set()
        self._needs = frozenset(getattr(method, "needs", ()))
        self._ages = split.train_ages if method.uses_ages else None
        if "item_features" in self._needs:
            method.set_item_features(self._needed("item_features", split.item_features))

    def first_checked(self, step: str) -> Any:
        """The method. What it returns is checked if ``step``, the name of the function that is to
        be called, is asked for the first time."""
        if step in self._checked:
            return self.method
        self._checked.add(step)
        return CheckedMethod(self.method)

    def cohort(self, users: Int64, round: int) -> Cohort:
        """The data for training ``users`` in a round: training items, items never drawn as
        negatives and, if the method needs them, ratings and timestamps."""
        split = self.split
        cohort = Cohort(
            users + self._first_user,
            select(split.train, users),
            select(split.excluded, users),
            split.n_items,
            self.seed,
            round,
        )
        asked = bool(self._needs) or self._ages is not None
        place = positions(split.train.indptr, users) if asked else users
        if "ratings" in self._needs:
            ratings = self._needed("ratings", split.train_ratings)
            cohort = cohort._replace(ratings=ratings[place])
        if "timestamps" in self._needs:
            timestamps = self._needed("timestamps", split.train_timestamps)
            cohort = cohort._replace(timestamps=timestamps[place])
        if self._ages is not None:
            cohort = cohort._replace(ages=self._ages[place])
        return cohort

    def train(self, devices: Devices, users: Int64, round: int, download: Any) -> Contribution:
        """Train ``users`` in a round and add up their uploads."""
        method, unread = self.method, self.method.unread_fields(round)
        # States of a stateless method are computed when it is evaluated; until then it has none.
        keeps_state = not method.stateless
        if keeps_state:
            devices.remember(round - 1, method.retained_download(download))
        executor = self._executor or ThreadExecutor(get_threads() if self._transform is None else 1)
        size = self._worker_chunk_size(devices, len(users), executor.workers)
        chunks = list(batches(users, size))
        # The first results that a method returns to this process are checked.
        checked = self.first_checked("local")

        def train(chunk: Int64) -> Trained:
            private, cohort = devices.take(chunk, unread), self.cohort(chunk, round)
            trainer = checked if chunk is chunks[0] else method
            return train_chunk(trainer, download, private, cohort, self._transform)

        total: ExactSum | None = None
        each: list[tuple[Int64, Upload]] = []
        losses, bytes_up = [], 0
        results = executor.map_chunks(train, chunks)
        for chunk, (private, upload, chunk_losses) in zip(chunks, results, strict=True):
            if method.aggregation == "sum":
                total = add_uploads(total, upload, self.split.n_items)
            else:
                each.append((chunk, upload))
            if keeps_state:
                # Stored by this thread only: memory freed by one thread is not reused by another.
                devices.put(chunk, private, round - 1)
            losses.append(chunk_losses)
            bytes_up += upload.nbytes
        devices.forget()
        return Contribution(total, each, np.concatenate(losses), bytes_up)

    def deliver(
        self, devices: Devices, users: Int64, version: int, download: Any | None = None
    ) -> None:
        """Send ``users`` the download with this number and compute their states from it and their
        training items, for methods without parameters per user. Without ``download``, the devices
        have the one with this number."""
        if download is not None:
            devices.remember(version, download)
        download = devices.downloads[version]
        for batch in batches(users, self._chunk_size(devices)):
            history = select(self.split.train, batch)
            private = self.method.refresh(download, devices.take(batch), history)
            devices.put(batch, private, version)
        devices.forget()

    def evaluate(self, devices: Devices, board: Scoreboard, users: Int64) -> None:
        """Store the ranks of these users' held-out items in ``board``."""
        evaluate(self.method, self.split, devices, board, users, self._chunk_size(devices))

    def _needed(self, name: str, values: Any) -> Any:
        """Return ``values``: ratings, timestamps or item features, as ``name`` says. Raises an
        UnskewError if they are None, because the method needs them."""
        if values is None:
            what = name.replace("_", " ")
            raise UnskewError(
                f"{self.method.name} needs {what} and {self.split.data} has none; give data with "
                f"{what}, or another method."
            )
        return values

    def _chunk_size(self, devices: Devices) -> int:
        return min(self._chunk, max(1, int(MAX_CHUNK_BYTES / devices.mean_bytes())))

    def _worker_chunk_size(self, devices: Devices, n_users: int, workers: int) -> int:
        """Number of clients per chunk: few enough that every worker gets several chunks, and that
        all chunks in memory at the same time stay within ``MAX_CHUNK_BYTES``. Methods with
        ``large_chunks`` get as few chunks as memory allows, of equal size."""
        if self.method.large_chunks:
            parts = workers * -(-n_users // (workers * self._chunk_size(devices)))
            return max(1, -(-n_users // parts))
        size = self._chunk_size(devices) // (2 * workers)
        return max(1, min(size, -(-n_users // (workers * MIN_CHUNKS_PER_WORKER))))


def concatenate_uploads(each: list[tuple[Int64, Upload]]) -> Uploads:
    """Concatenate the uploads in ``each``, a (users, upload) pair per chunk. Empties the list, to
    save memory."""
    first = each[0][1]
    indptr = indptr_from_counts(np.concatenate([np.diff(one.rows.indptr) for _, one in each]))
    items = np.empty(indptr[-1], np.int32)
    values = np.empty((indptr[-1], first.rows.values.shape[1]), np.float32)
    users, dense, weight, at = [], [], [], 0
    while each:
        some, upload = each.pop(0)
        end = at + len(upload.rows.items)
        items[at:end], values[at:end] = upload.rows.items, upload.rows.values
        users.append(some)
        dense.append(upload.dense)
        weight.append(upload.weight)
        at = end
    rest = (np.concatenate(dense), np.concatenate(weight))
    return_freed()
    return Uploads(np.concatenate(users), Upload(Rows(indptr, items, values), *rest))


def return_freed() -> None:
    """Make the GNU C library return freed memory to the operating system, because small freed
    blocks cannot hold the large arrays needed next. No effect with other C libraries."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return
