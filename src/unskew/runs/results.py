"""What a run found: per seed, and over seeds as mean, standard deviation and values."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from unskew.engine import State, model_checksum
from unskew.evaluation import coverage, popularity
from unskew.types import Float64, Split

Summary = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SeedOutcome:
    """One seed's figures. ``best`` is the round with the best validation NDCG@10."""

    seed: int
    best_round: int
    rows: list[dict[str, Any]]
    best: dict[str, float]
    last: dict[str, float]
    best_sampled: dict[str, float]
    last_sampled: dict[str, float]
    per_user: dict[tuple[str, str], dict[str, Float64]]
    """Keyed by (round: best or last, ranking: all or sampled)."""
    model_sha256: str


def outcome_of(seed: int, state: State, split: Split) -> SeedOutcome:
    boards = {"best": state.best_scoreboard, "last": state.scoreboard}
    means = {}
    for name, board in boards.items():
        means[name] = board.means("test") | {
            "coverage@10": coverage(board.top, split.n_items),
            "popularity@10": popularity(board.top, split.train, split.n_items),
        }
    return SeedOutcome(
        seed,
        state.best_round,
        state.rows,
        means["best"],
        means["last"],
        state.best_scoreboard.means("test", "sampled"),
        state.scoreboard.means("test", "sampled"),
        {
            (name, ranking): board.per_user("test", ranking)
            for name, board in boards.items()
            for ranking in board.rankings
        },
        model_checksum(state),
    )


def summarise(values: list[dict[str, float]]) -> Summary:
    """Mean, standard deviation and the values themselves, per metric."""
    return {
        metric: {
            "mean": statistics.fmean(v[metric] for v in values),
            "std": statistics.stdev([v[metric] for v in values]) if len(values) > 1 else 0.0,
            "values": [v[metric] for v in values],
        }
        for metric in values[0]
    }


def per_client(outcomes: list[SeedOutcome], field: str) -> float:
    """Bytes per participating client and round, averaged over rounds and seeds."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    total, clients = (sum(row[name] for row in rows) for name in (field, "clients"))
    return float(total / clients)
