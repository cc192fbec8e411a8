"""Compare saved runs: each against the first, by a paired test over users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unskew.evaluation import PairedTest, holm, paired_test
from unskew.runs.results import Result
from unskew.runs.saved import read_result, read_users, same_data
from unskew.types import UnskewError


class ComparedRun(NamedTuple):
    """A run beside the first one; the first itself has no test."""

    folder: Path
    result: Result
    test: PairedTest | None = None
    p_holm: float | None = None
    """The test's p-value, corrected for the number of runs (Holm)."""

    def to_json(self, metric: str) -> dict[str, Any]:
        """The run's figures and its test on ``metric``."""
        figures = {name: self.result.metrics.get(name) for name in ("hr@10", "ndcg@10", metric)}
        row: dict[str, Any] = {
            "run": str(self.folder),
            "method": self.result.method,
            "protocol": self.result.protocol,
            "data": self.result.data,
            **{name: None if one is None else one.to_json() for name, one in figures.items()},
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


def compare_runs(folders: Sequence[Path], metric: str) -> list[ComparedRun]:
    """Test ``metric`` of every run against the first run's, paired over users."""
    results = [read_result(folder) for folder in folders]
    users = [read_users(folder) for folder in folders]
    if metric not in users[0].columns:
        known = ", ".join(name for name in users[0].columns if "@" in name)
        raise UnskewError(f'There is no metric "{metric}"; choose one of {known}.')
    tests = []
    for folder, result, theirs in zip(folders[1:], results[1:], users[1:], strict=True):
        _check_comparable(folders[0], results[0], folder, result)
        both = users[0].join(theirs, on="user", how="inner", suffix="_other")
        if not len(both):
            raise UnskewError("The runs have no user in common; compare runs on the same data.")
        tests.append(paired_test(both[f"{metric}_other"].to_numpy(), both[metric].to_numpy()))
    corrected = [float(p) for p in holm([test.p_value for test in tests])]
    return [
        ComparedRun(folders[0], results[0]),
        *map(ComparedRun, folders[1:], results[1:], tests, corrected),
    ]


def _check_comparable(first: Path, result: Result, other: Path, other_result: Result) -> None:
    """A paired test needs the same held-out items ranked alike: the same protocol, and the same
    split, known by its checksum or else by the name of the data."""
    for key in ("protocol", "ranking", "data"):
        theirs, ours = getattr(other_result, key), getattr(result, key)
        same = same_data(first, other) if key == "data" else None
        if same is False or (same is None and theirs != ours):
            found = f"{key} {theirs}, the first run has {ours}"
            if theirs == ours:
                found = f"{key} {theirs} as the first run, but with other rows"
            raise UnskewError(
                f"{other} has {found}; only runs on the same footing can be compared."
            )
