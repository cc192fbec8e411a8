"""Compare the bits of every method's results between a base commit and this checkout.

    python -m benchmarks.same_bits COMMIT      or      make same-bits BASE=COMMIT

Both versions run here, one after the other, through the command line: every method on ``demo``
under ``paper`` and ``leak-free`` for a few rounds, a stopped and resumed run, a noisy run and one
trial of ``tune``. For each run the model's checksum, all metrics and the bytes of everything the
server received must be equal. Exit code 1 if anything differs.

With ``--write``, methods whose bits changed get a new checksum in ``checksums.json``, and their
committed result rows count as made by another version. Processors round some matrix products
differently, so a checksum is only ever compared with one computed on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROUNDS = 3
MORE_ROUNDS = {"fednext": 12}
"""Rounds of methods whose first ones say little about the others."""
PROTOCOLS = ("paper", "leak-free")
FIGURES = ("model_sha256", "metrics", "last_round", "best_rounds")
"""Parts of a run's JSON that must be equal; times and memory are not among them."""
RESUMED, NOISY, TUNED = "pfedclr", "fedmf", "fedrefit"
"""Methods of the resumed run, of the run with noise on its uploads, and of the tuning trial."""
_SELF = Path(__file__).resolve()
CHECKSUMS = _SELF.parents[1] / "src" / "unskew" / "paper" / "checksums.json"


class _Stop(KeyboardInterrupt):
    """Raised in the middle of a run, in place of Ctrl-C."""


class _Received:
    """Checksums of what each call of a method's ``aggregate`` was given; can stop a run."""

    def __init__(self) -> None:
        self.checksums: list[str] = []
        self.stop_at = 0

    def observe(self, method: Any) -> None:
        """Wrap the class's ``aggregate`` once; central methods have none and stay as they are."""
        aggregate = getattr(method, "aggregate", None)
        if aggregate is None or hasattr(aggregate, "observed"):
            return

        def observed(this: Any, server: Any, total: Any) -> Any:
            if len(self.checksums) + 1 == self.stop_at:
                raise _Stop
            self.checksums.append(_checksum(total))
            return aggregate(this, server, total)

        observed.observed = True  # type: ignore[attr-defined]  # a subclass inherits it
        method.aggregate = observed


def measure() -> dict[str, Any]:
    """Run everything with the ``unskew`` on the import path; one entry per run."""
    from unskew.methods import METHODS

    received = _Received()
    for method in METHODS.values():
        received.observe(method)
    entries: dict[str, Any] = {}

    def run(name: str, *arguments: str, stop_at: int = 0) -> None:
        received.checksums, received.stop_at = [], stop_at
        printed = _call(*arguments)
        if stop_at:
            return
        result = json.loads(printed)
        entries[name] = {key: result[key] for key in FIGURES if key in result}
        entries[name]["trials"] = [trial["value"] for trial in result.get("trials", ())]
        entries[name]["uploads"] = received.checksums
        print(f"measured {name}", file=sys.stderr, flush=True)

    def options(method: str, protocol: str) -> tuple[str, ...]:
        names = ("--method", method, "--data", "demo", "--protocol", protocol)
        rounds = MORE_ROUNDS.get(method, ROUNDS)
        return (*names, "--rounds", str(rounds), "--seeds", "0", "--json")

    with tempfile.TemporaryDirectory() as scratch:
        folder = f"{scratch}/stopped"
        for method in METHODS:
            for protocol in PROTOCOLS:
                run(f"{method}, {protocol}", "run", *options(method, protocol))
        run("", "run", *options(RESUMED, "leak-free"), "--out", folder, stop_at=ROUNDS)
        run(f"{RESUMED}, resumed", "resume", folder, "--json")
        noise = ("--ldp-noise", "0.1")
        run(f"{NOISY}, noisy", "run", *options(NOISY, "leak-free"), *noise)
        search = ("--trials", "1", "--out", f"{scratch}/search")
        run(f"{TUNED}, tuned", "tune", *options(TUNED, "leak-free"), *search)
    return entries


