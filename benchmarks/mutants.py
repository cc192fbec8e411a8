"""Mutation testing: plant small mistakes in the source and see whether the tests notice.

For each room, lines are drawn with a fixed seed, and one mistake is planted on each line with
mutmut's operators (a comparison, a number, an argument, a sign) or by dropping a statement. The
tests of that room then run on a copy of the repository. A mistake that no test notices is a
survivor: a missing test, or a change that makes no difference.

    python -m benchmarks.mutants --room engine --lines 20
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

TOP = Path(__file__).parents[1]
ROOMS: dict[str, tuple[list[str], list[str]]] = {
    "deploy": (
        [f"src/unskew/deploy/{name}.py" for name in ("_wire", "_replies", "_robust")],
        ["tests/deploy/test_deploy_uploads.py", "tests/deploy/test_deploy_trust.py"],
    ),
    "engine": (
        ["src/unskew/engine", "src/unskew/files.py"],
        ["tests/test_files.py", "tests/engine"],
    ),
    "evaluation": (["src/unskew/evaluation"], ["tests/evaluation"]),
    "privacy": (["src/unskew/privacy"], ["tests/privacy"]),
    "methods": (
        ["src/unskew/methods/_training.py", "src/unskew/methods/fedrefit.py"],
        ["tests/methods/test_fedrefit.py", "tests/methods/test_training.py"],
    ),
}
"""Source files or folders of each room, and the tests that must notice a mistake in them."""
COPIED = ("src", "tests", "benchmarks", "pyproject.toml")
"""Parts of the repository that the tests of the rooms need."""


class Mutant(NamedTuple):
    path: str
    line: int
    source: str


class Outcome(NamedTuple):
    room: str
    path: str
    line: int
    outcome: str
    seconds: float
    diff: str


def main() -> int:
    options = _parse()
    ends = time.monotonic() + 60 * options.minutes
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        tree = _copy(Path(scratch) / "tree")
        for room in options.room or ROOMS:
            for outcome in _try_room(tree, room, options, ends):
                outcomes.append(outcome)
                _write(options.out, outcomes)
    for room in dict.fromkeys(outcome.room for outcome in outcomes):
        tried = [outcome for outcome in outcomes if outcome.room == room]
        killed = sum(outcome.outcome != "survived" for outcome in tried)
        print(f"{room:12s} {killed} of {len(tried)} killed ({killed / len(tried):.0%})")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--room", action="append", choices=ROOMS, help="default: all; repeatable")
    parser.add_argument("--lines", type=int, default=20, help="mutants per room (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="which lines are drawn (default 0)")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after (default 60)")
    parser.add_argument("--out", type=Path, default=TOP / "runs" / "mutants.json")
    return parser.parse_args()


def _try_room(tree: Path, room: str, options: argparse.Namespace, ends: float) -> Iterator[Outcome]:
    sources, tests = ROOMS[room]
    began = time.monotonic()
    if not _passes(tree, tests, 3600.0):
        print((tree.parent / "pytest.log").read_text()[-3000:], file=sys.stderr)
        sys.exit(f"The tests of {room} fail before any mistake is planted: {' '.join(tests)}")
    limit = 60.0 + 3 * (time.monotonic() - began)
    for mutant in draw_mutants(sources, options.lines, options.seed):
        if time.monotonic() > ends:
            print(f"{room}: stopped, --minutes {options.minutes:g} are over")
            return
        yield _try(tree, room, mutant, tests, limit)


def draw_mutants(sources: list[str], n_lines: int, seed: int) -> list[Mutant]:
    """One random mutant on each of ``n_lines`` random lines."""
    by_line: dict[tuple[str, int], list[_Change]] = {}
    for path in (path for name in sources for path in _files(TOP / name)):
        for line, change in _changes(path.read_text()):
            by_line.setdefault((str(path.relative_to(TOP)), line), []).append(change)
    draw = random.Random(seed)
    lines = draw.sample(sorted(by_line), min(n_lines, len(by_line)))
    return [Mutant(*line, draw.choice(by_line[line]).code()) for line in lines]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


class _Change(NamedTuple):
    """One node of a module and what to put in its place."""

    module: cst.Module
    node: cst.CSTNode
    changed: Any

    def code(self) -> str:
        changed: cst.Module = self.module.deep_replace(self.node, self.changed)
        return changed.code


def _changes(source: str) -> Iterator[tuple[int, _Change]]:
    """Every mistake that can be planted in a source file, with its line."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    positions = wrapper.resolve(PositionProvider)
    finder = _Finder()
    wrapper.module.visit(finder)
    for node in finder.nodes:
        for changed in _replacements(node):
            yield positions[node].start.line, _Change(wrapper.module, node, changed)


class _Finder(cst.CSTVisitor):
    """All nodes but those in annotations, decorators, imports and module-level lists of names."""

    def __init__(self) -> None:
        self.nodes: list[cst.CSTNode] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom):
            return False
        if isinstance(node, cst.Assign) and "__all__" in cst.Module([]).code_for_node(node):
            return False
        self.nodes.append(node)
        return True


def _replacements(node: cst.CSTNode) -> Iterable[Any]:
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
        yield cst.Pass()
    if isinstance(node, cst.SimpleString) and " " in node.value:
        return  # prose
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            yield from operator(node)


def _try(tree: Path, room: str, mutant: Mutant, tests: list[str], limit: float) -> Outcome:
    path, began = tree / mutant.path, time.monotonic()
    original = path.read_text()
    path.write_text(mutant.source)
    try:
        outcome = "survived" if _passes(tree, tests, limit) else "killed"
    except subprocess.TimeoutExpired:
        outcome = "timeout"
    finally:
        path.write_text(original)
    lines = (text.splitlines() for text in (original, mutant.source))
    diff = "\n".join([*difflib.unified_diff(*lines, n=0, lineterm="")][3:])
    print(f"{room}: {outcome:8s} {mutant.path}:{mutant.line}", flush=True)
    if outcome == "survived":
        print(diff, flush=True)
    return Outcome(room, mutant.path, mutant.line, outcome, time.monotonic() - began, diff)


def _passes(tree: Path, tests: list[str], limit: float) -> bool:
    """Whether the tests pass; they and all they started are ended after ``limit`` seconds."""
    words = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    # The cache is named by the kernels' sources (unskew.jit): a mutant never meets stale code.
    environment["NUMBA_CACHE_DIR"] = str(tree.parent / "numba")
    with (tree.parent / "pytest.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=tree,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        return process.wait(limit) == 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _copy(tree: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        if (TOP / name).is_dir():
            shutil.copytree(TOP / name, tree / name, ignore=ignored)
        else:
            shutil.copy(TOP / name, tree / name)
    return tree


def _write(path: Path, outcomes: list[Outcome]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    value = {"format": "unskew-mutants", "version": 1, "mutants": [o._asdict() for o in outcomes]}
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
