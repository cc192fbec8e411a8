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
SOURCES: dict[str, list[str]] = {
    "deploy": ["src/unskew/deploy/messages.py", "src/unskew/deploy/robust.py"],
    "engine": ["src/unskew/engine", "src/unskew/files.py"],
    "evaluation": ["src/unskew/evaluation"],
    "privacy": ["src/unskew/privacy"],
    "methods": ["src/unskew/methods/training.py", "src/unskew/methods/fedrefit.py"],
}
"""Files or folders of each room to plant mistakes in."""
PRIVACY_TESTS = ("figures", "accounting", "clipping", "noise")
TESTS: dict[str, list[str]] = {
    "deploy": [f"tests/deploy/test_deploy_{name}.py" for name in ("uploads", "robust", "trust")],
    "engine": ["tests/test_files.py", "tests/engine", "tests/runs/test_newcomers.py"],
    "evaluation": ["tests/evaluation"],
    "privacy": [f"tests/privacy/test_privacy_{name}.py" for name in PRIVACY_TESTS],
    "methods": ["tests/methods/test_shared_training.py", "tests/methods/test_fedrefit.py"],
}
"""Tests of each room, which must notice them."""
COPIED = ("src", "tests", "benchmarks", "pyproject.toml")
"""Parts of the repository that the tests need."""


class Outcome(NamedTuple):
    room: str
    path: str
    line: int
    outcome: str
    diff: str


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.mutants", description=__doc__)
    parser.add_argument("--room", action="append", choices=SOURCES, help="default: all")
    parser.add_argument("--lines", type=int, default=20, help="mutants per room (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="which lines are drawn (default 0)")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after (default 60)")
    parser.add_argument("--out", type=Path, default=TOP / "runs" / "mutants.json")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    outcomes: list[Outcome] = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        tree = _copy(Path(scratch) / "tree")
        for room in options.room or SOURCES:
            for outcome in _try_room(tree, room, options.lines, options.seed, ends):
                outcomes.append(outcome)
                rows = [outcome._asdict() for outcome in outcomes]
                options.out.write_text(json.dumps(rows, indent=2) + "\n")
    for room in dict.fromkeys(outcome.room for outcome in outcomes):
        tried = [outcome for outcome in outcomes if outcome.room == room]
        killed = sum(outcome.outcome != "survived" for outcome in tried)
        print(f"{room:12s} {killed} of {len(tried)} killed ({killed / len(tried):.0%})")
    return 0


def _try_room(tree: Path, room: str, n_lines: int, seed: int, ends: float) -> Iterator[Outcome]:
    began = time.monotonic()
    if not _tests_pass(tree, room, limit=ends - began):
        print((tree.parent / "pytest.log").read_text()[-3000:], file=sys.stderr)
        sys.exit(f"The tests of {room} fail before any mistake is planted.")
    limit = 60.0 + 3 * (time.monotonic() - began)
    for path, line, mutant in draw_mutants(SOURCES[room], n_lines, seed):
        if time.monotonic() > ends:
            print(f"{room}: stopped, the --minutes are over")
            return
        original = (tree / path).read_text()
        (tree / path).write_text(mutant)
        try:
            outcome = "survived" if _tests_pass(tree, room, limit) else "killed"
        except subprocess.TimeoutExpired:
            outcome = "timeout"
        finally:
            (tree / path).write_text(original)
        both = original.splitlines(), mutant.splitlines()
        diff = "\n".join([*difflib.unified_diff(*both, n=0, lineterm="")][3:])
        print(f"{room}: {outcome:8s} {path}:{line}", flush=True)
        if outcome == "survived":
            print(diff, flush=True)
        yield Outcome(room, path, line, outcome, diff)


def draw_mutants(sources: list[str], n_lines: int, seed: int) -> Iterator[tuple[str, int, str]]:
    """Path, line and new source of one random mutant on each of ``n_lines`` random lines."""
    by_line: dict[tuple[str, int], list[_Change]] = {}
    for source in sources:
        path = TOP / source
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, change in _changes(file.read_text()):
                by_line.setdefault((str(file.relative_to(TOP)), line), []).append(change)
    draw = random.Random(seed)
    for place in draw.sample(sorted(by_line), min(n_lines, len(by_line))):
        module, node, changed = draw.choice(by_line[place])
        mutant: Any = module.deep_replace(node, changed)
        yield *place, mutant.code


class _Change(NamedTuple):
    """One node of a module and what to put in its place."""

    module: cst.Module
    node: cst.CSTNode
    changed: Any


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


def _tests_pass(tree: Path, room: str, limit: float) -> bool:
    """Run the tests of a room; they and all they started are ended after ``limit`` seconds."""
    words = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS[room]]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    # The cache is named by the kernels' sources (unskew.jit): a mutant never meets stale code.
    environment.setdefault("NUMBA_CACHE_DIR", str(tree.parent / "numba"))
    with (tree.parent / "pytest.log").open("w") as log:
        how: Any = {"cwd": tree, "env": environment, "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen([sys.executable, *words], start_new_session=True, **how)
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


if __name__ == "__main__":
    sys.exit(main())
