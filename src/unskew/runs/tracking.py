"""Send a run to an experiment tracker: settings, a line per round, final metrics, the report.

Each tracker is an optional dependency: ``pip install 'unskew[tensorboard]'`` (or ``mlflow``,
``wandb``). Weights & Biases works offline unless ``WANDB_MODE`` sets another mode. TensorBoard
stores values with seven digits.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from unskew.runs.results import flat_figures
from unskew.runs.spec import RunSpec
from unskew.types import UnskewError

Figures = Mapping[str, float]


class Tracker(Protocol):
    """Interface of an experiment tracker. Its steps are rounds; names of values begin with the
    seed, such as ``seed-0/loss``."""

    def settings(self, values: Mapping[str, Any]) -> None:
        """Record the specification of the run; called once, before the first round."""

    def figures(self, values: Figures, round: int) -> None:
        """Record the values (losses, metrics, seconds, bytes) of a round, by name."""

    def finish(self, metrics: Figures, report: Path) -> None:
        """Record the final metrics and the HTML report."""

    def close(self, finished: bool) -> None:
        """Close the tracker; ``finished`` is False if the run was stopped before its end."""


class TensorBoard:
    """Tracker that writes event files to a folder, which ``tensorboard --logdir`` reads."""

    def __init__(self, folder: Path, name: str) -> None:
        self._writer = _load("tensorboardX", "tensorboard").SummaryWriter(str(folder / name))

    def settings(self, values: Mapping[str, Any]) -> None:
        lines = (f"    {key} = {value}" for key, value in values.items())
        self._writer.add_text("settings", "\n".join(lines))

    def figures(self, values: Figures, round: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(_plain(name), value, round)

    def finish(self, metrics: Figures, report: Path) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(_plain(f"final/{name}"), value, 0)
        self._writer.add_text("report", str(report.resolve()))

    def close(self, finished: bool) -> None:
        self._writer.close()


class MLflow:
    """Tracker that writes a run to MLflow: to the store at ``MLFLOW_TRACKING_URI`` or, if that is
    not set, to an SQLite file in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        client = _load("mlflow.tracking", "mlflow").MlflowClient
        self._entities = _load("mlflow.entities", "mlflow")
        folder.mkdir(parents=True, exist_ok=True)
        store, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not store:
            store = f"sqlite:///{(folder / 'mlflow.db').resolve()}"
            artifacts = (folder / "artifacts").resolve().as_uri()
        self._client = client(tracking_uri=store)
        experiment = self._client.get_experiment_by_name("unskew")
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment("unskew", artifact_location=artifacts)
        )
        self._run = self._client.create_run(number, run_name=name).info.run_id

    def settings(self, values: Mapping[str, Any]) -> None:
        params = [self._entities.Param(key, str(value)) for key, value in values.items()]
        self._client.log_batch(self._run, params=params)

    def figures(self, values: Figures, round: int) -> None:
        now = int(time.time() * 1000)
        metric = self._entities.Metric
        logged = [metric(_plain(name), value, now, round) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=logged)

    def finish(self, metrics: Figures, report: Path) -> None:
        self.figures({f"final/{name}": value for name, value in metrics.items()}, 0)
        self._client.log_artifact(self._run, str(report))

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class WandB:
    """Tracker that writes a run of Weights & Biases: offline, to a folder, unless the environment
    variable ``WANDB_MODE`` sets another mode."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        module = _load("wandb", "wandb")
        self._run = module.init(project="unskew", name=name, dir=str(folder), mode=mode)

    def settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values))

    def figures(self, values: Figures, round: int) -> None:
        self._run.log(dict(values) | {"round": round})

    def finish(self, metrics: Figures, report: Path) -> None:
        self._run.summary.update({f"final/{name}": value for name, value in metrics.items()})
        self._run.save(str(report), base_path=str(report.parent), policy="now")

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""Classes of experiment trackers by name; each is created with a folder and a run's name."""


class Tracking:
    """Sends one run to several experiment trackers; closes them at the end of a ``with`` block."""

    def __init__(
        self, kinds: Sequence[str], out: Path | None, folder: Path | None, spec: RunSpec
    ) -> None:
        """``kinds`` are names of trackers, such as "mlflow". They write to ``folder`` or, if it is
        None, to the folder ``track`` in the run folder ``out``."""
        self.folder: Path | None = None
        self._trackers: list[Tracker] = []
        self._rows_sent: dict[int, int] = {}
        self._finished = False
        if not kinds:
            return
        for kind in kinds:
            if kind not in TRACKERS:
                raise UnskewError(
                    f'There is no tracker "{kind}"; choose one of {", ".join(TRACKERS)}.'
                )
        if out is None and folder is None:
            raise UnskewError("Tracking a run in memory needs a folder; give track_dir= or out=.")
        name = f"{spec.method}-{Path(spec.data).stem}".replace(":", ".")
        name = name if out is None else out.resolve().name
        root = folder if folder is not None or out is None else out / "track"
        assert root is not None
        self._trackers = [TRACKERS[kind](root, name) for kind in kinds]
        self.folder = root / name
        self.folder.mkdir(parents=True, exist_ok=True)
        for tracker in self._trackers:
            tracker.settings(_flat_settings(spec))

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, *error: object) -> None:
        for tracker in self._trackers:
            tracker.close(self._finished)

    def rounds(self, seed: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send the records of a seed's rounds, ``rows``, that have not been sent yet. A resumed run
        also sends the rounds from before it was stopped, so that the tracker has all of them."""
        for row in rows[self._rows_sent.get(seed, 0) :]:
            figures = round_figures(seed, row)
            for tracker in self._trackers:
                tracker.figures(figures, row["round"])
        self._rows_sent[seed] = len(rows)

    def finish(self, metrics: Figures, report: Path) -> None:
        """Send the final metrics and the HTML report."""
        for tracker in self._trackers:
            tracker.finish(metrics, report)
        self._finished = True


def round_figures(seed: int, row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in the record of a round, by names such as ``seed-0/validation/ndcg@10``."""
    figures = flat_figures(row).items()
    return {f"seed-{seed}/{name}": float(value) for name, value in figures if name != "round"}


def _flat_settings(spec: RunSpec) -> dict[str, str]:
    """The specification of a run as texts by joined names, such as ``settings.dim``. Fields that
    are None are left out."""
    values = spec.to_json()
    own = dataclasses.asdict(spec.build().config)
    values["settings"] = own | dict(values["settings"])
    flat: dict[str, str] = {}
    for name, value in values.items():
        parts = value.items() if isinstance(value, Mapping) else (("", value),)
        flat |= {f"{name}.{part}" if part else name: str(one) for part, one in parts}
    return {name: text for name, text in flat.items() if text != "None"}


def _plain(name: str) -> str:
    """A metric's name for TensorBoard and MLflow, without @: ``ndcg@10`` becomes ``ndcg_at_10``."""
    return name.replace("@", "_at_")


def _load(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise UnskewError(
            f"Tracking with {package} needs a package that is missing: "
            f"pip install 'unskew[{package}]'."
        ) from None
