"""A run's folder while it is written, and the manifest of its files.

A folder holds ``run.json`` (the specification), ``items.parquet`` and ``users.parquet`` (labels,
titles, and every user's items), ``result.json`` once the run has ended, and for each seed
``seed-N/`` with the checkpoints, ``rounds.jsonl``, per-user metrics in ``users.parquet`` and the
ranks of all test items in ``ranks.parquet``.

``manifest.json`` has the size and checksum of each file. It is written after the file, so a file
counts only once it is whole. The manifest lists a seed's newest checkpoint, which has checksums of
its own files, once the seed has ended.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import polars as pl

from unskew.engine import Checkpoints
from unskew.files import (
    file_checksum,
    read_json,
    write_atomically,
    write_json,
    write_json_lines,
)
from unskew.ragged import owners
from unskew.runs.results import Result, SeedOutcome, versions
from unskew.runs.spec import RunSpec
from unskew.types import Ragged, Split, UnskewError

RUN_FORMAT, RESULT_FORMAT, VERSION = "unskew-run", "unskew-result", 2
"""Format names of ``run.json`` and ``result.json``, and the format version of both."""
MANIFEST_FORMAT, MANIFEST_VERSION = "unskew-manifest", 1
"""Format name and version of ``manifest.json``."""


class RunFiles:
    """The files of a run's folder, as its manifest lists them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._manifest = folder / "manifest.json"

    def listed(self) -> dict[str, list[Any]]:
        """Size and checksum of every file, by its path within the folder."""
        if not self._manifest.exists():
            raise UnskewError(f"{self._manifest} is missing; {self._remedy}")
        try:
            found = read_json(self._manifest, MANIFEST_FORMAT, MANIFEST_VERSION, sealed=True)
        except UnskewError:
            raise UnskewError(f"{self._manifest} is damaged; {self._remedy}") from None
        files: dict[str, list[Any]] = found["files"]
        return files

    def reset(self) -> None:
        """List nothing but the specification: everything else is about to be written."""
        self._write({"run.json": self._describe("run.json")})

    def add(self, *names: str) -> None:
        """List files that were just written."""
        self._write(self.listed() | {name: self._describe(name) for name in names})

    def check(self, name: str) -> Path:
        """Return the path of a file; raises an UnskewError unless the file is as it was written."""
        path, listed = self.folder / name, self.listed()
        if name not in listed:
            raise UnskewError(f"{path} was not written to its end; {self._remedy}")
        if not path.exists():
            raise UnskewError(f"{path} is missing; {self._remedy}")
        if listed[name] != self._describe(name):
            raise UnskewError(f"{path} has changed since it was written; {self._remedy}")
        return path

    @property
    def _remedy(self) -> str:
        return f"`unskew resume {self.folder}` writes it again."

    def _describe(self, name: str) -> list[Any]:
        path = self.folder / name
        return [path.stat().st_size, file_checksum(path)]

    def _write(self, files: dict[str, list[Any]]) -> None:
        header = {"format": MANIFEST_FORMAT, "version": MANIFEST_VERSION}
        write_json(self._manifest, header | {"files": files})


def checkpoints_of(folder: Path, seed: int) -> Checkpoints:
    """The checkpoints of one seed of the run in a folder."""
    run = f"{file_checksum(folder / 'run.json')} seed {seed}"
    return Checkpoints(folder / f"seed-{seed}" / "state", run)


def read_header(folder: Path) -> dict[str, Any]:
    """Read and check ``run.json`` (specification, command, versions) of a run folder."""
    header = read_json(folder / "run.json", RUN_FORMAT, VERSION, sealed=True)
    files = RunFiles(folder)
    try:
        listed = files.listed()
    except UnskewError:  # `unskew resume` writes a new manifest; everything else asks for it again
        return header
    if "run.json" in listed and listed["run.json"][1] != file_checksum(folder / "run.json"):
        raise UnskewError(
            f"{folder / 'run.json'} and manifest.json are of different runs; restore the one that "
            "was replaced, or run again."
        )
    return header


