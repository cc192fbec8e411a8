"""Folders of runs with damaged files: every command that reads them refuses with a sentence or
prints and writes exactly what it does without the damage."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.fuzz.cases import Failure, Kind, Told, command
from benchmarks.fuzz.damage import damage_file, files_of
from unskew.engine import checkpoints
from unskew.runs import RunSpec, run

Use = Callable[[str], tuple[Told, Any]]


class Stop(BaseException):
    """The process ends here."""


def train(folder: str, spec: RunSpec, rounds_until_stop: int | None = None) -> None:
    """Train a run that saves every round, stopped in a round if asked. Times and sizes are made up,
    so that its files have the same bytes each time and a case can be replayed."""

    def stop(seed: int, row: dict[str, Any], rounds: int) -> None:
        if (row["round"], seed) == (rounds_until_stop, spec.seeds[-1]):
            raise Stop

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(checkpoints, "MAX_WRITING_SHARE", 1e9))
        patches.enter_context(mock.patch("time.perf_counter", count(0, 0.5).__next__))
        memory = mock.patch("unskew.runs.finished.peak_memory_mb", return_value=100.0)
        patches.enter_context(memory)
        try:
            run(spec, spec.load(), out=Path(folder), on_round=stop, command="unskew run")
        except Stop:
            return


def recommend(folder: str) -> tuple[Told, Any]:
    told = command("recommend", folder, "--all", "--out", "best.csv")
    return told, list(csv.reader(Path("best.csv").open())) if told.code == 0 else None


def rankings(folder: str) -> tuple[Told, Any]:
    told = command("recommend", folder, "--all", "--out", "run.trec", "--format", "trec")
    return told, Path("run.trec").read_text() if told.code == 0 else None


def recommend_user(folder: str) -> tuple[Told, Any]:
    told = command("recommend", folder, "--user", "u3", "--json")
    return told, told.out


def recommend_newcomer(folder: str) -> tuple[Told, Any]:
    told = command("recommend", folder, "--items", "i3,i4", "--json")
    return told, told.out


def compare(folder: str) -> tuple[Told, Any]:
    told = command("compare", "clean", folder, "--json")
    return told, told.out


def report(folder: str) -> tuple[Told, Any]:
    told = command("report", folder, "--out", "report.html")
    return told, Path("report.html").read_text() if told.code == 0 else None


def page(folder: str) -> tuple[Told, Any]:
    shutil.rmtree("page", ignore_errors=True)
    told = command("export", folder, "page", "--format", "web")
    return told, [path.read_bytes() for path in sorted(Path("page").glob("*"))]


def onnx(folder: str) -> tuple[Told, Any]:
    shutil.rmtree("onnx", ignore_errors=True)
    told = command("export", folder, "onnx", "--format", "onnx")
    return told, [path.read_bytes() for path in sorted(Path("onnx").glob("*.onnx"))]


def resume(folder: str) -> tuple[Told, Any]:
    told = command("resume", folder, "--json")
    if told.code:
        return told, None
    result = json.loads(told.out)
    same = ("metrics", "last_round", "sampled99", "best_rounds", "model_sha256", "rounds")
    return told, {name: result[name] for name in same}


READ_ONLY: dict[str, Use] = {
    "recommend": recommend,
    "rankings": rankings,
    "recommend_user": recommend_user,
    "recommend_newcomer": recommend_newcomer,
    "compare": compare,
    "report": report,
    "page": page,
    "onnx": onnx,
}
"""Uses that change nothing in the run's folder."""


MENDED = ("recommend", "rankings", "recommend_user", "compare", "page")
"""Uses that give the same after the run was resumed; a report also shows times."""


class RunFolders(Kind):
    name, share = "run-folders", 0.075

    def prepare(self) -> None:
        lines = [f"u{u},i{(u * 3 + k) % 20},{10**9 + k}" for u in range(24) for k in range(6)]
        Path("own.csv").write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")
        rates = {"rounds": 4, "dim": 4, "local_epochs": 2, "participation": 0.5}
        specs = {
            "stopped": ("fedmf", rates | {"learning_rate": 1.0}, (0,), 3),
            "finished": ("fedmf", rates | {"learning_rate": 1.0}, (0, 1), None),
            "newcomers": ("fedrefit", {"dim": 4}, (0,), None),
            "clean": ("fedmf", rates | {"learning_rate": 0.5}, (0, 1), None),
            "foreign-stopped": ("fedmf", rates | {"learning_rate": 0.5}, (0,), 3),
            "foreign-newcomers": ("fedrefit", {"dim": 5}, (0,), None),
        }
        for folder, (method, settings, seeds, rounds) in specs.items():
            train(folder, RunSpec(method, settings, "own.csv", seeds=seeds), rounds)
        shutil.copytree("clean", "foreign-finished")
        self._wanted: dict[tuple[str, str], Any] = {}
        for name in ("stopped", "finished", "newcomers"):
            for use, call in READ_ONLY.items():
                self._copy(name)
                self._wanted[name, use] = _checked(call)
            self._wanted[name, "resume"] = _checked(resume)
            for use, call in READ_ONLY.items():
                self._wanted[name, f"{use} after"] = _checked(call)

    def play(self, rng: random.Random) -> str | None:
        name = rng.choice(("stopped", "finished", "newcomers"))
        folder, foreign = self._copy(name), Path(f"foreign-{name}")
        self.about = [name]
        for file in rng.sample(files_of(folder), rng.choice((1, 1, 1, 2))):
            self.about.append(
                damage_file(folder / file, foreign / file, rng) + f" of {file.parent}"
            )
        said = None
        uses = [*rng.sample(list(READ_ONLY), 2), *(["resume"] if rng.random() < 0.5 else [])]
        for use in uses:
            said = self._use(name, use) or said
        if uses[-1] == "resume" and said is None:
            self._use(name, f"{rng.choice(MENDED)} after")
        return said

    def _use(self, name: str, use: str) -> str | None:
        """Use a run; returns the sentence of a refusal that would not be without the damage."""
        self.about.append(use)
        call = resume if use == "resume" else READ_ONLY[use.removesuffix(" after")]
        found, wanted = _checked(call), self._wanted[name, use]
        if found == wanted:
            return None
        if not isinstance(found, str):
            raise Failure(f"{use} differs silently: {_difference(found, wanted)}")
        return found

    def _copy(self, name: str) -> Path:
        """A fresh copy of a run, always at the same place, which results name."""
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree(name, "run")
        return Path("run")


def _checked(use: Use) -> Any:
    """The result of a use in a list, or the sentence of its refusal."""
    told, result = use("run")
    return [result] if told.refusal is None else told.refusal


def _difference(found: Any, wanted: Any) -> str:
    texts = [re.sub(r"\s+", " ", str(one)) for one in (found, wanted)]
    at = next((i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), 0)
    return " instead of ".join(repr(text[max(0, at - 60) : at + 80]) for text in texts)
