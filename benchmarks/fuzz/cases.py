"""What all kinds of cases share: the parts of a case, its outcome, and the command in process."""

from __future__ import annotations

import io
import os
import random
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from unskew.cli import main
from unskew.text import plain
from unskew.types import UnskewError

Edit = Callable[[random.Random], Any]
WORDS = (
    *(
        "",
        " ",
        "a",
        "true",
        "False",
        "none",
        "null",
        "é",
        "日本",
        "🎬",
        "[1]",
        "{}",
        "a b",
        "a=b",
        "#",
    ),
    *("%s", "{0}", "../x", "-1-", "0x10", "1_000", "1,5", "½", "٣", "[/b]", ":cat:", "$HOME", "\\"),
    *("\x1b[31m", "a\nb", "\t", "\r", "\u2028", "\u202e", "\udcff", "x" * 300, "9" * 5000),
)
"""Texts that stand where something else is expected."""
NUMBERS = (
    *("0", "1", "2", "3", "-1", "-0", "0.5", "0.999", "1.5", "-1e-9", "1e3", "1e-320", "1e30"),
    *("1e400", "nan", "inf", "-inf", "-Infinity", " 7 ", "+7", "07", "7.0", "1e6", "1e9"),
    *(str(2**n + d) for n in (15, 31, 32, 53, 63, 64, 128) for d in (-1, 0)),
    *(str(10**n) for n in (4, 5, 6, 7, 9, 12, 18, 30, 300)),
)
"""Numbers at the edges of types, of bounds and of memory."""


class Told(NamedTuple):
    """What the command has printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str | None:
        """The sentence of a refusal, checked; None if the command has done its work."""
        if self.code == 0:
            return None
        said, lines = self.err.rstrip("\n"), self.err.rstrip("\n").split("\n")
        if "Usage:" in said:  # typer's own refusal of an option, in a frame
            return " ".join(said.split())
        if not lines[-1].startswith("unskew: "):
            raise Failure(f"exit code {self.code} without a sentence: {said[-500:]!r}")
        if self.out and not self.out.isspace():
            raise Failure(f"refused after it had printed {self.out[:200]!r}")
        return check_sentence(lines[-1].removeprefix("unskew: "))


class Failure(Exception):
    """A case that came out neither as it should nor with a sentence."""


def check_sentence(text: str) -> str:
    """Return the sentence of a refusal; raises a Failure unless it is one line that says something
    and is safe to print."""
    if len(text.split()) < 4 or not all(c.isprintable() for c in text):
        raise Failure(f"not one printable sentence: {text[:500]!r}")
    if "Memory is full" in text:
        raise Failure(f"memory was taken before it was counted: {text[:500]!r}")
    return text


def attempt(call: Callable[[], Any], *refusals: type[Exception]) -> tuple[Any, str | None]:
    """The result of a call, or the sentence with which it is refused. Other errors are raised."""
    try:
        return call(), None
    except (UnskewError, *refusals) as error:
        return None, check_sentence(plain(error))  # as it is printed or logged


def command(*words: Any) -> Told:
    """Run ``unskew`` with these arguments in this process; a traceback is raised."""
    # As in a terminal or a pipe, where a lone surrogate cannot be printed to stdout.
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace")
    )
    argv, sys.argv = sys.argv, ["unskew", *map(str, words)]
    try:
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = argv
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return Told(int(code), *texts)


def reset_peak() -> int:
    """Make the process's peak memory what it uses now; returns that, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def peak_bytes() -> int:
    """Peak memory of the process since `reset_peak`, in bytes."""
    line = next(n for n in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in n)
    return int(line.split()[1]) * 1024


def pick_some(rng: random.Random, choices: Any, most: int) -> list[Any]:
    """Up to ``most`` distinct choices, often few."""
    choices = list(choices)
    return rng.sample(choices, min(len(choices), rng.choice([*range(most + 1), 1, 1])))


class Kind:
    """A kind of cases. Subclasses set ``name`` and ``share`` and have ``prepare`` and ``play``."""

    name: str
    share: float
    """Share of the cases of a run that are of this kind."""

    def __init__(self, place: Path) -> None:
        self.place = place / self.name
        """The kind's own folder, which is the current one while a case is played."""
        self.about: list[str] = []
        """What the present case is, for the report of a failure."""
        self.place.mkdir(parents=True)
        os.chdir(self.place)
        self.prepare()

    def prepare(self) -> None:
        """Make what all cases of the kind need."""

    def play(self, rng: random.Random) -> str | None:
        """Play one case; returns the sentence of its refusal, or None if it was accepted."""
        raise NotImplementedError

    def case(self, run: int, number: int) -> str | None:
        """Play the case with this number of the run with this seed."""
        self.about = []
        os.chdir(self.place)
        return self.play(random.Random(f"{self.name}:{run}:{number}"))
