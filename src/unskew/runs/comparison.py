"""Compare runs: each against the first, by a paired test over users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from unskew.display import MISSING, Cell, Column, Table, to_latex, to_markdown, to_plain_html
from unskew.evaluation import PairedTest, holm, paired_test
from unskew.runs.finished import Run
from unskew.runs.folder import read_header, split_checksum
from unskew.runs.results import Result, distinct_labels, metric_label
from unskew.runs.saved import read_result, read_users
from unskew.types import UnskewError

MAIN_METRICS = ("hr@10", "ndcg@10")
"""Metrics that every comparison shows, beside the one that is tested."""
MARKS = ((0.01, "**"), (0.05, "*"))
"""Stars for significant differences: pairs of a limit and the mark for p-values below it."""


class ComparedRun(NamedTuple):
    """A run's results and its paired test against the first run; the first has no test."""

    name: str
    """The run's folder, or its label if it is only in memory."""
    label: str
    """The method, and the settings in which runs of that method differ."""
    result: Result
    test: PairedTest | None = None
    p_holm: float | None = None
    """The test's p-value, corrected for the number of runs (Holm)."""

    def to_json(self, metric: str) -> dict[str, Any]:
        """Convert to a JSON object: the run's main metrics, and its test on ``metric``."""
        figures = {name: self.result.metrics.get(name) for name in (*MAIN_METRICS, metric)}
        row: dict[str, Any] = {
            "run": self.name,
            "method": self.result.method,
            "protocol": self.result.protocol,
            "data": self.result.data,
            **{name: None if one is None else asdict(one) for name, one in figures.items()},
        }
        if self.test is not None:
            row |= {
                "difference": self.test.difference,
                "interval": [self.test.ci_low, self.test.ci_high],
                "p_value": self.test.p_value,
                "p_holm": self.p_holm,
                "users": self.test.n_users,
                "wins": self.test.wins,
                "losses": self.test.losses,
            }
        return row

    @property
    def mark(self) -> str:
        """``*`` or ``**`` if the run differs significantly from the first run, otherwise empty."""
        p = 1.0 if self.p_holm is None else self.p_holm
        return next((mark for limit, mark in MARKS if p < limit), "")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs compared with the first one, user by user: differences, 95 % intervals and p-values."""

    metric: str
    """The metric that is tested."""
    runs: tuple[ComparedRun, ...]

    def to_frame(self) -> pl.DataFrame:
        """A row per run: its metrics, and its difference from the first run."""
        rows: list[dict[str, Any]] = []
        for run in self.runs:
            row: dict[str, Any] = {
                "run": run.name,
                "method": run.label,
                "protocol": run.result.protocol,
            }
            test = run.test
            rows.append(
                row
                | {name: run.result.metrics[name].mean for name in self._metrics()}
                | {
                    "difference": None if test is None else test.difference,
                    "ci_low": None if test is None else test.ci_low,
                    "ci_high": None if test is None else test.ci_high,
                    "p_holm": run.p_holm,
                }
            )
        return pl.DataFrame(rows, infer_schema_length=None)

    def to_markdown(self) -> str:
        """A Markdown table: best values in bold, stars for significant differences."""
        return to_markdown(self.table())

    def to_latex(self, label: str = "") -> str:
        """A LaTeX table for a paper (needs the package booktabs): methods and their metrics, the
        best in bold, stars where the tested metric differs significantly from the first run's."""
        first = self.runs[0].result
        table = self.table()
        wanted = [at for at, column in enumerate(table.columns) if column.name in self._heads()]
        return to_latex(
            table._replace(
                title=f"Results on {Path(first.data).name} (protocol {first.protocol}).",
                columns=(Column("Method", "text"), *(table.columns[at] for at in wanted)),
                rows=tuple(
                    (Cell(run.label), *(row[at] for at in wanted))
                    for run, row in zip(self.runs, table.rows, strict=True)
                ),
            ),
            label,
        )

    def to_json(self) -> dict[str, Any]:
        """The comparison as a JSON object, as ``unskew compare --json`` prints it."""
        return {"metric": self.metric, "runs": [run.to_json(self.metric) for run in self.runs]}

    def table(self) -> Table:
        """The comparison as a table; its notes say how differences were tested."""
        names = self._metrics()
        means = {name: [run.result.metrics[name].mean for run in self.runs] for name in names}
        rows: list[list[Cell | str]] = []
        for run in self.runs:
            cells = []
            for name in names:
                best = len(self.runs) > 1 and run.result.metrics[name].mean == max(means[name])
                cell = Cell.over_seeds(run.result.metrics[name], bold=best)
                cells.append(cell._replace(tag=run.mark if name == self.metric else ""))
            rows.append([run.name, run.label, run.result.protocol, *cells, *_test_cells(run)])
        tested = metric_label(self.metric)
        columns = [
            *(Column(name, "text") for name in ("run", "method", "protocol")),
            *map(Column, self._heads()),
            Column(f"Δ {self.metric}"),
            Column("95 % interval", "text"),
            Column("p (Holm)", better="low"),
        ]
        several = (
            f"Best in bold; * p < 0.05, ** p < 0.01 against the first run ({tested}, Wilcoxon "
            "signed-rank test paired over users, Holm-corrected).",
        )
        return Table.of(columns, rows, notes=several if len(rows) > 1 else ())

    def _metrics(self) -> list[str]:
        known = self.runs[0].result.metrics
        return [name for name in dict.fromkeys((*MAIN_METRICS, self.metric)) if name in known]

    def _heads(self) -> list[str]:
        return list(map(metric_label, self._metrics()))

    def __repr__(self) -> str:
        lines = [f"Comparison of {len(self.runs)} runs by {metric_label(self.metric)}"]
        for run in self.runs[:8]:
            text = f"{run.label}: {Cell.over_seeds(run.result.metrics[self.metric]).line}"
            if run.test is not None:
                text += f" ({run.test.difference:+.4f}, p {_p_text(run.p_holm)}){run.mark}"
            lines.append(text[:110])
        more = len(self.runs) - 8
        return "\n  ".join([*lines, *([f"and {more} more"] if more > 0 else [])])

    def _repr_html_(self) -> str:
        return to_plain_html(self.table())


