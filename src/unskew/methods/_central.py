"""What the central baselines share: settings and their check, fresh tables, and how a newcomer's
vector is found without training anybody else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from unskew.kernels import Samples, draw_samples
from unskew.kernels.central import adam
from unskew.ragged import distinct
from unskew.rng import Purpose, generator
from unskew.types import Cohort, Float32, Rows, UnskewError

_FOLD_IN_STEPS, _FOLD_IN_RATE = 100, 0.05
"""Adam steps for a newcomer's vector, each on fresh negatives, and their first rate, which falls
to zero. The problem is a small logistic regression: this many suffice."""

_MAY_BE_ZERO = {"negatives", "decay", "shrinkage", "item_power", "fast", "slow", "horizon"}
_MAY_BE_ZERO |= {"discount", "far_horizon"}
_AT_MOST_ONE = {"participation", "fast", "slow", "horizon", "far_horizon"}


def check_settings(config: Any) -> None:
    """One sentence for a setting out of range."""
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, str):
            continue
        may_be_zero = field.name in _MAY_BE_ZERO
        if not (value >= 0 if may_be_zero else value > 0) or math.isinf(value):
            least = "at least 0" if may_be_zero else "above 0"
            raise UnskewError(f"{field.name} = {value} must be finite and {least}.")
        if field.name in _AT_MOST_ONE and value > 1:
            raise UnskewError(f"{field.name} = {value} must be at most 1.")


@dataclass(frozen=True)
class EmbeddingConfig:
    """Settings of the baselines that learn embeddings by gradient steps."""

    rounds: int = 100
    """Epochs over all interactions."""
    dim: int = 16
    """Embedding size d."""
    batch: int = 4096
    """Samples per batch, of all users mixed."""
    learning_rate: float = 0.005
    """Adam's rate."""
    negatives: int = 4
    """Negatives drawn per positive, afresh each epoch."""
    decay: float = 0.01
    """Weight of the squared embeddings of each sample beside its loss."""
    init_scale: float = 0.1
    """Standard deviation of the initial embeddings."""

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class LinearConfig:
    """Settings of the baselines that only count: none but the length of a run."""

    rounds: int = 1
    """Passes over all interactions. The first is exact; further ones give the same model."""

    def __post_init__(self) -> None:
        check_settings(self)


class OwnItems(NamedTuple):
    """The per-user part of a linear model: the user's items, each with the value 1."""

    X: Rows


def no_items(n_users: int) -> OwnItems:
    return OwnItems(Rows.empty(n_users, 1))


def own_items(cohort: Cohort) -> OwnItems:
    seen = distinct(cohort.positives, cohort.n_items)
    return OwnItems(Rows(*seen, np.ones((len(seen.items), 1), np.float32)))


def initial_table(n: int, dim: int, scale: float, seed: int, purpose: Purpose) -> Float32:
    """Rows ~ N(0, scale^2)."""
    rows = generator(seed, purpose).standard_normal((n, dim), np.float32)
    return rows * np.float32(scale)


def fold_in_vectors(
    config: EmbeddingConfig, cohort: Cohort, gradient: Callable[[Samples, Float32], Float32]
) -> Float32:
    """Vectors for newcomers, from zero: their own samples' loss, everything else frozen."""
    p = np.zeros((len(cohort.users), config.dim), np.float32)
    m, v = np.zeros_like(p), np.zeros_like(p)
    for step in range(1, _FOLD_IN_STEPS + 1):
        samples = draw_samples(cohort.at_round(step), config.negatives)
        g = gradient(samples, p) + np.float32(config.decay) * p
        rate = _FOLD_IN_RATE * (1 - (step - 1) / _FOLD_IN_STEPS)
        adam(p, m, v, g, rate, step)
    return p
