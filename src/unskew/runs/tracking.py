"""Send a run to an experiment tracker: settings, a line per round, final metrics, the report.

Trackers are extras: ``pip install 'unskew[track]'`` brings TensorBoard and MLflow; Weights & Biases
needs ``wandb`` and works offline unless its own settings say otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from unskew.types import UnskewError

Figures = Mapping[str, float]


class Tracker(Protocol):
    """What a tracker is told. Steps are rounds; names of figures begin with the seed."""

    def settings(self, values: Mapping[str, Any]) -> None:
        """The specification of the run, once, before the first round."""

    def figures(self, values: Figures, round: int) -> None:
        """Figures of a round."""

    def finish(self, metrics: Figures, report: Path | None) -> None:
        """The final metrics, and the HTML report if there is one."""


class TensorBoard:
    """Event files in a folder, read by ``tensorboard --logdir``."""

    def __init__(self, folder: Path, name: str) -> None:
        self._writer = _load("tensorboardX", "tensorboard").SummaryWriter(str(folder / name))

    def settings(self, values: Mapping[str, Any]) -> None:
        lines = (f"    {key} = {value}" for key, value in values.items())
        self._writer.add_text("settings", "\n".join(lines))

    def figures(self, values: Figures, round: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)

    def finish(self, metrics: Figures, report: Path | None) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(f"final/{name}", value, 0)
        if report is not None:
            self._writer.add_text("report", str(report))
        self._writer.close()


class MLflow:
    """A run in MLflow's store; without ``MLFLOW_TRACKING_URI`` an SQLite file in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        client = _load("mlflow.tracking", "mlflow").MlflowClient
        folder.mkdir(parents=True, exist_ok=True)
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder / 'mlflow.db'}"
        self._client = client(tracking_uri=store)
        experiment = self._client.get_experiment_by_name("unskew")
        number = (
            experiment.experiment_id if experiment else self._client.create_experiment("unskew")
        )
        self._run = self._client.create_run(number, run_name=name).info.run_id

    def settings(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            self._client.log_param(self._run, key, value)

    def figures(self, values: Figures, round: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, _plain(name), value, step=round)

    def finish(self, metrics: Figures, report: Path | None) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run, _plain(f"final/{name}"), value)
        if report is not None:
            self._client.log_artifact(self._run, str(report))
        self._client.set_terminated(self._run)


class WandB:
    """A run of Weights & Biases, written to a folder unless ``WANDB_MODE`` says otherwise."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        mode = os.environ.get("WANDB_MODE", "offline")
        module = _load("wandb", "wandb")
        self._run = module.init(project="unskew", name=name, dir=str(folder), mode=mode)

    def settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values))

    def figures(self, values: Figures, round: int) -> None:
        self._run.log(dict(values) | {"round": round})

    def finish(self, metrics: Figures, report: Path | None) -> None:
        self._run.summary.update({f"final/{name}": value for name, value in metrics.items()})
        if report is not None:
            self._run.save(str(report), policy="now")
        self._run.finish()


TRACKERS: dict[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def open_tracker(kind: str, folder: Path, name: str) -> Tracker:
    """A tracker by its name; ``folder`` is where it writes, ``name`` what it calls the run."""
    if kind not in TRACKERS:
        raise UnskewError(f'There is no tracker "{kind}"; choose one of {", ".join(TRACKERS)}.')
    return TRACKERS[kind](folder, name)


def round_figures(seed: int, row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a round's row with flat names, such as ``seed-0/validation/ndcg@10``."""
    flat: dict[str, float] = {}
    for name, value in row.items():
        parts = value.items() if isinstance(value, Mapping) else (("", value),)
        for part, figure in parts:
            if isinstance(figure, int | float) and name != "round":
                flat[f"seed-{seed}/{name}{'/' if part else ''}{part}"] = float(figure)
    return flat


def _plain(name: str) -> str:
    """MLflow's names have no @."""
    return name.replace("@", "_at_")


def _load(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        needed = "wandb" if package == "wandb" else "'unskew[track]'"
        raise UnskewError(
            f"Tracking with {package} needs a package that is missing: pip install {needed}."
        ) from None
