"""Read a run's folder (see `folder.py`) to resume, compare, report or recommend.

Files are read only if they are as they were written. Recommending from a folder does not need the
training set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from unskew.engine import Federation, Recommender
from unskew.files import read_json, read_json_lines
from unskew.methods import METHODS, admit_method
from unskew.ragged import indptr_from_counts, select
from unskew.runs.folder import RESULT_FORMAT, VERSION, RunFiles, checkpoints_of, read_header
from unskew.runs.results import Result, SeedOutcome, Summary
from unskew.runs.spec import RunSpec
from unskew.types import Float32, Int32, Ragged, Split, UnskewError

_USER_KEYS = ("user", "round", "ranking")
"""Key columns of the tables of per-user metrics; every other column is a metric."""


def read_spec(folder: Path, method: Any = None) -> tuple[RunSpec, str]:
    """Read the specification of the run in a folder, and the command that started it.

    ``method`` is the run's method: a class or ``package.module:Class``. It is needed if the method
    that the folder names is neither of this package nor of an installed one, because a path that is
    read from a folder is never imported.
    """
    header = read_header(folder)
    if method is not None:
        admit_method(method, str(header["spec"].get("method", RunSpec.method)))
    return RunSpec.from_mapping(header["spec"]), header.get("command", "")


def read_seeds(folder: Path) -> list[int]:
    """Read the seeds of a run, without importing its method."""
    return [int(seed) for seed in read_header(folder)["spec"]["seeds"]]


def read_result(folder: Path) -> Result:
    """Read the results of a finished run."""
    read_header(folder)
    files = RunFiles(folder)
    if "result.json" not in files.listed():
        raise UnskewError(f"The run in {folder} is not finished; `unskew resume {folder}` ends it.")
    path = files.check("result.json")
    values = read_json(path, RESULT_FORMAT, VERSION, sealed=True)
    del values["format"], values["version"]
    return Result.from_json(values, path)


def read_rounds(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Read the records of all rounds (losses, metrics, seconds, bytes), by seed."""
    seeds, files = read_seeds(folder), RunFiles(folder)
    return {seed: read_json_lines(files.check(f"seed-{seed}/rounds.jsonl")) for seed in seeds}


def read_users(folder: Path, round: str = "best", ranking: str | None = None) -> pl.DataFrame:
    """Read every user's metrics at the "best" or "last" round, averaged over seeds. ``ranking`` is
    "all" (unseen items) or "sampled" (candidates); by default "all" if the run has it."""
    files = RunFiles(folder)
    paths = [files.check(f"seed-{seed}/users.parquet") for seed in read_seeds(folder)]
    frames = [_read_frame(path, "user", "round", "ranking") for path in paths]
    main = "all" if "all" in frames[0]["ranking"].unique() else "sampled"
    chosen = (pl.col("round") == round) & (pl.col("ranking") == (ranking or main))
    metrics = [name for name in frames[0].columns if name not in _USER_KEYS]
    return (
        pl.concat(frames)
        .filter(chosen)
        .group_by("user", maintain_order=True)
        .agg(pl.col(metrics).mean())
    )


def read_outcomes(folder: Path, result: Result) -> list[SeedOutcome]:
    """Read the results of every seed of a finished run; ``result`` was read from its
    ``result.json``."""
    rounds, files, outcomes = read_rounds(folder), RunFiles(folder), []
    for at, seed in enumerate(result.seeds):
        path = files.check(f"seed-{seed}/users.parquet")
        users = _read_frame(path, "user", "round", "ranking")
        metrics = [name for name in users.columns if name not in _USER_KEYS]
        outcomes.append(
            SeedOutcome(
                seed,
                result.best_rounds[at],
                rounds[seed],
                _of_seed(result.metrics, at),
                _of_seed(result.last_round, at),
                _of_seed(result.sampled99, at),
                _of_seed(result.sampled99_last_round or {}, at),
                {
                    (str(round), str(ranking)): {name: of[name].to_numpy() for name in metrics}
                    for (round, ranking), of in users.group_by("round", "ranking")
                },
                (result.model_sha256_per_seed or [""] * len(result.seeds))[at],
                _read_ranks(files.check(f"seed-{seed}/ranks.parquet")),
            )
        )
    return outcomes


def _read_ranks(path: Path) -> dict[tuple[str, str], Int32]:
    """Read the ranks of all test items."""
    groups = _read_frame(path, "rank", "round", "ranking").group_by("round", "ranking")
    return {(str(round), str(ranking)): of["rank"].to_numpy() for (round, ranking), of in groups}


def _of_seed(table: Mapping[str, Summary], at: int) -> dict[str, float]:
    """Metrics of one seed, the one at position ``at`` in the run's list of seeds."""
    return {name: summary.values[at] for name, summary in table.items()}


