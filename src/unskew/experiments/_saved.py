"""Opening a run folder again: to recommend, compare and report, without the training set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from unskew.engine import Checkpoints, Federation, read_json
from unskew.experiments._recommend import Recommender
from unskew.experiments._run import FORMAT, RESULT_FORMAT, VERSION, read_spec
from unskew.types import Ragged, Split, UnskewError


def read_result(folder: Path) -> dict[str, Any]:
    """The figures of a finished run."""
    if (folder / "run.json").exists() and not (folder / "result.json").exists():
        raise UnskewError(f"The run in {folder} is not finished; `unskew resume {folder}` ends it.")
    return read_json(folder / "result.json", RESULT_FORMAT, VERSION)


def read_rounds(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Every seed's rows, one per round."""
    spec, _ = read_spec(folder)
    return {
        seed: [
            json.loads(line)
            for line in (folder / f"seed-{seed}" / "rounds.jsonl").read_text().splitlines()
        ]
        for seed in spec.seeds
    }


def read_users(folder: Path, round: str = "best", ranking: str | None = None) -> pl.DataFrame:
    """Per-user values averaged over seeds; the protocol's headline ranking unless one is named."""
    spec, _ = read_spec(folder)
    frames = [pl.read_parquet(folder / f"seed-{seed}" / "users.parquet") for seed in spec.seeds]
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
    federation = Federation(spec.build(), _saved_split(folder, spec.data, spec.protocol), seed)
    current = folder / f"seed-{seed}" / "state" / "current.json"
    if not current.exists():
        raise UnskewError(
            f"The run in {folder} has no model yet; `unskew resume {folder}` trains it."
        )
    state = Checkpoints(current.parent).load(federation)
    assert state is not None
    return Recommender(federation.method, federation.split, state.best_devices, federation.seed)


def _saved_split(folder: Path, data: str, protocol: str) -> Split:
    read_json(folder / "run.json", FORMAT, VERSION)
    items = pl.read_parquet(folder / "items.parquet")
    users = pl.read_parquet(folder / "users.parquet")
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
    indptr = np.concatenate(([0], np.cumsum(lists.list.len().to_numpy()))).astype(np.int64)
    items = lists.explode().drop_nulls().to_numpy().astype(np.int32)
    return Ragged(indptr, items)
