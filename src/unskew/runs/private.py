"""A private run's mechanism before it starts, and its privacy account when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from unskew.engine import Federation
from unskew.privacy import (
    LocalPrivacy,
    Mechanism,
    PrivateUploads,
    calibrated_noise,
    compositions,
    privacy_report,
)
from unskew.runs.spec import RunSpec
from unskew.types import Split


def mechanism_of(spec: RunSpec, split: Split) -> Mechanism | None:
    """The noise a run adds. A budget covers the client that takes part most often in any seed:
    who takes part is drawn from the seed alone, never from the data."""
    if spec.ldp is None:
        return None
    if spec.ldp.noise is not None:
        return spec.ldp.with_noise(spec.ldp.noise)
    most = 0
    for seed in spec.seeds:
        counts = np.zeros(split.n_users, np.int64)
        federation = Federation(spec.build(), split, seed)
        for round in range(1, federation.method.config.rounds + 1):
            counts[federation.cohort_of(round)] += 1
        most = max(most, int(counts.max()))
    return spec.ldp.with_noise(calibrated_noise(spec.ldp, most))


def uploads_of(spec: RunSpec, split: Split, mechanism: Mechanism | None) -> PrivateUploads | None:
    """What a run's devices do to their uploads."""
    if spec.ldp is None or mechanism is None:
        return None
    withheld = None
    if spec.ldp.least_users is not None:
        users = np.bincount(split.seen.items, minlength=split.n_items)
        withheld = users < spec.ldp.least_users
    return PrivateUploads(mechanism, withheld=withheld)


def account(
    asked: LocalPrivacy, mechanism: Mechanism, federation: Federation, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """The privacy account of a trained federation."""
    cohorts = [federation.cohort_of(row["round"]) for row in rows]
    counts = compositions(cohorts, rows, federation.split.n_users)
    return privacy_report(asked, mechanism, counts, rows)


def over_seeds(accounts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The account of the seed whose worst client sent most often: what the whole run can claim."""
    return max(accounts, key=lambda account: account["rounds"]["worst_client"])
