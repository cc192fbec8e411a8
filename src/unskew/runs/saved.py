"""Opening a run folder again: to recommend, compare and report, without the training set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unskew.engine import Federation
from unskew.files import read_json, read_json_lines
from unskew.ragged import indptr_from_counts
from unskew.runs.recommender import Recommender, saved_recommender
from unskew.runs.runner import (
    RESULT_FORMAT,
    VERSION,
    read_frame,
    read_header,
    read_spec,
)
from unskew.types import Ragged, Split, UnskewError

_FIGURES = (
    *("method", "settings", "data", "protocol", "seeds", "rounds", "best_rounds", "ranking"),
    *("metrics", "last_round", "seconds_per_round", "bytes_up", "bytes_down", "notes"),
)
"""What tables and reports of a run cannot do without."""


def read_result(folder: Path) -> dict[str, Any]:
    """The figures of a finished run."""
    read_header(folder)
    if not (folder / "result.json").exists():
        raise UnskewError(f"The run in {folder} is not finished; `unskew resume {folder}` ends it.")
    result = read_json(folder / "result.json", RESULT_FORMAT, VERSION)
    lacking = [name for name in _FIGURES if name not in result]
    if lacking:
        raise UnskewError(
            f'{folder / "result.json"} has no "{lacking[0]}"; restore it or run again.'
        )
    return result


def same_data(folder: Path, other: Path) -> bool | None:
    """Whether two runs had the same split; None where one does not say."""
    known = [read_header(one).get("split_sha256") for one in (folder, other)]
    return None if None in known else known[0] == known[1]


def read_rounds(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Every seed's rows, one per round."""
    spec, _ = read_spec(folder)
    return {seed: read_json_lines(folder / f"seed-{seed}" / "rounds.jsonl") for seed in spec.seeds}


def read_users(folder: Path, round: str = "best", ranking: str | None = None) -> pl.DataFrame:
    """Per-user values averaged over seeds; the protocol's headline ranking unless one is named."""
    spec, _ = read_spec(folder)
    paths = [folder / f"seed-{seed}" / "users.parquet" for seed in spec.seeds]
    frames = [read_frame(path, "user", "round", "ranking") for path in paths]
    headline = "all" if "all" in frames[0]["ranking"].unique() else "sampled"
    chosen = (pl.col("round") == round) & (pl.col("ranking") == (ranking or headline))
    metrics = [name for name in frames[0].columns if "@" in name]
    return (
        pl.concat(frames)
        .filter(chosen)
        .group_by("user", maintain_order=True)
        .agg(pl.col(metrics).mean())
    )


def open_recommender(folder: Path, seed: int | None = None) -> Recommender:
    """A saved run's model of the best validation round, ready to recommend."""
    spec, _ = read_spec(folder)
    seed = spec.seeds[0] if seed is None else seed
    if seed not in spec.seeds:
        raise UnskewError(f"The run in {folder} has seeds {list(spec.seeds)}, not {seed}.")
    split = _saved_split(folder, spec.data, spec.protocol)
    return saved_recommender(folder, Federation(spec.build(), split, seed))


def read_catalogue(folder: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The items of a saved run (item, title) and its users (user, seen, validation, test)."""
    items = read_frame(folder / "items.parquet", "item", "title")
    return items, read_frame(folder / "users.parquet", "user", "seen", "validation", "test")


def _saved_split(folder: Path, data: str, protocol: str) -> Split:
    items, users = read_catalogue(folder)
    seen, validation, test = (_ragged(users[part]) for part in ("seen", "validation", "test"))
    return Split(
        data,
        protocol,
        users["user"].to_list(),
        items["item"].to_list(),
        items["title"].to_list(),
        seen,
        seen,
        seen,
        validation,
        test,
        np.zeros((len(users), 0), np.int32),
        protocol != "paper",
    )


def _ragged(lists: pl.Series) -> Ragged:
    indptr = indptr_from_counts(lists.list.len().to_numpy())
    items = lists.explode().drop_nulls().to_numpy().astype(np.int32)
    return Ragged(indptr, items)