class _Side(NamedTuple):
    """A run as `compare` reads it: results, per-user metrics, and the checksum of its data."""

    name: str
    result: Result
    users: pl.DataFrame
    """Metrics of every user, averaged over seeds."""
    split_sha256: str


def compare(runs: Sequence[Run | str | Path], metric: str = "ndcg@10") -> Comparison:
    """Compare ``metric`` of every run with that of the first, by paired tests over users. A run
    is given as a `Run` object or as the folder of a finished run."""
    if not runs:
        raise UnskewError("There is nothing to compare; give at least one run or its folder.")
    sides = [_read_side(run) for run in runs]
    labels = distinct_labels([side.result for side in sides])
    first = sides[0]
    if metric not in first.users.columns:
        known = ", ".join(name for name in first.users.columns if name != "user")
        raise UnskewError(f'There is no metric "{metric}"; choose one of {known}.')
    tests = []
    for side in sides[1:]:
        _check_comparable(first, side)
        both = first.users.join(side.users, on="user", suffix="_other")
        tests.append(paired_test(both[f"{metric}_other"].to_numpy(), both[metric].to_numpy()))
    corrected = [float(p) for p in holm([test.p_value for test in tests])]
    compared = [
        ComparedRun(side.name or label, label, side.result, test, p)
        for side, label, test, p in zip(
            sides, labels, [None, *tests], [None, *corrected], strict=True
        )
    ]
    return Comparison(metric, tuple(compared))


def _read_side(run: Run | str | Path) -> _Side:
    folder = run.folder if isinstance(run, Run) else Path(run)
    if folder is not None:
        checksum = read_header(folder)["split_sha256"]
        return _Side(str(folder), read_result(folder), read_users(folder), checksum)
    assert isinstance(run, Run)
    by_user = run.per_user.drop("seed").group_by("user", maintain_order=True).mean()
    return _Side("", run.result(), by_user, split_checksum(run.split))


def _check_comparable(first: _Side, other: _Side) -> None:
    """Raise an UnskewError unless both runs have the same held-out items and candidates."""
    name = other.name or other.result.method
    for key in ("protocol", "ranking"):
        theirs, ours = getattr(other.result, key), getattr(first.result, key)
        if theirs != ours:
            raise UnskewError(
                f"{name} has {key} {theirs}, the first run has {ours}; "
                "only runs on the same footing can be compared."
            )
    if first.split_sha256 != other.split_sha256:
        raise UnskewError(
            f"{name} has other data than {first.name or first.result.method}; only runs on the "
            "same footing can be compared."
        )


def _test_cells(run: ComparedRun) -> list[Cell]:
    """Table cells of a run: its difference from the first run, the 95 % interval of the difference,
    and the corrected p-value."""
    test = run.test
    if test is None:
        return [Cell(MISSING)] * 3
    return [
        Cell(f"{test.difference:+.4f}", test.difference),
        Cell(f"{test.ci_low:+.4f} … {test.ci_high:+.4f}", str(test.ci_low)),
        Cell(_p_text(run.p_holm), run.p_holm),
    ]


def _p_text(p: float | None) -> str:
    if p is None:
        return MISSING
    return f"{p:.3g}" if p >= 1e-4 else "<0.0001"
