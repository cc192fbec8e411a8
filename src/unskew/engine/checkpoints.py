"""A run's state on disk, saved after rounds so that a valid checkpoint exists at every moment.

``state/round-000042/`` holds the devices' state and every user's evaluation ranks; the folder of
the last round also holds the server's state, for resuming. ``state/current.json`` names the last
round and the best one. It is replaced only after the folders it names are complete, so a process
killed at any moment leaves the previous ``current.json`` and everything it names.

Writing may take up to a tenth of the run's time. If saving every round would take longer, some
rounds are not saved; resuming trains these again, with bit-identical results.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unskew.engine.devices import Devices
from unskew.engine.federation import Federation, State
from unskew.engine.scoreboard import Scoreboard
from unskew.files import (
    checksum,
    named_tensors,
    read_json,
    read_tensors,
    sync_folder,
    write_json,
    write_tensors,
)
from unskew.types import Split, UnskewError

FORMAT, VERSION = "unskew-state", 1
"""Format name in ``current.json``, and format version of all checkpoint files."""
MAX_WRITING_SHARE = 0.1
"""Maximum share of the run's time that writing may take; beyond it, rounds are not saved."""


def model_checksum(state: State) -> str:
    """SHA-256 of the model after the last round: the server's state and every device's."""
    return checksum([*named_tensors(state.server._asdict()), *state.devices.tensors()])


class Checkpoints:
    """Saves and loads the ``state`` folder, which holds the checkpoints of one seed of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writing = 0.0
        self._began = time.monotonic()

    def after_round(self, state: State, final: bool) -> None:
        """Save the state, unless saving has taken over a tenth of the time. Always save the last
        one."""
        began = time.monotonic()
        if final or self._writing <= MAX_WRITING_SHARE * (began - self._began):
            self.save(state)
            self._writing += time.monotonic() - began

    def save(self, state: State) -> None:
        self._write_round(state.round, state.devices, state.scoreboard, state.server)
        self._write_round(state.best_round, state.best_devices, state.best_scoreboard)
        write_json(
            self._folder / "current.json",
            {
                "format": FORMAT,
                "version": VERSION,
                "last": state.round,
                "best": state.best_round,
                "rows": state.rows,
            },
        )
        keep = {_name(state.round), _name(state.best_round)}
        for folder in self._folder.glob("round-*"):
            if folder.name not in keep:
                shutil.rmtree(folder)

    def load(self, federation: Federation) -> State | None:
        """Load the newest complete state; None if nothing was saved yet."""
        if not (self._folder / "current.json").exists():
            return None
        try:
            return self._load(federation)
        except KeyError as error:
            raise UnskewError(
                f"{self._folder} was saved by an older version of unskew, before "
                f"{federation.method.name} had {error}; train again with `unskew run`, or resume "
                "with the version that wrote it."
            ) from None

    def _load(self, federation: Federation) -> State:
        current = read_json(self._folder / "current.json", FORMAT, VERSION)
        last, best = current["last"], current["best"]
        split, method = federation.split, federation.method
        server, private = method.init(split.n_users, split.n_items, federation.seed)
        kinds = (private, method.download(server))
        devices, board = self._read_devices(last, split, *kinds)
        if best == last:
            best_state = (devices.snapshot(), board.snapshot())
        else:
            best_state = self._read_devices(best, split, *kinds)
        saved = self._read(self._folder / _name(last), "server")
        server = type(server)(*(saved[name] for name in server._fields))
        return State(last, server, devices, board, best, *best_state, current["rows"])

    def _read_devices(
        self, round: int, split: Split, private: Any, download: Any
    ) -> tuple[Devices, Scoreboard]:
        folder = self._folder / _name(round)
        devices = Devices.from_arrays(self._read(folder, "devices"), private, download)
        board = Scoreboard(split)
        board.load(self._read(folder, "scoreboard"))
        return devices, board

    def _read(self, folder: Path, part: str) -> dict[str, NDArray[Any]]:
        return read_tensors(folder / f"{part}.safetensors", f"unskew-{part}", VERSION)

    def _write_round(
        self, round: int, devices: Devices, board: Scoreboard, server: Any = None
    ) -> None:
        folder = self._folder / _name(round)
        if folder.exists():
            return
        unfinished = self._folder / f"unfinished-{_name(round)}"
        shutil.rmtree(unfinished, ignore_errors=True)
        parts = {
            "devices": devices.tensors(),
            "scoreboard": named_tensors(board.arrays()),
        }
        if server is not None:
            parts["server"] = named_tensors(server._asdict())
        for part, tensors in parts.items():
            write_tensors(unfinished / f"{part}.safetensors", tensors, f"unskew-{part}", VERSION)
        unfinished.rename(folder)
        sync_folder(self._folder)


def _name(round: int) -> str:
    return f"round-{round:06d}"
