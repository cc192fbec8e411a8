"""Train a run, one model per seed, with checkpoints in a folder or only in memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from unskew.engine import (
    MAX_CHUNK_CLIENTS,
    Checkpoints,
    Federation,
    Recommender,
    State,
    return_freed,
)
from unskew.evaluation import prepare
from unskew.files import write_json_lines
from unskew.privacy import (
    Mechanism,
    PrivateUploads,
    calibrated_noise,
    compositions,
    privacy_report,
)
from unskew.runs.results import (
    Result,
    SeedOutcome,
    bytes_per_client,
    combined_checksum,
    peak_memory_mb,
    seed_outcome,
    summaries,
    versions,
)
from unskew.runs.saved import load_recommender, open_folder, write_result, write_user_metrics
from unskew.runs.spec import RunSpec
from unskew.types import Interactions, Split

OnRound = Callable[[int, dict[str, Any], int], None]
"""Callback after every round: seed, the round's row, total number of rounds."""


@dataclass(frozen=True)
class Run:
    """A finished run: its specification, its results, and its models, ready to recommend."""

    spec: RunSpec
    split: Split
    outcomes: list[SeedOutcome]
    recommenders: dict[int, Recommender]
    """Models by seed. A run in memory has all of them; a saved run loads them on demand."""
    folder: Path | None
    command: str
    accounts: tuple[dict[str, Any], ...] = ()
    """Privacy account of each seed, if uploads are noisy or clipped."""

    @property
    def metrics(self) -> dict[str, float]:
        """Mean over seeds of every metric at the best validation round."""
        best = summaries([outcome.best for outcome in self.outcomes])
        return {name: summary.mean for name, summary in best.items()}

    def result(self) -> Result:
        """Results of the run, summarised over all seeds."""
        outcomes, spec = self.outcomes, self.spec
        checksums = [outcome.model_sha256 for outcome in outcomes]
        privacy = None
        if self.accounts:  # the account of the seed with the busiest client covers the run
            privacy = max(self.accounts, key=lambda account: account["rounds"]["worst_client"])
        return Result(
            method=spec.method,
            settings=dict(spec.settings),
            data=spec.data,
            protocol=spec.protocol,
            seeds=list(spec.seeds),
            rounds=max(len(outcome.rows) for outcome in outcomes),
            best_rounds=[outcome.best_round for outcome in outcomes],
            ranking="all unseen items" if self.split.rank_all else "99 sampled candidates",
            users=self.split.n_users,
            items=self.split.n_items,
            metrics=summaries([outcome.best for outcome in outcomes]),
            last_round=summaries([outcome.last for outcome in outcomes]),
            sampled99=summaries([outcome.best_sampled for outcome in outcomes]),
            sampled99_last_round=summaries([outcome.last_sampled for outcome in outcomes]),
            seconds_per_round=statistics.median(
                row["seconds"] for outcome in outcomes for row in outcome.rows
            ),
            peak_rss_mb=peak_memory_mb(),
            bytes_up=bytes_per_client(outcomes, "bytes_up"),
            bytes_down=bytes_per_client(outcomes, "bytes_down"),
            model_sha256=combined_checksum(checksums),
            model_sha256_per_seed=checksums,
            versions=versions(),
            command=self.command,
            notes=list(self.split.notes),
            run_dir=None if self.folder is None else str(self.folder),
            privacy=privacy,
        )

    def summary(self) -> dict[str, Any]:
        """Results as one JSON object, as ``--json`` prints and ``result.json`` holds."""
        return self.result().to_json()

    def recommender(self, seed: int | None = None) -> Recommender:
        """The model of the best round of a seed (default: the first seed), ready to recommend."""
        chosen = self.spec.seeds[0] if seed is None else seed
        if self.folder is not None and chosen not in self.recommenders:
            federation = Federation(self.spec.build(), self.split, chosen)
            self.recommenders[chosen] = load_recommender(self.folder, federation)
        return self.recommenders[chosen]

    def recommend(self, user: str | int, k: int = 10) -> list[dict[str, Any]]:
        """The best ``k`` unseen items of a user, each with item, title and score."""
        return self.recommender().recommend(user, k)


