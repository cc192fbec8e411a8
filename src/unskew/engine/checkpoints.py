"""A run's state on disk, saved after rounds so that a valid checkpoint exists at every moment.

What a round has changed is written to new files, which never change: blocks of devices' private
states, the round's download, the ranks of the users that were evaluated, and the server's state.
``current.json`` lists the files of the last round and of the best one, with their sizes and
checksums. It is replaced after these files are complete, and the one before is kept as
``previous.json`` with its files. So a process killed at any moment leaves a whole checkpoint, and
if a file of the newest one is damaged, a run continues from the previous one.

Writing may take up to a tenth of the run's time. If saving every round would take longer, some
rounds are not saved; resuming trains these again, with bit-identical results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.engine.blocks import VERSION, StateFile, StateFolder
from unskew.engine.devices import Devices, SavedDevices
from unskew.engine.federation import Federation, State
from unskew.engine.group import Group
from unskew.engine.scoreboard import Scoreboard
from unskew.files import (
    changed,
    checksum,
    named_tensors,
    read_json,
    write_bytes,
    write_json,
)
from unskew.types import UnskewError

FORMAT = "unskew-state"
"""Format name of ``current.json``."""
MAX_WRITING_SHARE = 0.1
"""Maximum share of the run's time that writing may take; beyond it, rounds are not saved."""


def model_checksum(state: State) -> str:
    """SHA-256 of the model after the last round: the server's state and every device's."""
    return checksum([*named_tensors(state.server._asdict()), *state.devices.tensors()])


