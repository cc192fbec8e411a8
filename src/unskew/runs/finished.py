"""A finished run: its metrics, history and models, as text, data frames or a chart."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from unskew.display import Cell, Chart, Panel, Table, draw_figure, mean_line, to_plain_html
from unskew.engine import Federation, Recommender
from unskew.methods import short_name
from unskew.runs.results import (
    Result,
    SeedOutcome,
    Summary,
    bytes_per_client,
    bytes_per_device,
    combined_checksum,
    flat_figures,
    metric_label,
    peak_memory_mb,
    summaries,
    versions,
)
from unskew.runs.saved import load_recommender, read_outcomes, read_result, read_spec, read_split
from unskew.runs.spec import RunSpec
from unskew.types import Split, UnskewError

MAX_LINE = 130
"""Maximum length in characters of a line in a run's ``repr``; longer lines are shortened."""
MAX_NOTES = 2
"""Maximum number of notes about the data in a run's ``repr``; ``summary()`` has all of them."""


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A finished run: its specification, its results, and its models, ready to recommend."""

    spec: RunSpec
    split: Split
    """The data as they were split. A run opened from a folder has only what recommending needs."""
    outcomes: list[SeedOutcome]
    """Results of every seed."""
    recommenders: dict[int, Recommender]
    """Models by seed. A run in memory has all of them; a saved run loads them on demand."""
    folder: Path | None
    """Where the run is saved; None if it is only in memory."""
    _result: Result

    @property
    def metrics(self) -> dict[str, float]:
        """Mean over seeds of every test metric at the best validation round."""
        return {name: summary.mean for name, summary in self._result.metrics.items()}

    @property
    def history(self) -> pl.DataFrame:
        """A row per seed and round: loss, seconds, bytes, and metrics such as
        ``validation/ndcg@10``."""
        rows = [
            {"seed": outcome.seed, **flat_figures(row)}
            for outcome in self.outcomes
            for row in outcome.rows
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def per_user(self) -> pl.DataFrame:
        """A row per seed and user: test metrics at the best validation round, among the candidates
        that the evaluation protocol sets. Users without held-out items have NaN."""
        ranking = "all" if self.split.rank_all else "sampled"
        frames = [
            pl.DataFrame({"user": list(self.split.user_ids), **outcome.per_user["best", ranking]})
            .with_columns(pl.lit(outcome.seed).alias("seed"))
            .select("seed", "user", pl.exclude("seed", "user"))
            for outcome in self.outcomes
        ]
        return pl.concat(frames)

    def result(self) -> Result:
        """Results of the run, summarised over all seeds."""
        return self._result

    def summary(self) -> dict[str, Any]:
        """Results as one JSON object, as ``--json`` prints and ``result.json`` holds."""
        return self._result.to_json()

    def curves(self, name: str = "validation/ndcg@10") -> list[list[float]]:
        """The column ``name`` of ``history``: for each seed, a list with one value per round."""
        return [[flat_figures(row)[name] for row in o.rows] for o in self.outcomes]

    def plot(self) -> Any:
        """Validation NDCG@10 and training loss by round, as a matplotlib ``Figure``. Lines are
        means over seeds, bands reach from the lowest to the highest seed."""
        method = short_name(self.spec.method)
        panels = tuple(
            Panel(title, "round", axis, (mean_line(method, method, self.curves(name)),))
            for title, axis, name in (
                ("Validation", "NDCG@10", "validation/ndcg@10"),
                ("Training", "loss", "loss"),
            )
        )
        return draw_figure(Chart(_title(self), panels))

    def recommender(self, seed: int | None = None) -> Recommender:
        """The model of the best round of a seed (default: the first seed), ready to recommend."""
        chosen = self.spec.seeds[0] if seed is None else seed
        if chosen not in self.spec.seeds:
            raise UnskewError(f"This run has seeds {list(self.spec.seeds)}, not {chosen}.")
        if self.folder is not None and chosen not in self.recommenders:
            federation = Federation(self.spec.build(), self.split, chosen)
            self.recommenders[chosen] = load_recommender(self.folder, federation)
        return self.recommenders[chosen]

    def recommend(self, user: str | int, k: int = 10) -> list[dict[str, Any]]:
        """The best ``k`` unseen items of a user, each with item, title and score."""
        return self.recommender().recommend(user, k)

    def recommend_all(self, k: int = 10) -> pl.DataFrame:
        """Table of the ``k`` best unseen items of every user: user, rank, item, title, score."""
        return self.recommender().recommend_all(k)

    def fold_in(self, items: Sequence[str | int], k: int = 10) -> list[dict[str, Any]]:
        """Recommend ``k`` items to a user who was not in the training data, from the labels of the
        user's ``items``, oldest first."""
        return self.recommender().fold_in(items, k)

    def __repr__(self) -> str:
        result = self._result
        main = [name for name in ("hr@10", "ndcg@10") if name in result.metrics]
        shown = main or list(result.metrics)[:2]
        figures = [f"{metric_label(name)} {_spread(result.metrics[name])}" for name in shown]
        settings = ", ".join(f"{key}={value}" for key, value in result.settings.items())
        lines = [
            _title(self),
            f"{result.users:,} users, {result.items:,} items" + f"; {settings}" * bool(settings),
            f"{_seeds(result)}, {_best_round(result)}",
            f"{', '.join(figures)} (test, {result.ranking} ranked)",
            f"saved in {self.folder}" if self.folder is not None else "in memory",
            *(f"note: {note}" for note in result.notes[:MAX_NOTES]),
        ]
        return "\n  ".join(textwrap.shorten(line, MAX_LINE, placeholder=" ...") for line in lines)

    def _repr_html_(self) -> str:
        result = self._result
        columns = ["test metric", _best_round(result), f"last round {result.rounds}"]
        rows = [
            [Cell(metric_label(name)), Cell(_spread(best)), Cell(_spread(result.last_round[name]))]
            for name, best in result.metrics.items()
        ]
        place = "in memory" if self.folder is None else f"saved in {self.folder}"
        notes = [f"{_seeds(result)}; {result.ranking} ranked; {place}.", *result.notes]
        return to_plain_html(Table.of(columns, rows, title=_title(self), notes=notes))


