"""Shared by the central baselines: settings, initial tables, and the vectors of new users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels import Samples, draw_samples
from unskew.kernels.central import Table, adam
from unskew.ragged import distinct
from unskew.rng import Purpose, generator
from unskew.settings import Settings, setting
from unskew.types import Cohort, Float32, Rows

_FOLD_IN_STEPS, _FOLD_IN_RATE = 100, 0.05
"""Number of Adam steps for a new user's vector, each on fresh negatives, and the initial learning
rate, which falls to zero. The problem is a small logistic regression."""


@dataclass(frozen=True)
class EmbeddingConfig(Settings):
    """Settings of the baselines that learn embeddings by gradient steps."""

    rounds: int = setting(100, above=0)
    """Epochs over all interactions."""
    dim: int = setting(16, above=0)
    """Embedding size d."""
    learning_rate: float = setting(0.005, above=0)
    """Learning rate of Adam."""
    negatives: int = 4
    """Negatives drawn per positive, anew in each epoch."""
    decay: float = 0.01
    """Weight of the L2 penalty on the embeddings of each sample."""
    init_scale: float = setting(0.1, above=0)
    """Standard deviation of the initial embeddings."""


@dataclass(frozen=True)
class BatchConfig(EmbeddingConfig):
    """Settings of the baselines whose batches have a fixed size."""

    batch: int = setting(4096, above=0)
    """Samples per batch, drawn from all users together."""


@dataclass(frozen=True)
class LinearConfig(Settings):
    """Settings of the baselines that only count."""

    rounds: int = setting(1, above=0)
    """Passes over all interactions. The first is exact; further ones give the same model."""


class OwnItems(NamedTuple):
    """The per-user part of a linear model: the user's items, each with the value 1."""

    X: Rows


def no_items(n_users: int) -> OwnItems:
    return OwnItems(Rows.empty(n_users, 1))


def own_items(cohort: Cohort) -> OwnItems:
    seen = distinct(cohort.positives, cohort.n_items)
    return OwnItems(Rows(*seen, np.ones((len(seen.items), 1), np.float32)))


def initial_tables(
    config: EmbeddingConfig, n_users: int, n_items: int, seed: int
) -> tuple[Table, Table]:
    """Embeddings of users and of items, ~ N(0, init_scale^2)."""

    def draw(n: int, purpose: Purpose) -> Table:
        rows = generator(seed, purpose).standard_normal((n, config.dim), np.float32)
        return Table.fresh(rows * np.float32(config.init_scale))

    return draw(n_users, Purpose.INIT_USER), draw(n_items, Purpose.INIT_ITEMS)


def fold_in_vectors(
    config: EmbeddingConfig, cohort: Cohort, gradient: Callable[[Samples, Float32], Float32]
) -> Float32:
    """Vectors of new users, trained from zero on their own samples with the model frozen."""
    p = np.zeros((len(cohort.users), config.dim), np.float32)
    m, v = np.zeros_like(p), np.zeros_like(p)
    for step in range(1, _FOLD_IN_STEPS + 1):
        samples = draw_samples(cohort.at_round(step), config.negatives)
        g = gradient(samples, p) + np.float32(config.decay) * p
        rate = _FOLD_IN_RATE * (1 - (step - 1) / _FOLD_IN_STEPS)
        adam(p, m, v, g, rate, step)
    return p
