"""Run folders: written while a run trains, opened again to resume, compare, report, recommend.

A folder holds ``run.json`` (the specification), ``items.parquet`` and ``users.parquet`` (labels,
titles, and every user's items), ``result.json`` once the run has ended, and for each seed
``seed-N/`` with the checkpoint, ``rounds.jsonl`` and per-user metrics in ``users.parquet``.
Recommending from a folder does not need the training set.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from unskew.engine import Checkpoints, Federation
from unskew.files import read_json, read_json_lines, write_atomically, write_json
from unskew.ragged import indptr_from_counts
from unskew.runs.recommender import Recommender
from unskew.runs.results import Result, SeedOutcome, versions
from unskew.runs.spec import RunSpec
from unskew.types import Ragged, Split, UnskewError

RUN_FORMAT, RESULT_FORMAT, VERSION = "unskew-run", "unskew-result", 1
VIEW_ITEMS = 10
"""Recommendations in a client's view."""


def open_folder(out: Path, spec: RunSpec, split: Split, resume: bool, command: str) -> None:
    """Write what a run folder starts with. Refuse a folder that holds another run, or other data
    than the run to be resumed."""
    if (out / "run.json").exists():
        if not resume:
            raise UnskewError(
                f"{out} already holds a run; go on with `unskew resume {out}` or give another "
                "--out."
            )
        _check_split(out, spec.data, split)
    header = {"format": RUN_FORMAT, "version": VERSION, "command": command, "versions": versions()}
    found = {"spec": spec.to_json(), "split_sha256": _split_checksum(split)}
    write_json(out / "run.json", header | found)
    for name, frame in zip(("items", "users"), _catalogue(split), strict=True):
        write_atomically(out / f"{name}.parquet", frame.write_parquet)


def _check_split(out: Path, data: str, split: Split) -> None:
    """Refuse to resume on other data than the run began with, before anything is written."""
    known = read_header(out).get("split_sha256")
    if known is not None:
        same = known == _split_checksum(split)
    elif (out / "items.parquet").exists() and (out / "users.parquet").exists():
        # A run from before checksums were kept: compare its catalogue.
        items, users = _catalogue(split)
        same = _read_frame(out / "items.parquet", "item")["item"].equals(items["item"])
        same = same and _read_frame(out / "users.parquet").equals(users)
    else:
        same = True  # stopped before anything was trained
    if not same:
        raise UnskewError(
            f"{data} is not what the run in {out} was trained on; put the data back as it "
            "was, or start afresh with `unskew run`."
        )


def _split_checksum(split: Split) -> str:
    """SHA-256 of labels, training items in their order, and held-out items."""
    digest = hashlib.sha256()
    for labels in (split.user_ids, split.item_ids):
        digest.update(json.dumps(list(labels)).encode())
    for part in (split.train, split.validation, split.test):
        for numbers in part:
            digest.update(f"{len(numbers)} ".encode() + numbers.astype("<i8").tobytes())
    return digest.hexdigest()


def _catalogue(split: Split) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tables of items (item, title) and of users (user, seen, validation, test)."""
    items = {"item": list(split.item_ids), "title": list(split.titles or split.item_ids)}
    users = {
        "user": list(split.user_ids),
        **{
            part: [getattr(split, part).of(user).tolist() for user in range(split.n_users)]
            for part in ("seen", "validation", "test")
        },
    }
    lists = pl.List(pl.Int32)
    schema: dict[str, Any] = {"user": pl.String, "seen": lists, "validation": lists, "test": lists}
    return pl.DataFrame(items), pl.DataFrame(users, schema=schema)


def write_user_metrics(folder: Path, split: Split, outcome: SeedOutcome) -> None:
    """Write a seed's metrics of every user, for paired tests."""
    frames = [
        pl.DataFrame({"user": list(split.user_ids), **values}).with_columns(
            pl.lit(round).alias("round"), pl.lit(ranking).alias("ranking")
        )
        for (round, ranking), values in outcome.per_user.items()
    ]
    write_atomically(folder / "users.parquet", pl.concat(frames).write_parquet)


def write_result(folder: Path, result: Result) -> None:
    """Write ``result.json``, which says that the run has ended."""
    header = {"format": RESULT_FORMAT, "version": VERSION}
    write_json(folder / "result.json", header | result.to_json())


def read_header(folder: Path) -> dict[str, Any]:
    """Read ``run.json`` of a folder."""
    if not (folder / "run.json").exists():
        raise UnskewError(f"There is no {folder / 'run.json'}; give the folder of a run.")
    header = read_json(folder / "run.json", RUN_FORMAT, VERSION)
    if not isinstance(header.get("spec"), dict):
        raise UnskewError(
            f"{folder / 'run.json'} does not say what was run; restore it or run again."
        )
    return header


def read_spec(folder: Path) -> tuple[RunSpec, str]:
    """The specification of the run in a folder, and the command that started it."""
    header = read_header(folder)
    return RunSpec.from_mapping(header["spec"]), header.get("command", "")


def read_result(folder: Path) -> Result:
    """The figures of a finished run."""
    read_header(folder)
    path = folder / "result.json"
    if not path.exists():
        raise UnskewError(f"The run in {folder} is not finished; `unskew resume {folder}` ends it.")
    values = read_json(path, RESULT_FORMAT, VERSION)
    del values["format"], values["version"]
    return Result.from_json(values, path)