def open_recommender(folder: Path, seed: int | None = None, method: Any = None) -> Recommender:
    """Load the model of a saved run's best validation round, ready to recommend. ``method`` is
    its class, needed if the method is neither of this package nor of an installed one."""
    spec, _ = read_spec(folder, method)
    seed = spec.seeds[0] if seed is None else seed
    if seed not in spec.seeds:
        raise UnskewError(f"The run in {folder} has seeds {list(spec.seeds)}, not {seed}.")
    return load_recommender(folder, Federation(spec.build(), read_split(folder, spec), seed))


def load_recommender(folder: Path, federation: Federation) -> Recommender:
    """Load the model of the best validation round, for one seed of the run in ``folder``."""
    checkpoints, files = checkpoints_of(folder, federation.seed), RunFiles(folder)
    newest = f"seed-{federation.seed}/state/current.json"
    if checkpoints.folder.path.exists() and newest in files.listed():
        files.check(newest)
    try:
        devices = checkpoints.load_best(federation)
    except UnskewError as error:
        raise UnskewError(
            f"{error} `unskew resume {folder}` goes on from the last whole checkpoint."
        ) from None
    if devices is None:
        raise UnskewError(
            f"The run in {folder} has no model yet; `unskew resume {folder}` trains it."
        )
    return Recommender(federation.method, federation.split, devices, federation.seed)


def read_split(folder: Path, spec: RunSpec) -> Split:
    """Read the labels, titles and item lists of a saved run. They are enough to recommend."""
    files = RunFiles(folder)
    items = _read_frame(files.check("items.parquet"), "item", "title")
    users = _read_frame(files.check("users.parquet"), "user", "seen", "validation", "test")
    parts = (_ragged(users[part]) for part in ("train", "seen", "validation", "test"))
    train, seen, validation, test = parts
    return Split(
        spec.data,
        spec.protocol,
        users["user"].to_list(),
        items["item"].to_list(),
        items["title"].to_list(),
        train,
        seen,
        seen,
        validation,
        test,
        np.zeros((len(users), 0), np.int32),
        spec.evaluation.rank_all,
        item_features=_features(items),
        validation_in_history=spec.evaluation.validation_in_history,
    )


def _features(items: pl.DataFrame) -> Float32 | None:
    if "features" not in items.columns:
        return None
    return np.array(items["features"].to_list(), np.float32)


def _ragged(lists: pl.Series) -> Ragged:
    indptr = indptr_from_counts(lists.list.len().to_numpy())
    items = lists.explode().drop_nulls().to_numpy().astype(np.int32)
    return Ragged(indptr, items)


def _read_frame(path: Path, *columns: str) -> pl.DataFrame:
    """Read a Parquet file; raises an UnskewError if it is damaged or lacks a column."""
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
    """A client's items and ranks in one run. Items are titles, or labels if there are no titles."""

    user: str
    history: list[str]
    validation: list[str]
    test: list[tuple[str, int]]
    """Held-out items and their ranks."""
    top: list[tuple[str, str]]
    """The 10 best unseen items: title, and "test" or "validation" if the item was held out."""
    among: int
    """Number of items among which held-out items are ranked."""


def client_view(folder: Path, user: str | None = None) -> ClientView | None:
    """A client's items and recommendations, by the model of the run's first seed.

    ``user`` is a label (default: a user with the median number of training items). Returns None if
    the run has no model yet or no such user, or if its method is not one of this package, because
    its code is not imported.
    """
    if read_header(folder)["spec"].get("method") not in METHODS:
        return None
    spec, _ = read_spec(folder)
    if not (folder / f"seed-{spec.seeds[0]}" / "state").exists():
        return None
    recommender = open_recommender(folder)
    split = recommender.split
    by_length = np.argsort(split.seen.counts(), kind="stable")
    user = split.user_ids[by_length[len(by_length) // 2]] if user is None else user
    if user not in split.user_ids:
        return None
    number, titles = split.user_ids.index(user), split.titles or split.item_ids
    validation, test = (part.of(number) for part in (split.validation, split.test))
    held_out = {split.item_ids[item]: "validation" for item in validation}
    held_out |= {split.item_ids[item]: "test" for item in test}
    _, scores = recommender.held_out_scores(np.array([number]))
    seen = select(split.seen, np.array([number]))
    ranked = recommender.best([user], scores, seen, split.n_items).to_dicts()
    rank = {found["item"]: found["rank"] for found in ranked}
    return ClientView(
        user,
        sorted(titles[item] for item in split.seen.of(number)),
        [titles[item] for item in validation],
        [(titles[i], rank[split.item_ids[i]]) for i in test if split.item_ids[i] in rank],
        [(found["title"], held_out.get(found["item"], "")) for found in ranked[:10]],
        len(ranked),
    )
