"""The server's state on disk: after every round, the model and a row of figures.

``federation.json`` says which federation it is, ``server.safetensors`` is the model after the last
complete round, ``rounds.jsonl`` has a row per round, ``outcome.json`` says how the run ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from unskew.deploy._task import Task
from unskew.files import (
    named_tensors,
    read_json,
    read_json_lines,
    read_tensors,
    write_json,
    write_json_lines,
    write_tensors,
)
from unskew.types import Int64, UnskewError

FORMAT, STATE, OUTCOME, VERSION = "unskew-federation", "unskew-server", "unskew-outcome", 1


class ServerFiles:
    """The ``state`` folder of a server."""

    def __init__(self, folder: Path, task: Task) -> None:
        self._folder = folder
        (folder / "outcome.json").unlink(missing_ok=True)
        if (folder / "federation.json").exists():
            known = Task(**read_json(folder / "federation.json", FORMAT, VERSION)["task"])
            if known.identity() != task.identity():
                raise UnskewError(
                    f"{folder} holds another federation ({known}); go on with the same method, "
                    "settings (but for rounds), seed and size, or give another state folder."
                )
        header = {"format": FORMAT, "version": VERSION, "task": task.to_json()}
        write_json(folder / "federation.json", header)

    def load(self, server: Any) -> tuple[int, Any, list[dict[str, Any]]]:
        """The last complete round, its model and the rows so far; ``server`` if there is none."""
        round, model = read_model(self._folder, server)
        return round, model, [row for row in read_rows(self._folder) if row["round"] <= round]

    def owners(self, n_users: int) -> Int64:
        """The node that speaks for each user, 0 for none; kept for methods that ask for users."""
        path = self._folder / "server.safetensors"
        saved = read_tensors(path, STATE, VERSION) if path.exists() else {}
        found = saved.get("owners", np.zeros(0, np.int64))
        return found if len(found) == n_users else np.zeros(n_users, np.int64)

    def save(self, round: int, server: Any, rows: list[dict[str, Any]], owners: Int64) -> None:
        # The rows first: a crash in between leaves a row too many, which loading drops.
        write_json_lines(self._folder / "rounds.jsonl", rows)
        named = dict(zip(server._fields, server, strict=True))
        named |= {"round": np.array([round]), "owners": owners}
        write_tensors(self._folder / "server.safetensors", named_tensors(named), STATE, VERSION)

    def end(self, round: int, reason: str) -> None:
        header = {"format": OUTCOME, "version": VERSION}
        write_json(self._folder / "outcome.json", header | {"round": round, "reason": reason})


def read_model(folder: Path, server: Any) -> tuple[int, Any]:
    """The saved round and model, in the type of ``server``, which stands in for a missing one."""
    path = folder / "server.safetensors"
    if not path.exists():
        return 0, server
    saved = read_tensors(path, STATE, VERSION)
    return int(saved["round"][0]), type(server)(*(saved[name] for name in server._fields))


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The figures of the rounds so far."""
    path = folder / "rounds.jsonl"
    return read_json_lines(path) if path.exists() else []


def best_round(rows: list[dict[str, Any]]) -> int:
    """The round with the best validation NDCG@10, the first of equals; 0 if none was evaluated."""
    found = {row["round"]: row.get("metrics", {}).get("validation.ndcg@10") for row in rows}
    known = {round: figure for round, figure in found.items() if figure is not None}
    return max(known, key=lambda round: known[round], default=0)