def open_folder(out: Path, spec: RunSpec, split: Split, resume: bool, command: str) -> None:
    """Write the specification, labels and item lists of a run to its folder. Raises an UnskewError
    if the folder already holds a run or, with ``resume``, a run that was trained on other data."""
    checksum = split_checksum(split)
    if not (out / "run.json").exists():
        about = {"command": command, "versions": versions(), "spec": spec.to_json()}
        header = {"format": RUN_FORMAT, "version": VERSION, **about, "split_sha256": checksum}
        write_json(out / "run.json", header)
    elif not resume:
        raise UnskewError(
            f"{out} already holds a run; go on with `unskew resume {out}` or give another --out."
        )
    elif read_header(out)["split_sha256"] != checksum:
        raise UnskewError(
            f"{spec.data} is not what the run in {out} was trained on; put the data back as it "
            "was, or start afresh with `unskew run`."
        )
    files = RunFiles(out)
    files.reset()
    items: dict[str, Any] = {"item": list(split.item_ids)}
    items["title"] = list(split.titles or split.item_ids)
    if split.item_features is not None:
        items["features"] = list(split.item_features)
    users = [pl.Series("user", split.user_ids, pl.String)]
    for name in ("train", "seen", "validation", "test"):
        users.append(_lists(name, getattr(split, name)))
    write_atomically(out / "items.parquet", pl.DataFrame(items).write_parquet)
    write_atomically(out / "users.parquet", pl.DataFrame(users).write_parquet)
    files.add("items.parquet", "users.parquet")


def _lists(name: str, ragged: Ragged) -> pl.Series:
    """A column with a list of items per user."""
    n_users = len(ragged.indptr) - 1
    rows = pl.DataFrame({"user": owners(ragged.indptr), name: ragged.items})
    lists = rows.group_by("user", maintain_order=True).agg(name)
    users = pl.DataFrame({"user": range(n_users)}, schema={"user": pl.Int64})
    joined = users.join(lists, on="user", how="left", maintain_order="left")[name]
    return joined.fill_null(pl.Series([[]], dtype=pl.List(pl.Int32)))


def split_checksum(split: Split) -> str:
    """SHA-256 of a data split: user and item labels, training items in order, held-out items."""
    digest = hashlib.sha256()
    for labels in (split.user_ids, split.item_ids):
        digest.update(json.dumps(list(labels)).encode())
    for part in (split.train, split.validation, split.test):
        digest.update(part.indptr.astype("<i8").tobytes())
        digest.update(part.items.astype("<i8").tobytes())
    return digest.hexdigest()


def write_seed(folder: Path, seed: int, split: Split, outcome: SeedOutcome) -> None:
    """Write the results of a seed that has ended: a row per round, every user's metrics, which
    paired tests need, and the ranks of all test items."""
    name, users = f"seed-{seed}", list(split.user_ids)
    frames = [
        pl.DataFrame({"user": users, **values, "round": round, "ranking": ranking})
        for (round, ranking), values in outcome.per_user.items()
    ]
    write_json_lines(folder / name / "rounds.jsonl", outcome.rows)
    write_atomically(folder / name / "users.parquet", pl.concat(frames).write_parquet)
    user = pl.Series(users)[owners(split.test.indptr)]
    item = pl.Series(list(split.item_ids))[split.test.items]
    ranks = [
        pl.DataFrame({"user": user, "item": item, "rank": one, "round": round, "ranking": ranking})
        for (round, ranking), one in outcome.ranks.items()
    ]
    write_atomically(folder / name / "ranks.parquet", pl.concat(ranks).write_parquet)
    written = ("rounds.jsonl", "users.parquet", "ranks.parquet", "state/current.json")
    RunFiles(folder).add(*(f"{name}/{file}" for file in written))


def write_result(folder: Path, result: Result) -> None:
    """Write ``result.json``, which marks the run as finished."""
    header = {"format": RESULT_FORMAT, "version": VERSION}
    write_json(folder / "result.json", header | result.to_json())
    RunFiles(folder).add("result.json")