def _call(*arguments: str) -> str:
    """Call the command in this process; returns what it printed."""
    from unskew.cli import main

    printed = io.StringIO()
    sys.argv = ["unskew", *arguments]
    said = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            if end.code not in (None, 0, 130):
                reason = said.getvalue().strip()
                raise SystemExit(f"{' '.join(sys.argv)} failed: {reason}") from None
    return printed.getvalue()


def _checksum(value: Any) -> str:
    """SHA-256 of all numbers in nested tuples and arrays, with their types and shapes."""
    digest = hashlib.sha256()
    for leaf in _leaves(value):
        digest.update(f"{leaf.dtype} {leaf.shape} ".encode() + leaf.tobytes())
    return digest.hexdigest()


def _leaves(value: Any) -> Iterator[Any]:
    import numpy as np

    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield np.asarray(value)


def compare(base: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """One line for every run that differs, naming the parts that do."""
    lines = [f"{name}: only in one of the two" for name in sorted(base.keys() ^ ours.keys())]
    for name in base.keys() & ours.keys():
        keys = base[name].keys() | ours[name].keys()
        parts = [key for key in sorted(keys) if base[name].get(key) != ours[name].get(key)]
        if parts:
            lines.append(f"{name}: {', '.join(parts)} differ")
    return sorted(lines)


def method_checksum(entries: dict[str, Any], method: str) -> str:
    """Checksum of a method's models and uploads under all protocols."""
    runs = [entries[f"{method}, {protocol}"] for protocol in PROTOCOLS]
    text = json.dumps([(run["model_sha256"], run["uploads"]) for run in runs])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_checksums(base: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Renew the checksums of methods whose runs differ from the base; returns their names."""
    known = json.loads(CHECKSUMS.read_text()) if CHECKSUMS.exists() else {}
    old = known.get("methods", {})
    methods = sorted({name.split(", ")[0] for name in ours})
    changed = [
        method
        for method in methods
        if method not in old
        or f"{method}, {PROTOCOLS[0]}" not in base
        or method_checksum(base, method) != method_checksum(ours, method)
    ]
    new = {m: method_checksum(ours, m) if m in changed else old[m] for m in methods}
    header = {"format": "unskew-checksums", "version": 1}
    CHECKSUMS.write_text(json.dumps(header | {"methods": new}, indent=2) + "\n")
    return changed


def _measure_in(checkout: Path) -> dict[str, Any]:
    """Measure a checkout's package in a process of its own, with a compile cache of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "bits.json"
        environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
        command = [sys.executable, str(_SELF), "--measure", str(out)]
        subprocess.run(command, cwd=scratch, env=environment, check=True)
        measured: dict[str, Any] = json.loads(out.read_text())
    return measured


@contextlib.contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """A commit's files in a temporary folder."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "base"
        git = ("git", "-C", str(_SELF.parent))
        subprocess.run(
            [*git, "worktree", "add", "--quiet", "--detach", str(folder), commit], check=True
        )
        try:
            yield folder
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.same_bits", description=__doc__)
    parser.add_argument("base", nargs="?", help="the commit to compare with")
    parser.add_argument("--measure", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument(
        "--write", action="store_true", help="renew the checksums of methods that differ"
    )
    options = parser.parse_args()
    if options.measure:
        options.measure.write_text(json.dumps(measure(), indent=1))
        return 0
    if not options.base:
        parser.error("name the commit to compare with")
    with _checkout(options.base) as folder:
        base = _measure_in(folder)
    ours = _measure_in(_SELF.parents[1])
    lines = compare(base, ours)
    print("\n".join(lines) or f"All {len(ours)} runs have the same bits as {options.base}.")
    if options.write:
        print("New checksums:", ", ".join(write_checksums(base, ours)) or "none")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
