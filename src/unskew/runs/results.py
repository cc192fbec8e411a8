"""Results of a run: metrics per seed, and summaries over seeds that are saved as JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from unskew.engine import State, model_checksum
from unskew.evaluation import (
    CUTOFFS,
    MAIN_CUTOFF,
    OwnMetric,
    coverage,
    mean_metrics,
    own_metrics,
    per_user,
    popularity,
)
from unskew.types import Float64, Int32, Split, UnskewError


@dataclass(frozen=True)
class SeedOutcome:
    """Results of one seed: metrics at its last round and at the round with the best validation
    NDCG@10."""

    seed: int
    best_round: int
    rows: list[dict[str, Any]]
    """One row per round."""
    best: dict[str, float]
    last: dict[str, float]
    best_sampled: dict[str, float]
    last_sampled: dict[str, float]
    per_user: dict[tuple[str, str], dict[str, Float64]]
    """Metrics of every user, by (round: best or last, ranking: all or sampled)."""
    model_sha256: str
    ranks: dict[tuple[str, str], Int32] = field(default_factory=dict)
    """Rank of every test item, user after user as in ``Split.test``, keyed as ``per_user``."""


def seed_outcome(
    seed: int,
    state: State,
    split: Split,
    cutoffs: Sequence[int] = CUTOFFS,
    metrics: Mapping[str, OwnMetric] | None = None,
) -> SeedOutcome:
    """Collect the metrics and the checksum of the model that was trained with one seed."""
    boards = {"best": state.best_scoreboard, "last": state.scoreboard}
    ranks: dict[tuple[str, str], Int32] = {
        (name, ranking): board.ranks["test", ranking]
        for name, board in boards.items()
        for ranking in board.rankings
    }
    ks = sorted({*cutoffs, MAIN_CUTOFF})
    values = {
        key: per_user(one, split.test.indptr, ks)
        | own_metrics(metrics or {}, one, split.test, split.item_ids)
        for key, one in ranks.items()
    }
    means = {}
    for name, board in boards.items():
        means[name] = mean_metrics(values[name, board.rankings[0]]) | {
            "coverage@10": coverage(board.top, split.n_items),
            "popularity@10": popularity(board.top, split.train, split.n_items),
        }
    return SeedOutcome(
        seed,
        state.best_round,
        state.rows,
        means["best"],
        means["last"],
        mean_metrics(values["best", "sampled"]),
        mean_metrics(values["last", "sampled"]),
        values,
        model_checksum(state),
        ranks,
    )


@dataclass(frozen=True)
class Summary:
    """One metric over seeds: mean, standard deviation (0 for a single seed) and value per seed."""

    mean: float
    std: float
    values: list[float]

    @staticmethod
    def over(values: Sequence[float]) -> Summary:
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        return Summary(statistics.fmean(values), std, list(values))


Summaries = Mapping[str, Summary]
"""A summary for every metric."""


def summaries(seeds: Sequence[Mapping[str, float]]) -> dict[str, Summary]:
    """For every metric its mean, standard deviation and values over seeds."""
    return {metric: Summary.over([seed[metric] for seed in seeds]) for metric in seeds[0]}


def summarise(seeds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """For every metric its mean, standard deviation and values over seeds, as a JSON object."""
    return {metric: dataclasses.asdict(one) for metric, one in summaries(seeds).items()}


@dataclass(frozen=True, kw_only=True)
class Result:
    """Results of a finished run, as ``--json`` prints them and ``result.json`` holds them."""

    method: str
    settings: Mapping[str, Any]
    data: str
    protocol: str
    seeds: Sequence[int]
    rounds: int
    best_rounds: Sequence[int]
    """The round with the best validation NDCG@10, per seed."""
    ranking: str
    """Candidates that held-out items are ranked among: all unseen items, or 99 sampled ones."""
    users: int
    items: int
    metrics: Summaries
    """Test metrics at the best round, ranked as ``ranking`` says."""
    last_round: Summaries
    sampled99: Summaries
    """Test metrics at the best round among 99 sampled candidates."""
    sampled99_last_round: Summaries | None = None
    seconds_per_round: float
    """Median over rounds and seeds, without evaluation."""
    evaluation_seconds_per_round: float | None = None
    """Median over the rounds with an evaluation, and seeds."""
    peak_rss_mb: float | None = None
    """Peak memory of the process in MiB; None if the system does not report it."""
    bytes_up: float | None = None
    """Bytes that a client uploads in a round it takes part in, on average."""
    bytes_down: float | None = None
    total_bytes_up: float | None = None
    """Bytes that a device uploads in the whole training, on average over all devices."""
    total_bytes_down: float | None = None
    model_sha256: str | None = None
    """Checksum of the models of all seeds."""
    model_sha256_per_seed: Sequence[str] | None = None
    versions: Mapping[str, str]
    command: str
    notes: Sequence[str]
    run_dir: str | None = None
    privacy: Mapping[str, Any] | None = None
    """The privacy account, if uploads are noisy or clipped."""

    @property
    def noise(self) -> float:
        """Scale of the noise that devices add to each uploaded value; 0 if they add none."""
        return float(self.privacy["noise"]) if self.privacy else 0.0

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object. Fields that are None are left out, except ``run_dir`` and
        ``peak_rss_mb``, which are written as null."""
        values = dataclasses.asdict(self).items()
        return {name: value for name, value in values if value is not None or name in _NULLABLE}

    @staticmethod
    def from_json(values: Mapping[str, Any], where: object) -> Result:
        """Build a result from a JSON object; ``where`` names its file in error messages."""
        read = dict(values)
        try:
            for name in _SUMMARIES & read.keys():
                read[name] = {metric: Summary(**one) for metric, one in read[name].items()}
            return Result(**read)
        except (AttributeError, TypeError) as error:
            raise UnskewError(
                f"{where} is not a whole result ({error}); restore it or run again."
            ) from None


