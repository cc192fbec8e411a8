"""Train a method once for every combination of some settings."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from unskew.display import Cell, Chart, Panel, Series, Table, draw_figure, to_plain_html
from unskew.evaluation import OwnMetric
from unskew.runs.finished import Run
from unskew.runs.results import metric_label
from unskew.runs.runner import OnRound
from unskew.runs.runner import run as train
from unskew.runs.spec import RunSpec
from unskew.types import Interactions, Split, UnskewError

SELECTED_BY = "validation/ndcg@10"
"""Column of a run's history by which the best combination is chosen; never a test metric."""


@dataclass(frozen=True, repr=False)
class Sweep:
    """Runs with every combination of settings; the best one is chosen by validation NDCG@10."""

    names: tuple[str, ...]
    """Names of the settings that differ."""
    values: tuple[tuple[Any, ...], ...]
    """Their values, for each run."""
    runs: tuple[Run, ...]

    @property
    def best(self) -> Run:
        """The run with the highest validation NDCG@10, averaged over seeds."""
        return self.runs[self._best_number()]

    def to_frame(self) -> pl.DataFrame:
        """A row per combination: settings, validation NDCG@10 at its best round, and the test
        metrics at the same round."""
        rows = [
            dict(zip(self.names, values, strict=True)) | {SELECTED_BY: _selected(run)} | run.metrics
            for values, run in zip(self.values, self.runs, strict=True)
        ]
        return pl.DataFrame(rows, infer_schema_length=None)

    def plot(self) -> Any:
        """Validation NDCG@10 of every combination, as a matplotlib ``Figure``: against the first
        setting, with a line for each combination of the other settings."""
        lines: dict[str, list[tuple[Any, float]]] = {}
        for values, run in zip(self.values, self.runs, strict=True):
            rest = zip(self.names[1:], values[1:], strict=True)
            label = ", ".join(f"{name}={value}" for name, value in rest) or run.spec.method
            lines.setdefault(label, []).append((values[0], _selected(run)))
        numeric = all(isinstance(one[0], int | float) for one in self.values)
        places = list(dict.fromkeys(one[0] for one in self.values))
        series = []
        for at, (label, points) in enumerate(lines.items()):
            points = sorted(points) if numeric else points
            x = [place if numeric else places.index(place) for place, _ in points]
            y = [figure for _, figure in points]
            series.append(Series(label, self.runs[0].spec.method, x, y, variant=at))
        names = () if numeric else tuple(map(str, places))
        panel = Panel("Validation", self.names[0], "NDCG@10", tuple(series), names=names)
        return draw_figure(Chart(f"{self.runs[0].spec.method}: {', '.join(self.names)}", (panel,)))

    def _best_number(self) -> int:
        return max(range(len(self.runs)), key=lambda at: _selected(self.runs[at]))

    def _text(self, at: int) -> str:
        pairs = zip(self.names, self.values[at], strict=True)
        return ", ".join(f"{name}={value}" for name, value in pairs)

    def __repr__(self) -> str:
        at = self._best_number()
        return (
            f"Sweep of {', '.join(self.names)} for {self.best.spec.method}: {len(self.runs)} runs\n"
            f"  best by validation NDCG@10 {_selected(self.best):.4f}: {self._text(at)}"
        )

    def _repr_html_(self) -> str:
        frame, best = self.to_frame(), self._best_number()
        figures = frame.columns[len(self.names) :]
        rows = [
            [
                *(Cell(str(value), bold=at == best) for value in self.values[at]),
                *(Cell.number(row[name], bold=at == best) for name in figures),
            ]
            for at, row in enumerate(frame.to_dicts())
        ]
        heads = [*self.names, SELECTED_BY, *map(metric_label, self.best.metrics)]
        notes = ["Bold: chosen by validation NDCG@10. The other metrics are test metrics."]
        return to_plain_html(Table.of(heads, rows, notes=notes))


def sweep(
    spec: RunSpec,
    data: Interactions | Split,
    grid: Mapping[str, Sequence[Any]],
    *,
    out: Path | None = None,
    on_round: OnRound | None = None,
    metrics: Mapping[str, OwnMetric] | None = None,
) -> Sweep:
    """Train ``spec`` with every combination of the settings in ``grid``. With ``out``, each run is
    saved in a separate folder below it."""
    empty = [name for name, values in grid.items() if not list(values)]
    if not grid or empty:
        what = f"{empty[0]} has no values" if empty else "no setting was given"
        raise UnskewError(f"A sweep needs values to try, but {what}; give {{'dim': [8, 16]}}.")
    names, runs, values = tuple(grid), [], []
    combinations = list(product(*grid.values()))
    specs = [  # all are checked before the first one trains
        dataclasses.replace(spec, settings={**spec.settings, **dict(zip(names, one, strict=True))})
        for one in combinations
    ]
    for one, chosen in zip(combinations, specs, strict=True):
        label = ",".join(f"{name}={value}" for name, value in zip(names, one, strict=True))
        folder = None if out is None else out / label.replace("/", "_")
        runs.append(train(chosen, data, out=folder, on_round=on_round, metrics=metrics))
        values.append(tuple(one))
    return Sweep(names, tuple(values), tuple(runs))


def _selected(run: Run) -> float:
    """A run's validation NDCG@10 at the best round of each seed, averaged over seeds."""
    return statistics.fmean(
        curve[outcome.best_round - 1]
        for curve, outcome in zip(run.curves(SELECTED_BY), run.outcomes, strict=True)
    )
