"""Which room may import which (docs/architecture.md), read from the source, not from running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import unskew

SOURCE = Path(unskew.__file__).parent
EVERY_ROOM = frozenset(
    [
        "data",
        "kernels",
        "methods",
        "privacy",
        "evaluation",
        "engine",
        "torch",
        "testing",
        "display",
        "runs",
        "audit",
        "paper",
        "deploy",
        "report",
        "export",
        "cli",
    ]
)
BASE = frozenset({"types", "rng", "jit", "files", "ragged", "numbering", "settings", "text"})
ALLOWED: dict[str, frozenset[str]] = {
    "types": frozenset(),
    "rng": frozenset(),
    "jit": frozenset(),
    "files": frozenset({"types"}),
    "text": frozenset(),
    "ragged": frozenset({"types", "jit"}),
    "numbering": frozenset({"types", "rng", "jit"}),
    "settings": frozenset({"types"}),
    "data": BASE,
    "evaluation": BASE,
    "kernels": BASE,
    "privacy": BASE | {"kernels"},
    "methods": BASE | {"kernels"},
    "engine": BASE | {"data", "privacy", "evaluation", "kernels"},
    "torch": BASE | {"kernels", "methods"},
    "testing": BASE | {"data", "methods", "evaluation", "kernels", "engine"},
    "display": frozenset(),
    "runs": BASE | {"data", "methods", "privacy", "evaluation", "kernels", "engine", "display"},
    "audit": BASE
    | {"data", "methods", "privacy", "evaluation", "kernels", "engine", "runs", "display"},
    "paper": BASE | EVERY_ROOM - {"cli", "export"},
    "deploy": BASE | {"data", "methods", "privacy", "kernels", "evaluation", "engine"},
    "report": frozenset({"types", "files", "runs", "display"}),
    "export": BASE
    | {
        "data",
        "methods",
        "evaluation",
        "kernels",
        "engine",
        "runs",
        "display",
        "report",
    },
    "cli": BASE | EVERY_ROOM,
}
"""A room may also import itself. What stands beside the rooms, like ``__init__`` and ``_api``, is a
door: it may import all rooms, and only the command may come in through it."""
UNSAFE = frozenset(["pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"])
"""Modules that run code from the files they read."""


def room_of(path: Path) -> str:
    """The folder or file right under the package."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imported_names(tree: ast.AST, package: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Every module an import may load, wherever in the file it stands, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parent = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*parent, *([node.module] if node.module else [])])
            yield node.lineno, base
            for alias in node.names:
                if base == "unskew" or (base.startswith("unskew.") and alias.name.startswith("_")):
                    yield node.lineno, f"{base}.{alias.name}"


def violations(source: str, room: str, package: tuple[str, ...]) -> list[str]:
    """What a file of this room may not do, line by line."""
    tree = ast.parse(source)
    found = []
    for line, name in imported_names(tree, package):
        top, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if top in UNSAFE:
            found.append(f"line {line}: imports {top}, which runs code from what it reads")
        if top == "torch" and room != "torch":
            found.append(f"line {line}: imports torch, which is an extra")
        is_room = top == "unskew" and target in ALLOWED
        if is_room and room in ALLOWED and target not in ALLOWED[room] | {room}:
            found.append(f"line {line}: {room} may not import {target}")
        private = any(part.startswith("_") for part in rest.split(".")[1:])
        if is_room and private and target != room and room in ALLOWED:
            found.append(f"line {line}: {room} reaches behind {target} into {name}")
        is_door = top == "unskew" and bool(target) and target not in ALLOWED
        if is_door and room in ALLOWED and room != "cli":
            found.append(f"line {line}: {room} goes through {name}, not to a room")
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        if called == "print" and room != "cli":
            found.append(f"line {node.lineno}: {room} prints; only cli does")
        if any(
            keyword.arg == "allow_pickle" and getattr(keyword.value, "value", True) is not False
            for keyword in node.keywords
        ):
            found.append(f"line {node.lineno}: allow_pickle runs code from what it reads")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_file_keeps_to_its_room(path: Path) -> None:
    package = ("unskew", *path.relative_to(SOURCE).parent.parts)
    assert violations(path.read_text(), room_of(path), package) == []


def test_every_folder_is_a_room() -> None:
    folders = {path.name for path in SOURCE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert folders <= EVERY_ROOM, "a new room needs a line in ALLOWED and in docs/architecture.md"


def test_there_is_something_to_look_at() -> None:
    seen = {room_of(path) for path in modules()}
    assert {"types", "rng", "data", "kernels", "methods", "engine", "evaluation"} <= seen


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("kernels", "from unskew.methods import METHODS"),
        ("kernels", "import unskew.engine"),
        ("data", "from unskew import evaluation"),
        ("data", "from unskew import prepare"),
        ("data", "from unskew.kernels import gather"),
        ("methods", "from unskew.kernels._tables import gather"),
        ("engine", "from unskew.kernels import _tables"),
        ("runs", "from unskew.engine.federation import _batches"),
        ("cli", "from unskew.runs.runner import _train"),
        ("engine", "def f():\n    from unskew.methods.fedmf import FedMF"),
        ("engine", "from ..methods import METHODS"),
        ("engine", "from .. import methods"),
        ("deploy", "from unskew.runs import run"),
        ("report", "from unskew import rng"),
        ("paper", "if TYPE_CHECKING:\n    from unskew.cli import main"),
        ("report", "from unskew.paper import EXHIBITS"),
        ("types", "from unskew.rng import stream"),
        ("cli", "import pickle"),
        ("cli", "from torch import nn"),
        ("engine", "print('round')"),
        ("data", "np.load(path, allow_pickle=True)"),
        ("data", "np.load(path, allow_pickle=flag)"),
    ],
)
def test_the_check_catches(room: str, source: str) -> None:
    assert len(violations(source, room, ("unskew", room))) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        (
            "methods",
            "from unskew.kernels import gather\nfrom unskew.methods.training import fedavg",
        ),
        (
            "methods",
            "from . import fedmf\nfrom .fedmf import FedMF\nfrom unskew.methods import fedmf",
        ),
        ("engine", "from unskew.data import load\nfrom unskew import rng, kernels\nimport numpy"),
        ("cli", "from unskew.report import write\nfrom unskew import fit\nprint(1)"),
        ("__init__", "from unskew.runs import Run\nfrom unskew._api import fit"),
        ("data", "console.print(1)\nnp.load(path, allow_pickle=False)\nimport pickletools"),
    ],
)
def test_the_check_lets_pass(room: str, source: str) -> None:
    assert violations(source, room, ("unskew", room)) == []