def _title(run: Run) -> str:
    return (
        f"{short_name(run.spec.method)} on {Path(run.spec.data).name}, protocol {run.spec.protocol}"
    )


def _seeds(result: Result) -> str:
    return f"seed{'s' * (len(result.seeds) > 1)} {', '.join(map(str, result.seeds))}"


def _best_round(result: Result) -> str:
    best = ", ".join(map(str, sorted(set(result.best_rounds))))
    return f"best round {best} of {result.rounds}"


def _spread(metric: Summary) -> str:
    return Cell.over_seeds(metric).line


def open_run(folder: Path, method: Any = None) -> Run:
    """Open a finished run that was saved in a folder. The training data is not needed. ``method``
    is its class, needed if the method is neither of this package nor of an installed one."""
    spec, _ = read_spec(folder, method)
    result = read_result(folder)
    split = read_split(folder, spec)
    return Run(spec, split, read_outcomes(folder, result), {}, folder, result)


def combined_result(
    spec: RunSpec,
    split: Split,
    outcomes: Sequence[SeedOutcome],
    accounts: Sequence[dict[str, Any]],
    folder: Path | None,
    command: str,
) -> Result:
    """Summarise the outcomes of all seeds. ``accounts`` are the privacy guarantees of the seeds,
    empty unless uploads are clipped or noisy."""
    checksums = [outcome.model_sha256 for outcome in outcomes]
    rows = [row for outcome in outcomes for row in outcome.rows]
    evaluations = [row["evaluation_seconds"] for row in rows if row.get("evaluated")]
    privacy = None
    if accounts:  # the account of the seed with the busiest client covers the run
        privacy = max(accounts, key=lambda account: account["rounds"]["worst_client"])
    return Result(
        method=spec.method,
        settings=dict(spec.settings),
        data=spec.data,
        protocol=spec.protocol,
        seeds=list(spec.seeds),
        rounds=max(len(outcome.rows) for outcome in outcomes),
        best_rounds=[outcome.best_round for outcome in outcomes],
        ranking="all unseen items"
        if split.rank_all
        else f"{split.sampled.shape[1]} sampled candidates",
        users=split.n_users,
        items=split.n_items,
        metrics=summaries([outcome.best for outcome in outcomes]),
        last_round=summaries([outcome.last for outcome in outcomes]),
        sampled99=summaries([outcome.best_sampled for outcome in outcomes]),
        sampled99_last_round=summaries([outcome.last_sampled for outcome in outcomes]),
        seconds_per_round=statistics.median(row["seconds"] for row in rows),
        evaluation_seconds_per_round=statistics.median(evaluations) if evaluations else None,
        peak_rss_mb=peak_memory_mb(),
        bytes_up=bytes_per_client(outcomes, "bytes_up"),
        bytes_down=bytes_per_client(outcomes, "bytes_down"),
        total_bytes_up=bytes_per_device(outcomes, "bytes_up", split.n_users),
        total_bytes_down=bytes_per_device(outcomes, "bytes_down", split.n_users),
        model_sha256=combined_checksum(checksums),
        model_sha256_per_seed=checksums,
        versions=versions(),
        command=command,
        notes=list(split.notes),
        run_dir=None if folder is None else str(folder),
        privacy=privacy,
    )
