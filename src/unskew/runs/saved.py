"""Run folders: written during training, read later to resume, compare, report or recommend.

A folder holds ``run.json`` (the specification), ``items.parquet`` and ``users.parquet`` (labels,
titles, and every user's items), ``result.json`` once the run has ended, and for each seed
``seed-N/`` with the checkpoint, ``rounds.jsonl``, per-user metrics in ``users.parquet`` and the
ranks of all test items in ``ranks.parquet``.
Recommending from a folder does not need the training set.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from unskew.engine import Checkpoints, Federation, Recommender
from unskew.files import read_json, read_json_lines, write_atomically, write_json
from unskew.methods import METHODS, admit_method
from unskew.ragged import indptr_from_counts, owners, select
from unskew.runs.results import Result, SeedOutcome, Summary, versions
from unskew.runs.spec import RunSpec
from unskew.types import Float32, Int32, Ragged, Split, UnskewError

RUN_FORMAT, RESULT_FORMAT, VERSION = "unskew-run", "unskew-result", 1
"""Format names of ``run.json`` and ``result.json``, and the format version of both."""

_USER_KEYS = ("user", "round", "ranking")
"""Key columns of the tables of per-user metrics; every other column is a metric."""


def open_folder(out: Path, spec: RunSpec, split: Split, resume: bool, command: str) -> None:
    """Write the specification, labels and item lists of a run to its folder. Raises an UnskewError
    if the folder already holds a run or, with ``resume``, a run that was trained on other data."""
    checksum = split_checksum(split)
    if (out / "run.json").exists():
        if not resume:
            raise UnskewError(
                f"{out} already holds a run; go on with `unskew resume {out}` or give another "
                "--out."
            )
        if read_header(out)["split_sha256"] != checksum:
            raise UnskewError(
                f"{spec.data} is not what the run in {out} was trained on; put the data back as it "
                "was, or start afresh with `unskew run`."
            )
    header = {"format": RUN_FORMAT, "version": VERSION, "command": command, "versions": versions()}
    write_json(out / "run.json", header | {"spec": spec.to_json(), "split_sha256": checksum})
    items: dict[str, Any] = {"item": list(split.item_ids)}
    items["title"] = list(split.titles or split.item_ids)
    if split.item_features is not None:
        items["features"] = list(split.item_features)
    users = [pl.Series("user", split.user_ids, pl.String)]
    for name in ("train", "seen", "validation", "test"):
        part: Ragged = getattr(split, name)
        lists = [part.of(user).tolist() for user in range(split.n_users)]
        users.append(pl.Series(name, lists, pl.List(pl.Int32)))
    write_atomically(out / "items.parquet", pl.DataFrame(items).write_parquet)
    write_atomically(out / "users.parquet", pl.DataFrame(users).write_parquet)


def split_checksum(split: Split) -> str:
    """SHA-256 of a data split: user and item labels, training items in order, held-out items."""
    digest = hashlib.sha256()
    for labels in (split.user_ids, split.item_ids):
        digest.update(json.dumps(list(labels)).encode())
    for part in (split.train, split.validation, split.test):
        for numbers in part:
            digest.update(f"{len(numbers)} ".encode() + numbers.astype("<i8").tobytes())
    return digest.hexdigest()


def write_user_metrics(folder: Path, split: Split, outcome: SeedOutcome) -> None:
    """Write one seed's metrics of every user, which paired tests need, and the ranks of all test
    items."""
    users = list(split.user_ids)
    frames = [
        pl.DataFrame({"user": users, **values, "round": round, "ranking": ranking})
        for (round, ranking), values in outcome.per_user.items()
    ]
    write_atomically(folder / "users.parquet", pl.concat(frames).write_parquet)
    user = pl.Series(users)[owners(split.test.indptr)]
    item = pl.Series(list(split.item_ids))[split.test.items]
    ranks = [
        pl.DataFrame({"user": user, "item": item, "rank": one, "round": round, "ranking": ranking})
        for (round, ranking), one in outcome.ranks.items()
    ]
    write_atomically(folder / "ranks.parquet", pl.concat(ranks).write_parquet)


def write_result(folder: Path, result: Result) -> None:
    """Write ``result.json``, which marks the run as finished."""
    header = {"format": RESULT_FORMAT, "version": VERSION}
    write_json(folder / "result.json", header | result.to_json())


def read_header(folder: Path) -> dict[str, Any]:
    """Read and check ``run.json`` (specification, command, versions) of a run folder."""
    header = read_json(folder / "run.json", RUN_FORMAT, VERSION)
    if not isinstance(header.get("spec"), dict) or "split_sha256" not in header:
        raise UnskewError(
            f"{folder / 'run.json'} does not say what was run; restore it or run again."
        )
    return header


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
    try:
        return [int(seed) for seed in read_header(folder)["spec"]["seeds"]]
    except (KeyError, TypeError, ValueError):
        raise UnskewError(
            f"{folder / 'run.json'} does not say which seeds were run; restore it or run again."
        ) from None


def read_result(folder: Path) -> Result:
    """Read the results of a finished run."""
    read_header(folder)
    path = folder / "result.json"
    if not path.exists():
        raise UnskewError(f"The run in {folder} is not finished; `unskew resume {folder}` ends it.")
    values = read_json(path, RESULT_FORMAT, VERSION)
    del values["format"], values["version"]
    return Result.from_json(values, path)


def read_rounds(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Read the records of all rounds (losses, metrics, seconds, bytes), by seed."""
    seeds = read_seeds(folder)
    return {seed: read_json_lines(folder / f"seed-{seed}" / "rounds.jsonl") for seed in seeds}


def read_users(folder: Path, round: str = "best", ranking: str | None = None) -> pl.DataFrame:
    """Read every user's metrics at the "best" or "last" round, averaged over seeds. ``ranking`` is
    "all" (unseen items) or "sampled" (candidates); by default "all" if the run has it."""
    paths = [folder / f"seed-{seed}" / "users.parquet" for seed in read_seeds(folder)]
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
    rounds, outcomes = read_rounds(folder), []
    for at, seed in enumerate(result.seeds):
        users = _read_frame(folder / f"seed-{seed}" / "users.parquet", "user", "round", "ranking")
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
                _read_ranks(folder / f"seed-{seed}" / "ranks.parquet"),
            )
        )
    return outcomes


def _read_ranks(path: Path) -> dict[tuple[str, str], Int32]:
    """Read the ranks of all test items; runs of older versions have none."""
    if not path.exists():
        return {}
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
    state = Checkpoints(folder / f"seed-{federation.seed}" / "state").load(federation)
    if state is None:
        raise UnskewError(
            f"The run in {folder} has no model yet; `unskew resume {folder}` trains it."
        )
    return Recommender(federation.method, federation.split, state.best_devices, federation.seed)


def read_split(folder: Path, spec: RunSpec) -> Split:
    """Read the labels, titles and item lists of a saved run. They are enough to recommend."""
    items = _read_frame(folder / "items.parquet", "item", "title")
    users = _read_frame(folder / "users.parquet", "user", "seen", "validation", "test")
    seen, validation, test = (_ragged(users[part]) for part in ("seen", "validation", "test"))
    # Folders of earlier versions have no column `train`: the training items in order of time.
    train = _ragged(users["train"]) if "train" in users.columns else seen
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
    if not (folder / f"seed-{spec.seeds[0]}" / "state" / "current.json").exists():
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