def run(
    spec: RunSpec,
    interactions: Interactions,
    *,
    out: Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    command: str = "",
    chunk: int = MAX_CHUNK_CLIENTS,
) -> Run:
    """Train and evaluate every seed. With ``out``, save results and checkpoints in this folder.

    With ``resume``, continue the run in ``out``. The result is bit-identical to that of a run that
    was never stopped. ``command`` is recorded in the result; ``chunk`` is the number of clients
    trained at a time.
    """
    split = prepare(interactions, spec.protocol)
    if out is not None:
        open_folder(out, spec, split, resume, command)
    outcomes, recommenders, accounts = [], {}, []
    mechanism = noise_mechanism(spec, split)
    for seed in spec.seeds:
        transform = private_uploads(spec, split, mechanism)
        federation = Federation(spec.build(), split, seed, chunk=chunk, transform=transform)
        folder = None if out is None else out / f"seed-{seed}"
        state = _train(federation, folder, on_round, transform)
        outcomes.append(seed_outcome(seed, state, split))
        if mechanism is not None:
            accounts.append(privacy_account(spec, mechanism, federation, state.rows))
        if folder is None:
            recommenders[seed] = Recommender(federation.method, split, state.best_devices, seed)
        else:
            write_user_metrics(folder, split, outcomes[-1])
        # The models of a saved run leave memory: many seeds need no more of it than one.
        del state
        return_freed()
    finished = Run(spec, split, outcomes, recommenders, out, command, tuple(accounts))
    if out is not None:
        write_result(out, finished.result())
    return finished


def _train(
    federation: Federation,
    folder: Path | None,
    on_round: OnRound | None,
    transform: PrivateUploads | None,
) -> State:
    rounds = federation.method.config.rounds

    def after_round(state: State, row: dict[str, Any]) -> None:
        if transform is not None:
            # In the round's row, so that a resumed run's account covers all rounds.
            row["ldp"] = transform.round_figures()
        if folder is not None:
            write_json_lines(folder / "rounds.jsonl", state.rows)
        if on_round is not None:
            on_round(federation.seed, row, rounds)

    checkpoints = None if folder is None else Checkpoints(folder / "state")
    return federation.run(checkpoints=checkpoints, on_round=after_round)


def noise_mechanism(spec: RunSpec, split: Split) -> Mechanism | None:
    """Noise and clipping that a private run applies to uploads; None if uploads are sent unchanged.

    A privacy budget determines the noise; it holds even for the client that takes part most often
    in any seed. Participation depends on the seed alone, never on the data.
    """
    if spec.ldp is None:
        return None
    if spec.ldp.noise is not None:
        return spec.ldp.with_noise(spec.ldp.noise)
    most = 0
    for seed in spec.seeds:
        federation = Federation(spec.build(), split, seed)
        rounds = range(1, federation.method.config.rounds + 1)
        users = np.concatenate([federation.cohort_of(round) for round in rounds])
        most = max(most, int(np.bincount(users).max()))
    return spec.ldp.with_noise(calibrated_noise(spec.ldp, most))


def private_uploads(
    spec: RunSpec, split: Split, mechanism: Mechanism | None
) -> PrivateUploads | None:
    """The function that clips uploads and adds noise; None if uploads are sent unchanged."""
    if spec.ldp is None or mechanism is None:
        return None
    withheld = None
    if spec.ldp.least_users is not None:
        users = np.bincount(split.seen.items, minlength=split.n_items)
        withheld = users < spec.ldp.least_users
    return PrivateUploads(mechanism, withheld=withheld)


def privacy_account(
    spec: RunSpec, mechanism: Mechanism, federation: Federation, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Privacy guarantees of one trained seed, as JSON, computed from the records of its rounds."""
    assert spec.ldp is not None
    cohorts = [federation.cohort_of(row["round"]) for row in rows]
    counts = compositions(cohorts, rows, federation.split.n_users)
    return privacy_report(spec.ldp, mechanism, counts, rows)
