"""Transforms that a node-config can name: what hostile nodes send in place of their upload."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from unskew.types import Cohort, Rows, Upload


def nan(upload: Upload, cohort: Cohort) -> Upload:
    values = upload.rows.values.copy()
    values[0, 0] = np.nan
    return _sent(upload, values)


def wide(upload: Upload, cohort: Cohort) -> Upload:
    values = upload.rows.values
    return _sent(upload, np.hstack([values, values[:, :1]]))


def huge(upload: Upload, cohort: Cohort) -> Upload:
    """A norm of a million."""
    values = upload.rows.values
    return _sent(upload, values * np.float32(1e6 / np.linalg.norm(values)))


def pull(upload: Upload, cohort: Cohort) -> Upload:
    """Everything, far, in one direction."""
    return _sent(upload, np.full_like(upload.rows.values, 1e3))


def heavy(upload: Upload, cohort: Cohort) -> Upload:
    """A thousand times the weight, and as much of everything."""
    heavier = _sent(upload, upload.rows.values * np.float32(1e3))
    return heavier._replace(weight=upload.weight * 1e3)


def three_attacks(upload: Upload, cohort: Cohort) -> Upload:
    """NaN in round 1, a column too many in round 2, a norm of a million in round 3; then honest."""
    attack = {1: nan, 2: wide, 3: huge}.get(cohort.round)
    return upload if attack is None else attack(upload, cohort)


def hang(upload: Upload, cohort: Cohort) -> Upload:
    """In one round, says that it is there and never comes back."""
    if cohort.round == int(os.environ["HANG_IN_ROUND"]):
        Path(os.environ["HANG_MARK"]).touch()
        time.sleep(3600)
    return upload


def nothing(upload: Upload, cohort: Cohort) -> Upload:
    return _sent(upload, np.zeros_like(upload.rows.values))


def _sent(upload: Upload, values: np.ndarray) -> Upload:  # type: ignore[type-arg]
    return upload._replace(rows=Rows(upload.rows.indptr, upload.rows.items, values))
