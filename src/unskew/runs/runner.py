"""Train a run, one model per seed, with checkpoints in a folder or only in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import sources
from unskew.engine import (
    MAX_CHUNK_CLIENTS,
    STATE_SHARE,
    Checkpoints,
    Cluster,
    Federation,
    Loaded,
    RayFederation,
    Recommender,
    State,
    Worker,
    return_freed,
)
from unskew.evaluation import OwnMetric, prepare
from unskew.files import write_json_lines
from unskew.methods import admit_method
from unskew.privacy import (
    Mechanism,
    PrivateUploads,
    calibrated_noise,
    compositions,
    privacy_report,
)
from unskew.runs.finished import Run, combined_result
from unskew.runs.folder import (
    checkpoints_of,
    open_folder,
    split_checksum,
    write_result,
    write_seed,
)
from unskew.runs.results import seed_outcome, versions
from unskew.runs.spec import RunSpec
from unskew.runs.tracking import Tracking
from unskew.types import Interactions, Method, Model, Split

OnRound = Callable[[int, dict[str, Any], int], None]
"""Callback after every round: seed, the round's row, total number of rounds."""


def run(
    spec: RunSpec,
    data: Interactions | Split,
    *,
    out: Path | None = None,
    resume: bool = False,
    on_round: OnRound | None = None,
    tracking: Tracking | None = None,
    command: str = "",
    chunk: int = MAX_CHUNK_CLIENTS,
    metrics: Mapping[str, OwnMetric] | None = None,
    state_on_disk: bool | None = None,
    cluster: Cluster | None = None,
    data_dir: Path | None = None,
) -> Run:
    """Train and evaluate every seed. With ``out``, save results and checkpoints in this folder.

    With ``resume``, continue the run in ``out``. The result is bit-identical to that of a run that
    was never stopped. ``tracking`` sends every round to experiment trackers. ``command`` is
    the command line to record in the result. ``chunk`` is the number of clients trained at a time.
    ``metrics`` are custom metrics: functions by name. ``state_on_disk`` says whether devices'
    private state is kept in mapped files; by default, what of it does not fit in memory.
    ``cluster`` trains on Ray, to the same bits. Its workers load the data that ``spec`` names, with
    ``data_dir``.
    """
    split = data if isinstance(data, Split) else prepare(data, spec.evaluation)
    split = _note_missing_refresh(split, spec.build())
    if out is not None:
        open_folder(out, spec, split, resume, command)
    outcomes, recommenders, accounts, notes = [], {}, [], list[str]()
    mechanism = noise_mechanism(spec, split)
    with _workers(cluster, spec, split, data_dir, state_on_disk, chunk) as workers:
        for seed in spec.seeds:
            transform = private_uploads(spec, split, mechanism)
            options: dict[str, Any] = {
                "transform": transform,
                "evaluate_every": spec.evaluate_every,
                "evaluate_users": spec.evaluate_users,
            }
            if workers is not None:
                federation: Federation = RayFederation(
                    workers, spec.build(), split, seed, **options
                )
            else:
                options |= {"chunk": chunk, "state_on_disk": state_on_disk}
                federation = Federation(spec.build(), split, seed, **options)
            checkpoints = None if out is None else checkpoints_of(out, seed)
            state = _train(federation, checkpoints, on_round, transform, tracking)
            notes += _notes_on_state(state, checkpoints, True if workers else state_on_disk)
            outcomes.append(seed_outcome(seed, state, split, spec.cutoffs, metrics or {}))
            if mechanism is not None:
                accounts.append(privacy_account(spec, mechanism, federation, state.rows))
            if out is None:
                recommenders[seed] = Recommender(federation.method, split, state.best_devices, seed)
            else:
                write_seed(out, seed, split, outcomes[-1])
            # The models of a saved run leave memory: many seeds need no more of it than one.
            del state
            return_freed()
    split = replace(split, notes=(*split.notes, *notes))
    result = combined_result(spec, split, outcomes, accounts, out, command)
    if out is not None:
        write_result(out, result)
    return Run(spec, split, outcomes, recommenders, out, result)


