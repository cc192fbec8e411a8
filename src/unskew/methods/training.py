"""Shared code of the federated methods that train by gradient steps: settings, initial values,
training of item rows, the server's average, and training for new users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unskew.kernels import (
    Schedule,
    Training,
    draw_samples,
    merge,
    no_pull,
    overlay,
    score_items,
    train_joint,
)
from unskew.rng import Purpose, generator
from unskew.settings import Settings, setting
from unskew.types import Cohort, Float32, Float64, Int64, Method, Rows, Upload, UploadSum

FOLD_IN_PASSES = 20
"""Number of training passes for a user who joins after training; each draws new negatives."""


SAMPLE_BYTES = 12
"""Bytes of a training sample: its item, its label, and its place among the sampled items."""
TRAINED_COPIES = 4
"""Number of arrays with a row for each sampled item that are in memory while clients train."""


@dataclass(frozen=True)
class TrainingConfig(Settings):
    """Settings that PFedCLR has in common with the methods that its paper compares it with."""

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

    def training(self, cohort: Cohort, purpose: Purpose = Purpose.SHUFFLE_LOCAL) -> Training:
        """Draw the training samples of the cohort (the clients of a round); returns them with the
        training schedule."""
        return Training(cohort, draw_samples(cohort, self.negatives), self.schedule, purpose)

    def training_bytes(self, positives: Int64, n_items: int) -> Float64:
        """Estimated memory for a round's training of clients with so many positives: their samples,
        and the rows of the sampled items as downloaded, trained and uploaded."""
        samples = positives * (1.0 + min(self.negatives, n_items))
        touched = np.minimum(samples, n_items)
        size: Float64 = samples * SAMPLE_BYTES + touched * (4.0 * self.dim * TRAINED_COPIES)
        return size

    def trains_alone(self, round: int) -> bool:
        """True if clients start this round from their local item embeddings, not the server's."""
        return self.aggregate_from == 0 or round <= self.aggregate_from

    def sends_nothing(self, round: int) -> bool:
        """True if clients upload nothing in this round: aggregation starts later, or never."""
        return self.aggregate_from == 0 or round < self.aggregate_from


@dataclass(frozen=True)
class SGDConfig(TrainingConfig):
    """Settings of methods trained by SGD; default: all clients, one epoch, no early stopping."""

    participation: float = 1.0
    local_epochs: int = 1
    learning_rate: float = 0.1
    tolerance: float = 0.0


class ItemServer(NamedTuple):
    """Server state that consists of the item embeddings alone."""

    Q: Float32


def initial_items(n_items: int, dim: int, seed: int) -> Float32:
    """Initial item embeddings, standard normal."""
    return generator(seed, Purpose.INIT_ITEMS).standard_normal((n_items, dim), np.float32)


def initial_users(n_users: int, dim: int, seed: int) -> Float32:
    """Initial user vectors: one standard normal vector, the same on every device."""
    p = generator(seed, Purpose.INIT_USER).standard_normal(dim, np.float32)
    return np.tile(p, (n_users, 1))


def initial_layers(layers: Iterable[tuple[int, int]], seed: int) -> Float32:
    """Initial weights and biases of linear layers, given as (inputs, outputs), in one flat vector.
    They are uniform within ±1 / sqrt(inputs), as in torch's Linear."""
    draw = generator(seed, Purpose.INIT_DENSE)
    parts = [
        draw.uniform(-1, 1, (inputs + 1) * outputs) / np.sqrt(inputs) for inputs, outputs in layers
    ]
    return np.concatenate(parts).astype(np.float32)


def fedavg(value: Float32, change: Float64, weight: float) -> Float32:
    """Add the weighted mean of the clients' changes to ``value`` (FedAvg). ``change`` is the
    weighted sum of the changes and ``weight`` the sum of the weights."""
    return value if weight == 0 else (value + change / weight).astype(np.float32)


class ItemTraining:
    """Step 1 (training before the upload) of methods that train item embeddings. ``Q`` is the
    server's item table, ``held`` the item rows that clients stored in earlier rounds."""

    def __init__(self, config: TrainingConfig, Q: Float32, held: Rows, cohort: Cohort) -> None:
        self._config, self._Q, self._held = config, Q, held
        self._training = config.training(cohort)
        self._alone = config.trains_alone(cohort.round)
        touched = self._training.samples.touched
        self.rows: Float32 = Q[touched.items]
        """Rows of the sampled items: the server's, or those on the device while the server does not
        aggregate yet."""
        if self._alone:
            overlay(self.rows, touched, held)

    def run(self, kernel: Callable[..., Any], *arrays_and_rates: object) -> Float64:
        """Run a compiled training function on all clients; returns each client's mean loss."""
        return self._training.run(kernel, *arrays_and_rates)

    def finish(self) -> tuple[Rows, Upload]:
        """Return the trained item rows, which stay on the device, and the upload, which holds the
        differences of these rows from the server's."""
        cohort, samples = self._training.cohort, self._training.samples
        trained, n = Rows(*samples.touched, self.rows), len(cohort.users)
        if self._alone:
            trained = merge(self._held, trained)
        no_dense = np.zeros((n, 0), np.float32)
        if self._config.sends_nothing(cohort.round):
            return trained, Upload(Rows.empty(n, self._config.dim), no_dense, np.zeros(n))
        change = trained._replace(values=trained.values - self._Q[trained.items])
        return trained, Upload(change, no_dense, samples.counts().astype(np.float64))


def current_rows(Q: Float32, held: Rows, training: Training) -> Float32:
    """Embeddings of the clients' sampled items after Step 1 (training before the upload)."""
    touched = training.samples.touched
    if np.array_equal(held.items, touched.items):
        return held.values
    return overlay(Q[touched.items], touched, held)


def fold_in_passes(
    config: TrainingConfig, Q: Float32, cohort: Cohort
) -> Iterator[tuple[Training, Float32]]:
    """For each training pass of new users, yield the samples and the server's embeddings of the
    sampled items."""
    for number in range(1, FOLD_IN_PASSES + 1):
        step = config.training(cohort.at_round(number), Purpose.SHUFFLE_PERSONAL)
        yield step, Q[step.samples.touched.items]


class VectorMethod(Method):
    """Base class of methods whose clients have a user vector and locally trained item embeddings.
    Scores are inner products. A new user's vector is trained with the server's items fixed."""

    config: TrainingConfig

    def score(self, download: Any, private: Any) -> Float32:
        return score_items(private.p, download.Q, private.Q)

    def fold_in(self, download: Any, private: Any, cohort: Cohort) -> Any:
        p, c = private.p.copy(), self.config
        for step, rows in fold_in_passes(c, download.Q, cohort):
            step.run(train_joint, p, rows, c.learning_rate, 0.0, *no_pull(p))
        return private._replace(p=p)


class AveragedItems(VectorMethod):
    """Base class of vector methods whose server averages the uploaded item embeddings."""

    def aggregate(self, server: ItemServer, total: UploadSum) -> ItemServer:
        return ItemServer(fedavg(server.Q, total.rows, total.weight))