class Checkpoints:
    """Saves and loads the ``state`` folder, which holds the checkpoints of one seed of a run."""

    def __init__(self, folder: Path, run: str = "") -> None:
        """``run`` identifies the run, so that its state is not taken for that of another."""
        self.folder = StateFolder(folder)
        self.damage = ""
        """What ``load`` found damaged, as a sentence; empty if nothing was."""
        self._run = run
        self._current, self._previous = folder / "current.json", folder / "previous.json"
        self._writing = 0.0
        self._began = time.monotonic()

    def after_round(
        self, state: State, final: bool, gather: Callable[[State], object] | None = None
    ) -> None:
        """Save the state, unless saving has taken over a tenth of the time. Always save the last
        one. ``gather`` is called with a state that is about to be saved."""
        began = time.monotonic()
        if final or self._writing <= MAX_WRITING_SHARE * (began - self._began):
            if gather is not None:
                gather(state)
            self.save(state)
            self._writing += time.monotonic() - began

    def save(self, state: State) -> None:
        """Write what has changed since the last checkpoint, and delete what is not needed."""
        board, best_board = state.scoreboard, state.best_scoreboard
        last = SavedPart(*state.devices.save(self.folder), board.save(self.folder))
        if state.best_round == state.round:
            best_board.saved_like(board)
        best = SavedPart(*state.best_devices.save(self.folder), best_board.save(self.folder))
        rest = {f"server.{name}": array for name, array in state.server._asdict().items()}
        rest["outdated.last"] = np.packbits(board.outdated)
        rest["outdated.best"] = np.packbits(best_board.outdated)
        server = self.folder.write("server", named_tensors(rest))
        files = {file.name: file for file in (server, *last.files(), *best.files())}
        before: dict[str, Any] = {}
        if self._current.exists():
            before = self._read_manifest(self._current)["files"]
            write_bytes(self._previous, self._current.read_bytes())
        manifest = {
            "format": FORMAT,
            "version": VERSION,
            "run": self._run,
            "last": state.round,
            "best": state.best_round,
            "last_files": last.names(),
            "best_files": best.names(),
            "server": server.name,
            "files": {name: [file.size, file.sha256] for name, file in sorted(files.items())},
            "rows": state.rows,
        }
        write_json(self._current, manifest, compact=True)
        self.folder.remove_all_but({*files, *before})

    def load(self, federation: Federation) -> State | None:
        """Load the newest whole state; None if nothing was saved yet. If the newest state is
        damaged, the one before becomes the newest, and ``damage`` says what was damaged."""
        if not self.any_saved:
            return None
        try:
            return self._load(federation, self._current)
        except UnskewError as error:
            damage = error
        try:
            state = self._load(federation, self._previous)
        except UnskewError:
            raise UnskewError(
                f"{damage} There is no older whole checkpoint: to train this seed again, delete "
                f"the folder {self.folder.path} and go on with `unskew resume`."
            ) from None
        write_bytes(self._current, self._previous.read_bytes())
        self.damage = f"The run went on from round {state.round}: {damage}"
        return state

    def load_best(self, federation: Federation) -> Devices | None:
        """Load the devices of the best round of the newest state; None if nothing was saved."""
        if not self.any_saved:
            return None
        with self._method_of_old_version(federation):
            manifest = self._read_manifest(self._current)
            previous: dict[str, Any] = {"last": 0}
            with suppress(UnskewError):
                previous = self._read_manifest(self._previous)
            if previous["last"] > manifest["last"]:  # the files were exchanged
                raise changed(self._current)
            return self._read_part(manifest, "best").devices(federation)

    @property
    def any_saved(self) -> bool:
        """Whether there is a checkpoint, whole or not."""
        return self._current.exists() or self._previous.exists()

    def _load(self, federation: Federation, path: Path) -> State:
        with self._method_of_old_version(federation):
            manifest = self._read_manifest(path)
            rest = self._file(manifest, manifest["server"]).read()
            last, best = (self._read_part(manifest, name) for name in ("last", "best"))
            devices = last.devices(federation)
            best_devices = best.devices(federation, like=devices)
            board = last.scoreboard(federation, rest["outdated.last"])
            best_board = best.scoreboard(federation, rest["outdated.best"])
            kind = type(federation.method.init(1, federation.split.n_items, federation.seed)[0])
            server = kind(*(rest[f"server.{name}"] for name in kind._fields))
        numbers = manifest["last"], manifest["best"]
        return State(
            numbers[0],
            server,
            devices,
            board,
            numbers[1],
            best_devices,
            best_board,
            manifest["rows"],
        )

    def _read_manifest(self, path: Path) -> dict[str, Any]:
        manifest = read_json(path, FORMAT, VERSION, sealed=True)
        if manifest["run"] != self._run:
            raise UnskewError(f"{path} is the state of another run; restore it or run again.")
        return manifest

    def _file(self, manifest: dict[str, Any], name: str) -> StateFile:
        return StateFile(self.folder.path, name, *manifest["files"][name])

    def _read_part(self, manifest: dict[str, Any], part: str) -> SavedPart:
        names = manifest[f"{part}_files"]
        return SavedPart(
            [self._file(manifest, name) for name in names["blocks"]],
            {int(v): self._file(manifest, name) for v, name in names["downloads"].items()},
            [self._file(manifest, name) for name in names["scoreboard"]],
        )

    @contextmanager
    def _method_of_old_version(self, federation: Federation) -> Iterator[None]:
        """Turn a missing array into an error that says why it is missing."""
        try:
            yield
        except KeyError as error:
            raise UnskewError(
                f"{self.folder.path} was saved by an older version of unskew, before "
                f"{federation.method.name} had {error}; train again with `unskew run`, or resume "
                "with the version that wrote it."
            ) from None


class SavedPart(NamedTuple):
    """The files of the devices and the scoreboard of a round, the last or the best."""

    blocks: list[StateFile]
    downloads: dict[int, StateFile]
    boards: list[StateFile]

    def files(self) -> list[StateFile]:
        return [*self.blocks, *self.downloads.values(), *self.boards]

    def names(self) -> dict[str, Any]:
        return {
            "blocks": [file.name for file in self.blocks],
            "downloads": {version: file.name for version, file in sorted(self.downloads.items())},
            "scoreboard": [file.name for file in self.boards],
        }

    def devices(self, group: Group, like: Devices | None = None) -> Devices:
        """Read the devices; files that ``like`` has, too, are shared with it."""
        method, split = group.method, group.split
        server, private = method.init(1, split.n_items, group.seed)
        download = method.retained_download(method.download(server))
        saved = SavedDevices(self.blocks, self.downloads)
        return Devices.load(saved, split.n_users, private, download, like)

    def scoreboard(self, federation: Federation, outdated: NDArray[np.uint8]) -> Scoreboard:
        board = Scoreboard(federation.split)
        board.read(self.boards)
        board.outdated = np.unpackbits(outdated, count=federation.split.n_users).astype(bool)
        return board