@contextmanager
def _workers(
    cluster: Cluster | None,
    spec: RunSpec,
    split: Split,
    data_dir: Path | None,
    state_on_disk: bool | None,
    chunk: int,
) -> Iterator[list[Worker] | None]:
    """Yield the workers of a Ray cluster, which have loaded the run's data; None without one."""
    if cluster is None:
        yield None
        return
    folder = data_dir or os.environ.get("UNSKEW_DATA")  # a worker has another environment
    whole = None if not folder else Path(folder).absolute()
    load, here = partial(load_run, _with_whole_paths(spec), whole), _loaded(spec, split)
    with cluster.workers(load, here, state_on_disk=state_on_disk, chunk=chunk) as workers:
        yield workers


def load_run(spec: Mapping[str, Any], data_dir: Path | None) -> Loaded:
    """Load a run in another process: ``spec`` is its specification as a JSON object. Its method was
    chosen by whoever started the run, so a path to it is imported."""
    admit_method(spec["method"])
    read = RunSpec.from_mapping(spec)
    return _loaded(read, prepare(read.load(data_dir), read.evaluation))


def _loaded(spec: RunSpec, split: Split) -> Loaded:
    return Loaded(spec.build, split, {**versions(), "data": split_checksum(split)})


def _with_whole_paths(spec: RunSpec) -> dict[str, Any]:
    """The specification as a JSON object, with absolute paths: other processes may be started in
    other folders."""
    values, names = spec.to_json(), {source.name for source in sources()}
    for name in ("data", "train", "validation", "test", "titles", "item_features"):
        path = values.get(name)
        if path is not None and path not in names and Path(path).exists():
            values[name] = str(Path(path).absolute())
    return values


def _note_missing_refresh(split: Split, method: Method) -> Split:
    """Add a note to the split if its protocol lets histories grow after validation and the method
    cannot refresh its users' states with the new items."""
    if not split.validation_in_history or type(method).refresh is not Model.refresh:
        return split
    note = f"{method.name} tests with the states it trained: it would have to train for newer items"
    return replace(split, notes=(*split.notes, note))


def _train(
    federation: Federation,
    checkpoints: Checkpoints | None,
    on_round: OnRound | None,
    transform: PrivateUploads | None,
    tracking: Tracking | None,
) -> State:
    rounds = federation.method.config.rounds

    def after_round(state: State, row: dict[str, Any]) -> None:
        if transform is not None:
            # In the round's row, so that a resumed run's account covers all rounds.
            row["ldp"] = transform.round_figures()
        if checkpoints is not None:
            write_json_lines(checkpoints.folder.path.parent / "rounds.jsonl", state.rows)
        if tracking is not None:
            tracking.rounds(federation.seed, state.rows)
        if on_round is not None:
            on_round(federation.seed, row, rounds)

    state = federation.run(checkpoints=checkpoints, on_round=after_round)
    if tracking is not None:  # a seed that was trained before a run is resumed
        tracking.rounds(federation.seed, state.rows)
    return state


def _notes_on_state(
    state: State, checkpoints: Checkpoints | None, state_on_disk: bool | None
) -> list[str]:
    """What the user should know: checkpoints that were damaged, and state that went to the disk by
    itself."""
    notes = [checkpoints.damage] if checkpoints is not None and checkpoints.damage else []
    if state_on_disk is None and state.devices.bytes_on_disk:
        notes.append(
            f"private state larger than {STATE_SHARE:.0%} of the available memory was kept on disk "
            f"({state.devices.bytes_on_disk / 2**30:.3g} GB written)"
        )
    return notes


def noise_mechanism(spec: RunSpec, split: Split) -> Mechanism | None:
    """Noise and clipping that a private run applies to uploads; None if uploads are sent unchanged.

    If the specification gives a privacy budget (epsilon) in place of the noise, the noise is chosen
    so that the budget holds even for the client that takes part in more rounds than any other, in
    the seed where this number is largest.
    Which clients take part depends on the seed alone, never on the data.
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
    """Privacy guarantees of a run's training with one seed, as a JSON object, computed from the
    records of its rounds."""
    assert spec.ldp is not None
    cohorts = [federation.cohort_of(row["round"]) for row in rows]
    counts = compositions(cohorts, rows, federation.split.n_users)
    return privacy_report(spec.ldp, mechanism, counts, rows)
