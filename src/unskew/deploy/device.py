"""Training, metrics and recommendations of a node's users, whose private state is kept in files.

The state folder holds ``device.json`` (the federation, the users, the device's secret seeds),
``state.safetensors`` (the private state, the users' last downloads, and the users for whom Step 2
is pending), ``reply.safetensors`` (the last reply), ``best.safetensors`` (the state after the round
with the best validation) and ``privacy.json`` (the number of uploads and their noise). No file ever
holds a state with NaN. State and replies are marked with their device, so that those of another
device are refused.

A round is answered once. If a server lost a round and repeats it with the same download, the node
sends its stored reply; with another download it refuses, because two replies with the same noise
would reveal the difference. A device that missed rounds continues from its own state.

Step 1 (training before the upload) marks Step 2 (training after the upload) as pending before the
reply is sent. Every later use of the state (the next round, an evaluation, a recommendation) does
a pending Step 2 first. ``python -m unskew.deploy.device STATE [METHOD]`` does only Step 2.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unskew.deploy.account import record_uploads
from unskew.deploy.messages import (
    Named,
    download_digest,
    each_message,
    sum_message,
    upload_shape,
    zero_uploads,
)
from unskew.deploy.node_data import (
    NodeData,
    check_catalogue,
    check_size,
    common_items,
    lock_folder,
    read_node_data,
    user_labels,
)
from unskew.deploy.task import Task
from unskew.engine import (
    Devices,
    Recommender,
    Scoreboard,
    Transform,
    batches,
    concatenate_uploads,
    train_upload,
)
from unskew.files import (
    Tensor,
    named_tensors,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from unskew.kernels import add_uploads, empty_sum
from unskew.methods import admit_method
from unskew.ragged import filter_entries, positions, select
from unskew.types import Bool, Cohort, Int64, UnskewError, Upload

FORMAT, VERSION = "unskew-device", 3
"""Format name and version of ``device.json``; other files add their own name to the format's."""
_TRAINED = ("reply.safetensors", "best.safetensors", "privacy.json")
"""Files of a state folder that only a device writes which has taken part. The state says which of
them there are, so that none is lost unnoticed."""
log = logging.getLogger("flwr")


class Progress(NamedTuple):
    """The last round a node answered, the number of rounds in which it trained, and the positions
    of the users for whom Step 2 is pending (``due``)."""

    round: int
    rounds_trained: int
    due: Int64


class Seeds(NamedTuple):
    """Random seeds of a node, for training and for privacy noise. The noise seed stays secret."""

    training: int
    noise: int


