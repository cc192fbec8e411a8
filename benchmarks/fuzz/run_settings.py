"""Settings of ``unskew run``: options, a TOML file, settings of every method.

What is accepted is trained on a few users. The memory that is available is said to be small, so
that large settings must be refused, with both figures and before anything is taken.
"""

from __future__ import annotations

import dataclasses
import json
import random
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

from benchmarks.fuzz.cases import (
    NUMBERS,
    WORDS,
    Failure,
    Kind,
    command,
    peak_bytes,
    pick_some,
    reset_peak,
)
from unskew.engine import memory
from unskew.methods import METHODS

MB = 2**20
AVAILABLE = 192 * MB
"""Memory that a run is told it has."""
MAX_BYTES_OF_REFUSAL = AVAILABLE
"""Memory above which something large was made before it was refused."""
MAX_BYTES_OF_RUN = 2 * AVAILABLE
"""Memory above which a run was accepted that should have been refused."""
ADDRESS_SPACE = 6 * 2**30
"""Address space of a case beyond what the process has, so that a mistake stays harmless."""
SLOW = frozenset(
    ["rounds", "local_epochs", "space_rounds", "layers", "batches", "least_steps", "blocks"]
)
"""Settings that cost time in proportion: they may be as long as the user likes, so here they stay
small when they are valid."""
QUICK = {"least_steps": "2", "window": "8", "blocks": "1", "local_epochs": "2", "batches": "2"}
"""Settings that make training quick, unless the case has others."""
SMALL = ("1", "2", "3", "0", "-1", "0.5", "nan", "inf", "-inf", "1e400", "two", "", "1e1")
OPTIONS: dict[str, tuple[str, ...]] = {
    "--protocol": ("leak-free", "sequential", "ratio", "time", "paper", "honest", "LEAK-FREE"),
    "--seeds": ("0", "0,1", "1-2", "3,3", "4-0", "-1", "0-99999999999", str(2**63), "1e3", ","),
    "--k": ("1,10", "5", "0", "-3", "10,10", "1000000", "1e1", ",", str(2**70)),
    "--columns": ("user=user", "user=item", "timestamp=", "user=", "film=item", "a", "item=user=x"),
    "--min-user-rows": ("1", "6", "7", "0", str(2**63)),
    "--evaluate-every": ("1", "2", "1000", "0", str(2**63)),
    "--evaluate-users": ("1", "5", "24", "1000000", "0", str(10**30)),
    "--ldp-noise": ("0", "0.1", "1e30", "1e-320", "nan", "inf", "-1"),
    "--ldp-epsilon": ("1", "1e-9", "1e9", "0", "nan", "inf", "-1", "1e-300"),
    "--ldp-delta": ("1e-5", "0.999", "1", "0", "nan", "1e-300"),
    "--ldp-clip": ("1", "1e-30", "1e30", "0", "nan", "inf"),
    "--ldp-norm": ("l1", "l2", "row", "l3"),
    "--ldp-kind": ("laplace", "gaussian", "cauchy"),
    "--ldp-least-users": ("1", "2", "1000000", "0", str(2**63)),
    "--preset": ("ml-100k", "ml-1m", "no such"),
    "--threads": ("0", "1", "2", "3", "1000", str(2**40), "-1"),
    "--titles": ("titles.csv", "own.csv", "nowhere.csv", ".", "own.csv/x"),
    "--item-features": ("features.csv", "titles.csv", "nowhere.csv"),
    "--train": ("own.csv", "nowhere.csv"),
    "--validation": ("own.csv",),
    "--test": ("own.csv", "titles.csv"),
    "--track": ("mlfow", ""),
    "--out": ("own.csv", "own.csv/x", "y" * 300, "a\nb", "é", "\udcff"),
}
"""Options with values that are right or wrong."""
FLAGS = ("--skip-bad-rows", "--state-on-disk", "--state-in-memory", "--json")
METHOD_NAMES = (
    *METHODS,
    *METHODS,
    "fedavg",
    "",
    "json:JSONDecoder",
    "no.such:Thing",
    "a:b:c",
    "FEDMF",
)
DATA = ("nowhere.csv", "mll-100k", ".", "", "own.csv/x", "~nobody/x", "z" * 300, "\udcff.csv")
LINES = (
    *("rounds = 3", "seeds = 3", 'seeds = ["a"]', "seeds = [true]", "seeds = []", "settings = 3"),
    *("seeds = [0, 0]", "cutoffs = [0]", "cutoffs = []", "cutoffs = [nan]", "cutoffs = [1.5]"),
    *('columns = "x"', "columns = { user = 3 }", "ldp = 3", "ldp = {}", "ldp = { noise = -1 }"),
    *("ldp = { epsilon = 1, noise = 1 }", "ldp = { noise = true }", "data = 3", "method = [1]"),
    *("data = [[1]]", "protocol = 2020-01-01", "min_user_rows = 1e30", "evaluate_every = inf"),
    *("evaluate_users = nan", "min_user_rows = nan", "skip_bad_rows = 1", "speed = 3", "[settings"),
    *("a = " + "[" * 3000, "a = " + "9" * 5000),
    *("rules = { }", "rules = { a = 1 }", "rules = 3", "rules = { split = 3, rank_all = 'x' }"),
    *('train = ""', "titles = 3", 'a = "\\ud800"', "é = 1", "settings = { dim = [1] }", "x = 0x"),
    *("settings = { dim = { a = 1 } }", "settings = { dim = 1979-05-27 }", 'protocol = "\\u0000"'),
    *('data = "\\u0000"', 'titles = "\\u0000"', 'method = "\\u0000:x"', "seeds = [1e3]", "\x00"),
)
"""Lines of a config file."""


