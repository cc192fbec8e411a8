"""Shared code of the central (not federated) baselines: settings, initial embeddings, vectors for
new users, and base classes for linear models and for models trained by gradient steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unskew.kernels import draw_samples
from unskew.kernels.central import Table, adam
from unskew.kernels.transitions import Fading, fade_items
from unskew.ragged import distinct
from unskew.rng import Purpose, generator
from unskew.settings import Settings, setting
from unskew.types import CentralMethod, Cohort, Float32, Ragged, Rows, Samples

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
    """Settings of the baselines that are fitted in one pass, without gradient steps."""

    rounds: int = setting(1, above=0)
    """Passes over all interactions. The first is exact; further ones give the same model."""


class OwnItems(NamedTuple):
    """Per-user state of a linear model: the user's items, each with its weight (1, or less for
    older items in a model of sequences)."""

    X: Rows


class LinearMethod(CentralMethod):
    """Base class of the baselines that are fitted in one pass over each user's distinct items."""

    config = LinearConfig()

    def empty(self, n_items: int) -> Any:
        """The server's state before training."""
        raise NotImplementedError

    def fit(self, seen: Ragged, n_items: int) -> tuple[Any, float]:
        """Fit to the users' distinct items. Returns the server's state and the mean loss."""
        raise NotImplementedError

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Any, OwnItems]:
        return self.empty(n_items), OwnItems(Rows.empty(n_users, 1))

    def epoch(
        self, server: Any, private: OwnItems, everyone: Cohort
    ) -> tuple[Any, OwnItems, float]:
        fitted, loss = self.fit(distinct(everyone.positives), everyone.n_items)
        return fitted, self.fold_in(fitted, private, everyone), loss

    def refresh(self, download: Any, private: OwnItems, history: Ragged) -> OwnItems:
        """The users' distinct items. The server's first array has a row per item."""
        seen = distinct(history)
        return OwnItems(Rows(*seen, np.ones((len(seen.items), 1), np.float32)))


class SequenceMethod(LinearMethod):
    """Base class of the linear models of sequences: an item's weight in a user's state falls with
    its age, the number of the user's later items."""

    @property
    def fading(self) -> Fading:
        """Weight of a past item by its age."""
        raise NotImplementedError

    def fit(self, history: Ragged, n_items: int) -> tuple[Any, float]:
        """Fit to the users' items in order of time. Returns the server's state and the loss."""
        raise NotImplementedError

    def epoch(
        self, server: Any, private: OwnItems, everyone: Cohort
    ) -> tuple[Any, OwnItems, float]:
        fitted, loss = self.fit(everyone.positives, everyone.n_items)
        return fitted, self.fold_in(fitted, private, everyone), loss

    def refresh(self, download: Any, private: OwnItems, history: Ragged) -> OwnItems:
        return OwnItems(fade_items(history, len(download[0]), self.fading))


def initial_tables(
    config: EmbeddingConfig, n_users: int, n_items: int, seed: int
) -> tuple[Table, Table]:
    """Initial user and item embeddings, normal with standard deviation ``init_scale``."""

    def draw(n: int, purpose: Purpose) -> Table:
        rows = generator(seed, purpose).standard_normal((n, config.dim), np.float32)
        return Table.start(rows * np.float32(config.init_scale))

    return draw(n_users, Purpose.INIT_USER), draw(n_items, Purpose.INIT_ITEMS)


class Users(NamedTuple):
    """User vectors with Adam's first and second moments."""

    p: Float32
    mp: Float32
    vp: Float32


class GradientMethod(CentralMethod):
    """Base class of the central baselines whose user vectors are trained by gradient steps."""

    config: BatchConfig

    def user_gradient(self, download: Any, samples: Samples, p: Float32) -> Float32:
        """Gradient of each user's mean loss by its vector ``p``; the shared model is fixed."""
        raise NotImplementedError

    def fold_in(self, download: Any, private: Users, cohort: Cohort) -> Users:
        """Train vectors of new users from zero on their samples; the shared model is fixed."""
        users = Table.start(np.zeros((len(cohort.users), self.config.dim), np.float32))
        for step in range(1, _FOLD_IN_STEPS + 1):
            samples = draw_samples(cohort.at_round(step), self.config.negatives)
            g = self.user_gradient(download, samples, users.x)
            g += np.float32(self.config.decay) * users.x
            adam(users, g, _FOLD_IN_RATE * (1 - (step - 1) / _FOLD_IN_STEPS), step)
        return private._replace(p=users.x)