class Device:
    """The users of one node, with their data and state. Use it inside :func:`lock_folder`, so that
    only one process at a time changes the state files."""

    def __init__(self, folder: Path, task: Task, data: NodeData, seeds: Seeds) -> None:
        self.folder, self.task, self.data, self.seeds = folder, task, data, seeds
        self.method = task.build()
        self.progress = Progress(0, 0, np.zeros(0, np.int64))
        self.devices: Devices

    @staticmethod
    def join(
        folder: Path, data: Path, task: Task, *, shared_seed: bool, catalogue: str = ""
    ) -> Device:
        """Open the node's saved state, or create it when the node takes part for the first time.
        ``catalogue`` is the digest that the node's item labels must have."""
        if (folder / "device.json").exists():
            about = read_json(folder / "device.json", FORMAT, VERSION)
            task.check_folder(folder, about["task"])
            device = Device.open(folder, data)
            device.task, device.method = task, task.build()
            check_catalogue(device.data, data, catalogue)
            fresh = about | {"data": str(data.resolve()), "task": vars(task)}
            if fresh != about:
                write_json(folder / "device.json", fresh)
            return device
        left = [name for name in _TRAINED if (folder / name).exists()]
        if left:
            raise UnskewError(
                f"{folder} has {left[0]} but no device.json; restore it, or give the node a new "
                "state folder."
            )
        node = check_size(read_node_data(data), data, task.n_users, task.n_items)
        check_catalogue(node, data, catalogue)
        # With the federation's seed the server could work out the negatives a device draws.
        seed = task.seed if shared_seed else secrets.randbits(62)
        device = Device(folder, task, node, Seeds(seed, secrets.randbits(62)))
        device._initialise()
        about = {"format": FORMAT, "version": VERSION, "data": str(data.resolve())}
        about |= {"task": vars(task), "seeds": list(device.seeds), **user_labels(node)}
        write_json(folder / "device.json", about)
        return device

    @staticmethod
    def open(folder: Path, data: Path | None = None, *, best: bool = False) -> Device:
        """Open the state saved in a folder; with ``best``, the state after the best round if there
        is one. ``data`` is needed only if the data folder has moved."""
        if not (folder / "device.json").exists():
            raise UnskewError(f"{folder} holds no device; it appears when a node first takes part.")
        about = read_json(folder / "device.json", FORMAT, VERSION)
        task, place = Task(**about["task"]), data or Path(about["data"])
        node = check_size(read_node_data(place), place, task.n_users, task.n_items)
        if user_labels(node) != {key: about[key] for key in ("users", "numbers")}:
            raise UnskewError(
                f"{place} is the data of other users than those whose state is in {folder}; "
                "give the node its own data, or a new state folder."
            )
        device = Device(folder, task, node, Seeds(*about["seeds"]))
        chosen = best and (folder / "best.safetensors").exists()
        device._load("best" if chosen else "state")
        return device

    def step1(
        self,
        round: int,
        download: Any,
        transform: Transform | None = None,
        least_users: int = 0,
    ) -> Named:
        """Do Step 1 (training before the upload); returns the arrays to send to the server. Items
        that fewer than ``least_users`` users of the federation have take no part in it."""
        digest = download_digest(download)
        if round <= self.progress.round:
            return self._stored_reply(round, digest)
        self.step2()
        common = common_items(self.data, least_users)
        chosen = np.flatnonzero(np.isin(self.data.users, self.task.cohort_of(round)))
        if common is not None:
            train = filter_entries(self.data.split.train, common[self.data.split.train.items])
            chosen = chosen[train.counts()[chosen] > 0]
        self.devices.remember(round - 1, download)
        sums = self.method.aggregation == "sum"
        total, each = None, list[tuple[Int64, Upload]]()
        sent = np.zeros(len(self.data.users), np.bool_)
        for local in batches(chosen):
            cohort = self._cohort(local, round, common)
            private = self.devices.take(local)
            private, upload, _ = train_upload(self.method, download, private, cohort, transform)
            if common is not None:  # they may be negatives of others
                rows = filter_entries(upload.rows, common[upload.rows.items])
                upload = upload._replace(rows=rows)
            if sums:
                total = add_uploads(total, upload, self.task.n_items)
            else:
                each.append((cohort.users, upload))
            sent[local] = upload.weight > 0
            self.devices.put(local, private, round - 1)
        self.devices.forget()
        if not len(chosen):  # no user of this node trains in this round
            shape = upload_shape(self.method, download, self.task.n_items, round)
            total, each = empty_sum(*shape), [(chosen, zero_uploads(shape))]
        if sums and total is not None:
            reply = sum_message(total.result())
        else:
            reply = each_message(*concatenate_uploads(each))
        self._check_finite(f"the download of round {round}")
        # In this order: after a crash in between, an upload is made again, never sent uncounted.
        record_uploads(self.folder, transform, sent)
        named = {f"upload.{name}": array for name, array in reply.items()}
        named |= {"round": np.array([round]), "digest": digest, "device": self._mark()}
        write_tensors(
            self.folder / "reply.safetensors", named_tensors(named), f"{FORMAT}-reply", VERSION
        )
        trained = self.progress.rounds_trained + (len(chosen) > 0)
        self.progress = Progress(round, trained, chosen)
        self._save()
        return reply

    def step2(self) -> bool:
        """Do Step 2 (training after the upload) if it is pending; returns whether it was."""
        round, _, due = self.progress
        if not len(due):
            return False
        for local in batches(due):
            download = self.devices.downloads[int(self.devices.version[local[0]])]
            cohort = self._cohort(local, round)
            before = self.devices.take(local)
            private = self.method.personalize(download, before, cohort)
            if not _is_finite(private):
                log.warning("Round %d: Step 2 gave NaN; the state before it is kept", round)
                private = before
            self.devices.put(local, private, round - 1)
        self.progress = self.progress._replace(due=np.zeros(0, np.int64))
        self._save()
        return True

    def deliver(self, round: int, download: Any) -> None:
        """Compute all users' states from the download after ``round``, for methods without
        parameters per user. A download older than the present one is ignored."""
        if self.devices.version.max() >= round:
            return
        self.step2()
        self.devices.remember(round, download)
        for local in batches(np.arange(len(self.data.users))):
            history = select(self.data.split.train, local)
            private = self.method.refresh(download, self.devices.take(local), history)
            self.devices.put(local, private, round)
        self.devices.forget()
        self._check_finite(f"the download after round {round}")
        self._save()

    def keep_as_best(self, best: int) -> bool:
        """Write the state to ``best.safetensors`` if it is that after round ``best``, the best so
        far. Returns whether it was written."""
        if self.method.stateless:
            current = best > 0 and (self.devices.version == best).all()
        else:  # states change only when the node trains
            current = self.progress.rounds_trained > 0 and self.progress.round <= best
        if not current:
            return False
        self.step2()
        first = not (self.folder / "best.safetensors").exists()
        self._save("best")
        if first:
            self._save()  # the state says that there is a best one
        return True

    def metric_sums(self, part: Any) -> dict[str, tuple[float, int]]:
        """For each metric, its sum over the node's users and the number of users in the sum."""
        board, recommender = Scoreboard(self.data.split), self.recommender()
        for local in batches(np.arange(len(self.data.users))):
            board.update(local, *recommender.held_out_scores(local))
        values = board.per_user(part).items()
        present = {name: value[~np.isnan(value)] for name, value in values}
        return {name: (float(value.sum()), len(value)) for name, value in present.items()}

    def recommender(self) -> Recommender:
        """The users' model, for scores and recommendations, after any pending Step 2."""
        self.step2()
        return Recommender(self.method, self.data.split, self.devices, self.seeds.training)

    def _check_finite(self, cause: str) -> None:
        """Raise an error, before anything is saved, if the state has NaN or infinity."""
        if not all(_is_finite(part) for tensor in self.devices.tensors() for part in tensor.parts):
            raise UnskewError(f"Training on {cause} gave NaN; the node keeps its state.")

    def _cohort(self, local: Int64, round: int, common: Bool | None = None) -> Cohort:
        """The users at the positions ``local``, without items that are not ``common``."""
        split = self.data.split
        lists = select(split.train, local), select(split.excluded, local)
        cohort = Cohort(self.data.users[local], *lists, split.n_items, self.seeds.training, round)
        ages = split.train_ages if self.method.uses_ages else None
        if ages is not None:
            cohort = cohort._replace(ages=ages[positions(split.train.indptr, local)])
        if common is None:
            return cohort
        kept = common[cohort.positives.items]
        ages = None if cohort.ages is None else cohort.ages[kept]
        return cohort._replace(positives=filter_entries(cohort.positives, kept), ages=ages)

    def _stored_reply(self, round: int, digest: Int64) -> Named:
        path = self.folder / "reply.safetensors"
        stored = self._read("reply") if path.exists() else {}
        same = stored and stored["round"][0] == round and np.array_equal(stored["digest"], digest)
        if not same:
            raise UnskewError(
                f"This node has trained in round {self.progress.round} and answers round {round} "
                "no second time; give the server its last state, or the nodes new state folders."
            )
        names = [name for name in stored if name.startswith("upload.")]
        return {name.removeprefix("upload."): stored[name] for name in names}

    def _save(self, name: str = "state") -> None:
        at = {
            "round": np.array([self.progress.round]),
            "rounds_trained": np.array([self.progress.rounds_trained]),
            "due": self.progress.due.astype(np.int64),
            "device": self._mark(),
            "beside": np.array([(self.folder / name).exists() for name in _TRAINED], np.int64),
        }
        tensors = [*self.devices.tensors(), *named_tensors(at)]
        self._write(name, tensors)

    def _initialise(self) -> None:
        """Create and save the state that the node's users have before the first round."""
        n_users = int(self.data.users.max()) + 1
        server, private = self.method.init(n_users, self.task.n_items, self.task.seed)
        download = self.method.download(server)
        self.devices = Devices(Devices(private, download).take(self.data.users), download)
        self._save()

    def _load(self, name: str) -> None:
        saved = self._read(name)
        for other, there in zip(_TRAINED, saved["beside"], strict=True):
            if there and not (self.folder / other).exists():
                raise UnskewError(
                    f"{self.folder / other} is missing; restore it, or give the node a new state "
                    "folder."
                )
        server, private = self.method.init(1, self.task.n_items, self.task.seed)
        self.devices = Devices.from_arrays(saved, private, self.method.download(server))
        at = int(saved["round"][0]), int(saved["rounds_trained"][0])
        self.progress = Progress(*at, saved["due"])

    def _write(self, name: str, tensors: list[Tensor]) -> None:
        path = self.folder / f"{name}.safetensors"
        write_tensors(path, tensors, f"{FORMAT}-{name}", VERSION)

    def _read(self, name: str) -> Named:
        """Read a file of tensors; an error if it is of another device."""
        path = self.folder / f"{name}.safetensors"
        saved = read_tensors(path, f"{FORMAT}-{name}", VERSION)
        if not np.array_equal(saved["device"], self._mark()):
            raise UnskewError(
                f"{path} is of another device; restore this device's own, or give the node a new "
                "state folder."
            )
        return saved

    def _mark(self) -> Int64:
        """The mark of this device's files, which does not tell its seeds."""
        digest = hashlib.sha256(repr(tuple(self.seeds)).encode()).digest()
        return np.frombuffer(digest[:8], np.int64)


def _is_finite(value: Any) -> bool:
    """Whether an array, or all arrays in a tuple of them, are free of NaN and infinity."""
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())


if __name__ == "__main__":
    for method in sys.argv[2:]:
        admit_method(method)
    with lock_folder(Path(sys.argv[1])):
        Device.open(Path(sys.argv[1])).step2()