class RunSettings(Kind):
    name, share = "run-settings", 0.15

    def prepare(self) -> None:
        if find_spec("torch"):  # loaded here, so that its memory is not counted as a case's
            import_module("unskew.torch.next_item")
        rows = [f"u{u},i{(u * 3 + k) % 20},{10**9 + k},{k}" for u in range(24) for k in range(6)]
        Path("own.csv").write_text("user,item,timestamp,rating\n" + "\n".join(rows) + "\n")
        Path("titles.csv").write_text("item,title\ni1,One\ni2,Two\n")
        Path("features.csv").write_text("item,a,b\ni1,1,2\ni2,3,4\n")

    def play(self, rng: random.Random) -> str | None:
        shutil.rmtree("run", ignore_errors=True)
        shutil.rmtree("runs", ignore_errors=True)
        words = self._words(rng)
        self.about = [json.dumps(words)]
        with (
            mock.patch.object(memory, "available_memory", return_value=AVAILABLE),
            _limited_memory(),
        ):
            before = reset_peak()
            told = command("run", *words)
            taken = peak_bytes() - before
        refusal = told.refusal
        if taken > (MAX_BYTES_OF_RUN if refusal is None else MAX_BYTES_OF_REFUSAL):
            raise Failure(f"took {taken / MB:,.0f} MB and said {refusal!r}")
        if refusal and " of memory " in refusal:
            both = r"needs about [\d,.]+ [GM]B of memory for .* and 192 MB is available; lower"
            if not re.search(both, refusal):
                raise Failure(f"a refusal without both figures: {refusal}")
        return refusal

    def _words(self, rng: random.Random) -> list[str]:
        name = rng.choice(METHOD_NAMES if rng.random() < 0.1 else tuple(METHODS))
        words = ["--method", name, "--data", rng.choice(DATA) if rng.random() < 0.03 else "own.csv"]
        known = METHODS[name].Config.__dataclass_fields__ if name in METHODS else {}
        settings = {key: value for key, value in QUICK.items() if key in known}
        settings |= {"rounds": str(rng.choice((1, 1, 2)))} | _some_settings(name, rng)
        options = {"--threads": "1"}
        if rng.random() < 0.5:
            chosen = pick_some(rng, OPTIONS, 3)
            options |= {option: rng.choice(OPTIONS[option]) for option in chosen}
            if rng.random() < 0.1:
                options[rng.choice(list(options))] = rng.choice((*WORDS, *NUMBERS))
        if "--train" in options:
            del words[2:]
        if rng.random() < 0.2:
            _write_config(Path("some.toml"), settings, rng)
            words += ["--config", "some.toml"]
        else:
            words += [part for pair in settings.items() for part in ("--set", "=".join(pair))]
        words += [part for pair in options.items() for part in pair]
        words += [flag for flag in FLAGS if rng.random() < 0.05]
        if "--out" not in options:
            words += ["--out", "run"]
        return words


def _some_settings(name: str, rng: random.Random) -> dict[str, str]:
    """Some settings of a method: valid ones, numbers at the edges, and texts."""
    fields = dataclasses.fields(METHODS[name].Config) if name in METHODS else ()
    found = {}
    for field in pick_some(rng, fields, 4):
        slow = field.name in SLOW
        kind = rng.random()
        value = rng.choice(SMALL if slow else NUMBERS)
        if kind < 0.25 and not slow and isinstance(field.default, int | float):
            factor = rng.choice((0.5, 1, 2, 100, 1000))
            value = str(type(field.default)(field.default * factor))
        elif kind < 0.35:
            value = rng.choice([word for word in WORDS if not (slow and word == "1_000")])
        elif kind < 0.55 and not isinstance(field.default, int | float):
            value = str(field.default)
        found[field.name] = value
    if rng.random() < 0.03:
        found[rng.choice((*WORDS, "dimm", "Dim", "config"))] = rng.choice(NUMBERS)
    return found


def _write_config(path: Path, settings: dict[str, str], rng: random.Random) -> None:
    """Write a TOML file with settings as numbers or texts, perhaps with a wrong line or bytes."""
    lines = [rng.choice(LINES) for _ in range(rng.choice((0, 0, 1, 2)))]
    lines += ["[settings]"]
    for key, value in settings.items():
        lines.append(f"{_quoted(key)} = {value if rng.random() < 0.6 else _quoted(value)}")
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    if rng.random() < 0.1:
        at = rng.randrange(len(content))
        content = content[:at] + rng.choice((b"\xff", b"\0", b'"', b"[", b"")) + content[at + 1 :]
    path.write_bytes(content)


def _quoted(text: str) -> str:
    """A TOML string, which cannot escape letters above U+FFFF in pairs as JSON does."""
    return json.dumps(text, ensure_ascii=not text.isprintable() and text.isascii())


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Within the ``with`` block, the process gets little more memory than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
