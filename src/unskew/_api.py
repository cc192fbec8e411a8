"""Functions for scripts and notebooks: train a model, sweep settings, open and compare runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unskew import runs
from unskew.data import load, load_split
from unskew.evaluation import CUTOFFS, PROTOCOLS, EvaluationProtocol, OwnMetric, prepare
from unskew.files import write_text
from unskew.kernels import get_threads, set_threads
from unskew.methods import admit_method, describe_methods, short_name
from unskew.privacy import LocalPrivacy
from unskew.report import FinishedRun, render
from unskew.runs import Comparison, OnRound, Run, RunSpec, Sweep, Tracking
from unskew.types import Interactions, Split, UnskewError


def fit(
    method: Any = "fednext",
    data: Any = "demo",
    *,
    protocol: str | EvaluationProtocol = "leak-free",
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    k: Sequence[int] = CUTOFFS,
    metrics: Mapping[str, OwnMetric] | None = None,
    ldp: LocalPrivacy | Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool = False,
    on_round: OnRound | None = None,
    track: str | Sequence[str] = (),
    track_dir: str | Path | None = None,
    evaluate_every: int = 1,
    evaluate_users: int | None = None,
    state_on_disk: bool | None = None,
    **settings: Any,
) -> Run:
    """Train a federation and evaluate it.

    ``method`` is a name, a class, an object, or ``"package.module:Class"``. ``data`` is the result
    of `unskew.load`, or anything that it takes: a name, a path, a data frame, a list of tuples; or
    a `Split`. ``settings`` are the method's (``rounds=100``, ``dim=16`` ...). With ``out``, the run
    is saved in that folder with checkpoints; otherwise everything stays in memory. Returns a `Run`:
    ``metrics`` are the means over seeds at the round with the best validation NDCG@10,
    ``summary()`` has all results.

    ``protocol`` is the name of a protocol or an `EvaluationProtocol`. ``k`` are the cut-offs of
    metrics. ``metrics`` maps names of custom metrics to functions. Such a function gets the ranks
    and the labels of one user's held-out items and returns a number.

    ``ldp`` clips uploads and adds noise, for example ``{"noise": 0.5, "clip": 1.0}``. ``threads``
    limits the threads of this call (0: one per core) and changes no result. ``progress`` shows how
    far training is. ``on_round`` is called after every round with the seed, a dict of the round's
    loss, metrics, seconds and bytes, and the number of rounds. ``track`` names experiment trackers
    (``"tensorboard"``, ``"mlflow"``, ``"wandb"``), which write to ``track_dir`` (default: the
    folder ``track`` of the run). ``evaluate_every`` is the number of rounds between evaluations;
    ``evaluate_users`` of the users, drawn once, are evaluated in rounds, and everybody at the end.
    ``state_on_disk`` keeps devices' private state in mapped files: always (True), never (False), or
    what does not fit into half of the available memory (default).
    """
    given = data if isinstance(data, Interactions | Split) else load(data)
    spec = _spec(method, given, protocol, seeds, ldp, settings, k)
    spec = replace(spec, evaluate_every=evaluate_every, evaluate_users=evaluate_users)
    label = f"{short_name(spec.method)} on {spec.data}"
    folder = None if out is None else Path(out)
    kinds = [track] if isinstance(track, str) else list(track)
    with _threads(threads), _progress(progress, label, len(spec.seeds)) as shown:
        return run_tracked(
            spec,
            given,
            out=folder,
            metrics=metrics,
            on_round=_both(shown, on_round),
            track=kinds,
            track_dir=None if track_dir is None else Path(track_dir),
            state_on_disk=state_on_disk,
        )


def run_tracked(
    spec: RunSpec,
    data: Interactions | Split,
    *,
    out: Path | None,
    track: Sequence[str] = (),
    track_dir: Path | None = None,
    **options: Any,
) -> Run:
    """Train a run as `runs.run` does and log it to experiment trackers: settings, the metrics of
    each round, final metrics, and the HTML report as an artifact."""
    with Tracking(track, out, track_dir, spec) as tracking:
        finished = runs.run(spec, data, out=out, tracking=tracking, **options)
        if tracking.folder is not None:
            page = tracking.folder / "report.html"
            write_text(page, render([FinishedRun(finished.result(), finished.curves())]))
            tracking.finish(finished.metrics, page)
    return finished


def sweep(
    method: Any,
    data: Any,
    grid: Mapping[str, Sequence[Any]],
    *,
    protocol: str | EvaluationProtocol = "leak-free",
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    k: Sequence[int] = CUTOFFS,
    metrics: Mapping[str, OwnMetric] | None = None,
    ldp: LocalPrivacy | Mapping[str, Any] | None = None,
    threads: int | None = None,
    progress: bool = False,
    **settings: Any,
) -> Sweep:
    """Train a method with every combination of the settings in ``grid``, such as
    ``{"dim": [8, 16], "rounds": [20, 50]}``; other arguments are those of `unskew.fit`.

    Returns a `Sweep`: ``to_frame()`` has a row per combination, ``best`` is the run with the
    highest validation NDCG@10, ``plot()`` draws all runs. With ``out``, every run is saved in a
    subfolder of this folder.
    """
    given = data if isinstance(data, Interactions | Split) else load(data)
    spec = _spec(method, given, protocol, seeds, ldp, settings, k)
    label = f"{short_name(spec.method)} on {spec.data}"
    folder = None if out is None else Path(out)
    with _threads(threads), _progress(progress, label, len(spec.seeds)) as shown:
        return runs.sweep(spec, given, grid, out=folder, on_round=shown, metrics=metrics)


def compare(*compared: Run | str | Path, metric: str = "ndcg@10") -> Comparison:
    """Compare runs (`Run` objects or their folders) with the first one by paired tests over users.

    Returns a `Comparison`, which a notebook shows as a table, with ``to_frame()``,
    ``to_markdown()`` and ``to_latex()``. The methods' code and the training data are not needed.
    """
    return runs.compare(compared, metric)


def list_methods() -> dict[str, str]:
    """Names of all methods with their summaries, including methods that installed packages add."""
    return {method["name"]: method["summary"] for method in describe_methods()}


def open_run(folder: str | Path, *, method: Any = None) -> Run:
    """Open a finished run that was saved in a folder: the same object that `unskew.fit` returns.
    Models are loaded when they are needed; the training data is not.

    ``method`` is the class of the run's method. It is needed if neither this package nor an
    installed one has the method, for example if its class was made in a notebook, because a saved
    run alone never decides which code is imported.
    """
    return runs.open_run(Path(folder), method)


def split_from_frames(
    train: Any,
    validation: Any = None,
    test: Any = None,
    *,
    protocol: str | EvaluationProtocol = "leak-free",
    **options: Any,
) -> Split:
    """Make a `Split` from your training, validation and test tables (frames, files, tuples).

    ``protocol`` says which negatives training may draw and what is ranked. ``options`` are those of
    `unskew.load_split`: ``columns``, ``items``, ``name``, ``skip_bad_rows`` ... A (user,
    item) pair in two tables is an error, and so is a held-out item that is not in training.
    """
    return prepare(load_split(train, validation, test, **options), protocol)


def _spec(
    method: Any,
    data: Interactions | Split,
    protocol: str | EvaluationProtocol,
    seeds: Sequence[int],
    ldp: LocalPrivacy | Mapping[str, Any] | None,
    settings: Mapping[str, Any],
    k: Sequence[int] = CUTOFFS,
) -> RunSpec:
    name, own_settings = admit_method(method)
    if isinstance(ldp, Mapping):
        ldp = RunSpec.from_mapping({"method": name, "ldp": ldp}).ldp
    if isinstance(data, Split) and isinstance(protocol, str):
        protocol = data.protocol
    return RunSpec(
        name,
        {**own_settings, **settings},
        data.data if isinstance(data, Split) else data.name,
        seeds=tuple(seeds),
        ldp=ldp,
        cutoffs=tuple(k),
        **_protocol_fields(protocol),
    )


def _protocol_fields(protocol: str | EvaluationProtocol) -> dict[str, Any]:
    """Fields of ``RunSpec`` for a protocol: its name, and its rules if it is a custom protocol."""
    if isinstance(protocol, str) or PROTOCOLS.get(protocol.name) == protocol:
        return {"protocol": protocol if isinstance(protocol, str) else protocol.name}
    if protocol.name in PROTOCOLS:
        raise UnskewError(f"{protocol.name} is a protocol with other rules; name yours otherwise.")
    rules = asdict(protocol)
    return {"protocol": rules.pop("name"), "rules": rules}


@contextmanager
def _threads(threads: int | None) -> Iterator[None]:
    """Set the number of threads of compiled code within a ``with`` block; None changes nothing."""
    before = get_threads()
    if threads is not None:
        set_threads(threads)
    try:
        yield
    finally:
        if threads is not None:
            set_threads(before)


@contextmanager
def _progress(shown: bool, label: str, n_seeds: int) -> Iterator[OnRound | None]:
    """Yield a callback that shows training progress as a bar or as lines; None unless ``shown``."""
    if not shown:
        yield None
        return
    from unskew.cli._output import RoundProgress

    with RoundProgress(label, n_seeds) as progress:
        yield progress


def _both(first: OnRound | None, second: OnRound | None) -> OnRound | None:
    """Combine two optional callbacks into one that calls both; None if there is neither."""
    wanted = [callback for callback in (first, second) if callback is not None]

    def call(seed: int, row: dict[str, Any], rounds: int) -> None:
        for callback in wanted:
            callback(seed, row, rounds)

    return call if wanted else None