def same_data(folder: Path, other: Path) -> bool | None:
    """Whether two runs have the same split; None if one of them has no checksum."""
    checksums = [read_header(one).get("split_sha256") for one in (folder, other)]
    return None if None in checksums else checksums[0] == checksums[1]


def read_rounds(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """One row per round, by seed."""
    spec, _ = read_spec(folder)
    return {seed: read_json_lines(folder / f"seed-{seed}" / "rounds.jsonl") for seed in spec.seeds}


def read_users(folder: Path, round: str = "best", ranking: str | None = None) -> pl.DataFrame:
    """Metrics of every user, averaged over seeds; by default in the protocol's main ranking."""
    spec, _ = read_spec(folder)
    paths = [folder / f"seed-{seed}" / "users.parquet" for seed in spec.seeds]
    frames = [_read_frame(path, "user", "round", "ranking") for path in paths]
    main = "all" if "all" in frames[0]["ranking"].unique() else "sampled"
    chosen = (pl.col("round") == round) & (pl.col("ranking") == (ranking or main))
    metrics = [name for name in frames[0].columns if "@" in name]
    return (
        pl.concat(frames)
        .filter(chosen)
        .group_by("user", maintain_order=True)
        .agg(pl.col(metrics).mean())
    )


def open_recommender(folder: Path, seed: int | None = None) -> Recommender:
    """The model of a saved run's best validation round, ready to recommend."""
    spec, _ = read_spec(folder)
    seed = spec.seeds[0] if seed is None else seed
    if seed not in spec.seeds:
        raise UnskewError(f"The run in {folder} has seeds {list(spec.seeds)}, not {seed}.")
    return load_recommender(folder, Federation(spec.build(), _read_split(folder, spec), seed))


def load_recommender(folder: Path, federation: Federation) -> Recommender:
    """The model of the best validation round of a federation that was saved in ``folder``."""
    state = Checkpoints(folder / f"seed-{federation.seed}" / "state").load(federation)
    if state is None:
        raise UnskewError(
            f"The run in {folder} has no model yet; `unskew resume {folder}` trains it."
        )
    return Recommender(federation.method, federation.split, state.best_devices, federation.seed)


def _read_split(folder: Path, spec: RunSpec) -> Split:
    """The split of a saved run as far as recommending needs it."""
    items, users = _read_catalogue(folder)
    seen, validation, test = (_ragged(users[part]) for part in ("seen", "validation", "test"))
    return Split(
        spec.data,
        spec.protocol,
        users["user"].to_list(),
        items["item"].to_list(),
        items["title"].to_list(),
        seen,
        seen,
        seen,
        validation,
        test,
        np.zeros((len(users), 0), np.int32),
        spec.protocol != "paper",
    )


def _ragged(lists: pl.Series) -> Ragged:
    indptr = indptr_from_counts(lists.list.len().to_numpy())
    items = lists.explode().drop_nulls().to_numpy().astype(np.int32)
    return Ragged(indptr, items)


def _read_catalogue(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    items = _read_frame(folder / "items.parquet", "item", "title")
    return items, _read_frame(folder / "users.parquet", "user", "seen", "validation", "test")


def _read_frame(path: Path, *columns: str) -> pl.DataFrame:
    """Read a table of a run folder that must have these columns."""
    try:
        frame = pl.read_parquet(path, glob=False, hive_partitioning=False)
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = "it is missing" if isinstance(error, FileNotFoundError) else "it is damaged"
    else:
        missing = [name for name in columns if name not in frame.columns]
        if not missing:
            return frame
        why = f"it has no column {missing[0]}"
    raise UnskewError(f"{path} cannot be used: {why}; restore it or run again.")


class ClientView(NamedTuple):
    """One client in one run; items by title, or by label where the data has no titles."""

    history: list[str]
    validation: list[str]
    test: list[tuple[str, int]]
    """Held-out items and their ranks."""
    top: list[tuple[str, str]]
    """The ten best: title, and "test" or "validation" if the item was held out."""
    among: int
    """Number of items that are ranked."""


def has_model(folder: Path) -> bool:
    """Whether a run folder holds what recommending needs."""
    first = f"seed-{read_spec(folder)[0].seeds[0]}"
    needed = ("items.parquet", "users.parquet", f"{first}/state/current.json")
    return all((folder / name).exists() for name in needed)


def has_client(folder: Path, user: str) -> bool:
    """Whether a run has a user with this label."""
    return user in _read_catalogue(folder)[1]["user"]


def median_client(folder: Path) -> str:
    """A user with the median number of training items."""
    _, users = _read_catalogue(folder)
    order = np.argsort(users["seen"].list.len().to_numpy(), kind="stable")
    return str(users["user"][int(order[len(order) // 2])])


def client_view(folder: Path, user: str) -> ClientView:
    """A client's items and recommendations, by the model of the run's first seed."""
    items, users = _read_catalogue(folder)
    labels, titles = items["item"].to_list(), items["title"].to_list()
    _, seen, validation, test = users.row(by_predicate=pl.col("user") == user)
    held_out = {labels[i]: "validation" for i in validation} | {labels[i]: "test" for i in test}
    ranked = open_recommender(folder).recommend(user, len(labels))
    rank = {found["item"]: found["rank"] for found in ranked}
    return ClientView(
        sorted(titles[i] for i in seen),
        [titles[i] for i in validation],
        [(titles[i], rank[labels[i]]) for i in test if labels[i] in rank],
        [(found["title"], held_out.get(found["item"], "")) for found in ranked[:VIEW_ITEMS]],
        len(ranked),
    )
