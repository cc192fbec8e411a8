"""Damage to the files of a folder: flipped, cut, missing, foreign or exchanged, and edited JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES = (None, True, -1, 0, 1, 1.5, 2**70, float("nan"), "", "a", "../x", "\ud800", [], [1], {})
"""Values that stand in place of one in a JSON file."""


def damage_file(path: Path, foreign: Path, rng: random.Random) -> str:
    """Damage a file in one way; ``foreign`` is the same file of another folder, if it has one.
    Returns what was done."""
    done = rng.choice(DAMAGES)
    done(path, foreign, rng)
    return f"{done.__name__} {path.name}"


def files_of(folder: Path) -> list[Path]:
    """All files in a folder, as paths within it."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def flip(path: Path, foreign: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes()) or bytearray(b"x")
    for _ in range(rng.choice((1, 1, 1, 5, 50))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, foreign: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.choice((0, 1, 8, rng.randrange(len(content) + 1), -1))])


def append(path: Path, foreign: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content + rng.choice((b"\0", b"\n", b" ", b"{}", content[:100], b"\xff" * 99)))


def zero(path: Path, foreign: Path, rng: random.Random) -> None:
    """A hole, as a power cut can leave it."""
    content = path.read_bytes()
    at, n = rng.randrange(len(content) + 1), rng.choice((1, 16, 512))
    path.write_bytes(content[:at] + bytes(len(content[at : at + n])) + content[at + n :])


def delete(path: Path, foreign: Path, rng: random.Random) -> None:
    path.unlink()


def exchange(path: Path, foreign: Path, rng: random.Random) -> None:
    """With the same file of another folder, or one of the same kind of this or of that. With
    previous.json in place of current.json, a checkpoint is as a process killed while it saved would
    have left it: that is no damage."""
    alike = [foreign] * 3 if foreign.exists() else []
    alike += sorted(p for p in path.parent.iterdir() if p.suffix == path.suffix and p != path)
    if foreign.parent.exists():
        alike += sorted(foreign.parent.glob(f"{path.name[:6]}*"))
    alike = [one for one in alike if (path.name, one.name) != ("current.json", "previous.json")]
    if alike:
        chosen = rng.choice(alike)
        path.write_bytes(chosen.read_bytes() if chosen.is_file() else b"")


def to_folder(path: Path, foreign: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def edit(path: Path, foreign: Path, rng: random.Random) -> None:
    """Change, drop or rename an entry of a JSON file, whose text and checksum stay as they are."""
    if path.suffix != ".json":
        return flip(path, foreign, rng)
    value = json.loads(path.read_text())
    places: list[tuple[Any, Any]] = []

    def walk(one: Any) -> None:
        for key in one if isinstance(one, dict) else range(len(one)):
            places.append((one, key))
            if isinstance(one[key], dict | list):
                walk(one[key])

    walk(value)
    if not places:
        return
    holder, key = rng.choice(places)
    what = rng.random()
    if what < 0.5:
        holder[key] = rng.choice(VALUES)
    elif what < 0.8 or isinstance(holder, list):
        del holder[key]
    else:
        holder[str(key) + "x"] = holder.pop(key)
    path.write_text(json.dumps(value, indent=2))


DAMAGES: tuple[Callable[[Path, Path, random.Random], None], ...] = (
    *(flip, flip, cut, append, zero, delete, delete, exchange, exchange, exchange, edit, to_folder),
)
