"""A round of PFedCLR in this checkout against the same round in another commit, in one run.

Each side is a process of its own that trains one round whenever it is asked to. The sides take
turns, so that a machine that slows down for a while slows both.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.sources import data_folder
from benchmarks.timing import Row, Setting, take_turns
from unskew.types import UnskewError

LEAST = 0.9
"""The least share of the other commit's speed."""
_TOP = Path(__file__).resolve().parents[1]
_ROUNDS = """
import sys
from unskew import data
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.methods import create

split = prepare(data.load(sys.argv[1], data_dir=sys.argv[2]), "paper")
federation = Federation(create("pfedclr"), split, seed=0)
state = federation.start()
federation.step(state)  # compiles
print("ready", flush=True)
for line in sys.stdin:
    rows = [federation.step(state) for _ in range(int(line))]
    print(min(row["seconds"] for row in rows), flush=True)
"""


def measure(setting: Setting, commit: str) -> Row:
    split, effort = setting
    with ExitStack() as stack:
        other = stack.enter_context(_checkout(commit))
        sides = [stack.enter_context(_process(top, split.data)) for top in (other, _TOP)]

        def seconds(side: subprocess.Popen[str]) -> float:
            assert side.stdin is not None
            assert side.stdout is not None
            side.stdin.write(f"{effort.rounds}\n")
            side.stdin.flush()
            return float(side.stdout.readline())

        figures, _ = take_turns(
            2 * effort.laps, lambda: seconds(sides[0]), lambda: seconds(sides[1])
        )
    sentence = (
        f"pfedclr on {split.data}: {figures.ratio:.2f} times as fast as in {commit} "
        f"({figures.ratio_low:.2f} to {figures.ratio_high:.2f}), "
        f"{figures.seconds_unskew:.3f} s a round against {figures.seconds_against:.3f} s"
    )
    return Row("pfedclr", split.data, commit, figures, sentence, LEAST)


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """A temporary work tree of the commit."""
    git = ["git", "-C", str(_TOP), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        added = subprocess.run(
            [*git, "add", "--detach", str(tree), commit],
            capture_output=True,
            text=True,
            check=False,
        )
        if added.returncode:
            raise UnskewError(f"{commit}: not a commit of this repository; see git log.")
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=False)


@contextmanager
def _process(top: Path, data: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the data set, has compiled, and waits."""
    command = [sys.executable, "-c", _ROUNDS, data, str(data_folder())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = os.environ | {"PYTHONPATH": str(top / "src")}
    process = subprocess.Popen(command, text=True, env=environment, **pipes)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise UnskewError(f"{top}: its pfedclr did not run; see the message above.")
        yield process
    finally:
        process.kill()
        process.wait()