_SUMMARIES = frozenset({"metrics", "last_round", "sampled99", "sampled99_last_round"})
"""Fields of ``Result`` that hold a ``Summary`` for each metric."""
_NULLABLE = frozenset({"run_dir", "peak_rss_mb"})
"""Fields of ``Result`` that are written as null if they have no value."""


def bytes_per_client(outcomes: Sequence[SeedOutcome], field: str) -> float:
    """Mean bytes that a participating client uploads (``field`` "bytes_up") or downloads
    ("bytes_down") in a round."""
    rows = [row for outcome in outcomes for row in outcome.rows]
    total, clients = (sum(row[name] for row in rows) for name in (field, "clients"))
    return float(total / clients)


def bytes_per_device(outcomes: Sequence[SeedOutcome], field: str, n_users: int) -> float:
    """Mean bytes that a device uploads (``field`` "bytes_up") or downloads ("bytes_down") in the
    whole training, downloads for evaluations included."""
    names = (field, f"evaluation_{field}")
    total = sum(row.get(name, 0) for outcome in outcomes for row in outcome.rows for name in names)
    return float(total / (len(outcomes) * n_users))


def flat_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers in the record of a round, nested ones with joined names such as
    ``validation/ndcg@10``."""
    flat = {}
    for name, value in row.items():
        parts = value.items() if isinstance(value, Mapping) else (("", value),)
        for part, figure in parts:
            if isinstance(figure, int | float):
                flat[f"{name}/{part}" if part else name] = figure
    return flat


def distinct_labels(results: Sequence[Result]) -> list[str]:
    """A label for each run: its method, and the settings in which runs of that method differ."""
    settings = [
        {**result.settings, **({"noise": f"{result.noise:g}"} if result.noise else {})}
        for result in results
    ]
    names = []
    for result, own in zip(results, settings, strict=True):
        same = [s for s, r in zip(settings, results, strict=True) if r.method == result.method]
        keys = sorted({key for each in same for key in each})
        differ = [key for key in keys if len({repr(each.get(key)) for each in same}) > 1]
        parts = ", ".join(f"{key}={own.get(key, 'default')}" for key in differ)
        names.append(f"{result.method} ({parts})" if parts else result.method)
    return [
        name if names.count(name) == 1 else f"{name} #{names[: at + 1].count(name)}"
        for at, name in enumerate(names)
    ]


def metric_label(name: str) -> str:
    """A metric's name for readers: ``ndcg@10`` is NDCG@10, ``recall@20`` is Recall@20. A name
    without a cut-off, such as that of a custom metric, stays as it is."""
    if "@" not in name:
        return name
    return name.capitalize() if name.partition("@")[0] in _WORDS else name.upper()


_WORDS = ("recall", "precision", "coverage", "popularity")
"""Metrics whose names are words, not abbreviations."""


def combined_checksum(checksums: Sequence[str]) -> str:
    """Checksum of a run from those of its models, one per seed: the only one, or the SHA-256 of all
    of them in the order of the seeds."""
    if len(checksums) == 1:
        return checksums[0]
    return hashlib.sha256("".join(checksums).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect results."""
    names = ("unskew", "numpy", "numba", "polars")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def peak_memory_mb() -> float | None:
    """Peak resident memory of this process in MiB; None if the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
