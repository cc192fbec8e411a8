"""Shared by the federated methods that train by gradient steps: settings, initial values, item rows
of a client, the server's average, and training for new users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from unskew.kernels import (
    Samples,
    Schedule,
    difference,
    draw_samples,
    gather,
    merge,
    overlay,
    train_joint,
)
from unskew.rng import Purpose, generator
from unskew.settings import Settings, setting
from unskew.types import Cohort, Float32, Float64, Rows, Upload

FOLD_IN_PASSES = 20
"""Number of passes in which a new user trains, each on fresh negatives."""


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """The settings that the paper's methods have in common."""

    rounds: int = setting(100, above=0)
    """Global rounds T."""
    participation: float = setting(0.6, above=0, at_most=1)
    """Share of the clients that take part in a round."""
    dim: int = setting(16, above=0)
    """Embedding size d."""
    local_epochs: int = setting(10, above=0)
    """Local epochs E per step."""
    batch: int = setting(256, above=0)
    """Samples per local batch B."""
    learning_rate: float = setting(0.01, above=0)
    """Adam's learning rate for user and item embeddings (eta)."""
    negatives: int = 4
    """Negatives drawn per positive, anew in each round."""
    tolerance: float = 1e-4
    """Local training stops once its mean loss changes by a smaller share than this (0: never)."""
    aggregate_from: int = 1
    """The round from which the server aggregates; before it clients train alone. 0: never."""

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.local_epochs, self.batch, self.tolerance)

    def trains_alone(self, round: int) -> bool:
        """True if clients of this round start from their own items, not from the server's."""
        return self.aggregate_from == 0 or round <= self.aggregate_from

    def sends_nothing(self, round: int) -> bool:
        """True if the server does not aggregate in this round."""
        return self.aggregate_from == 0 or round < self.aggregate_from


@dataclass(frozen=True)
class SGDConfig(TrainingConfig):
    """Defaults of the methods whose authors use SGD: every client, one epoch, no early stopping."""

    participation: float = 1.0
    local_epochs: int = 1
    learning_rate: float = 0.1
    tolerance: float = 0.0


class ItemServer(NamedTuple):
    """A server whose state is the item embeddings."""

    Q: Float32


def initial_items(n_items: int, dim: int, seed: int) -> Float32:
    """Q ~ N(0, 1)."""
    return generator(seed, Purpose.INIT_ITEMS).standard_normal((n_items, dim), np.float32)


def initial_users(n_users: int, dim: int, seed: int) -> Float32:
    """p ~ N(0, 1), the same vector on every device: all clients start as copies of one model."""
    p = generator(seed, Purpose.INIT_USER).standard_normal(dim, np.float32)
    return np.tile(p, (n_users, 1))


def initial_layers(layers: Iterable[tuple[int, int]], seed: int) -> Float32:
    """Weights and biases of linear layers (inputs, outputs), one after another, as torch's Linear
    draws them: U(-1, 1) / sqrt(inputs)."""
    draw = generator(seed, Purpose.INIT_DENSE)
    parts = [
        draw.uniform(-1, 1, (inputs + 1) * outputs) / np.sqrt(inputs) for inputs, outputs in layers
    ]
    return np.concatenate(parts).astype(np.float32)


def fedavg(value: Float32, change: Float64, weight: float) -> Float32:
    """Q_g <- Q_g + sum_u w_u (Q_u - Q_g) / sum_u w_u, which is sum_u p_u Q_u (Eq. 11), from the
    weighted sum of the changes and the sum of the weights."""
    return value if weight == 0 else (value + change / weight).astype(np.float32)


def starting_rows(
    config: TrainingConfig, Q: Float32, held: Rows, samples: Samples, cohort: Cohort
) -> Float32:
    """Touched item rows at the start of a client's round: the server's, or the client's own while
    the server does not aggregate yet."""
    rows = gather(Q, samples.touched)
    return overlay(rows, samples.touched, held) if config.trains_alone(cohort.round) else rows


def current_rows(Q: Float32, held: Rows, samples: Samples) -> Float32:
    """Touched item rows on the device after Step 1."""
    if np.array_equal(held.items, samples.touched.items):
        return held.values
    return overlay(gather(Q, samples.touched), samples.touched, held)


def trained_items(
    config: TrainingConfig, Q: Float32, held: Rows, samples: Samples, rows: Float32, cohort: Cohort
) -> tuple[Rows, Upload]:
    """The trained item rows that a client keeps, and its upload: their difference from the
    server's rows."""
    trained = Rows(*samples.touched, rows)
    if config.trains_alone(cohort.round):
        trained = merge(held, trained)
    n = len(cohort.users)
    no_dense = np.zeros((n, 0), np.float32)
    if config.sends_nothing(cohort.round):
        return trained, Upload(Rows.empty(n, config.dim), no_dense, np.zeros(n))
    weight = samples.counts().astype(np.float64)
    return trained, Upload(difference(trained, Q), no_dense, weight)


def fold_in_passes(
    config: TrainingConfig, Q: Float32, cohort: Cohort
) -> Iterator[tuple[Cohort, Samples, Float32]]:
    """For each pass of a new user's training: the cohort, its samples, and the global item rows."""
    for number in range(1, FOLD_IN_PASSES + 1):
        alone = cohort.at_round(number)
        samples = draw_samples(alone, config.negatives)
        yield alone, samples, gather(Q, samples.touched)


def fold_in(config: TrainingConfig, Q: Float32, p: Float32, cohort: Cohort) -> Float32:
    """Vectors of new users, trained on their own items with the global items frozen."""
    p, rates = p.copy(), (config.learning_rate, 0.0)
    for alone, samples, rows in fold_in_passes(config, Q, cohort):
        shuffle = Purpose.SHUFFLE_PERSONAL
        train_joint(alone, samples, config.schedule, shuffle, p, rows, *rates)
    return p
