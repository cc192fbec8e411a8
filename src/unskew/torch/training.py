"""Train many clients at once: their parameters are stacked along a first axis.

Each client has its own copy of every parameter it trains, so one optimiser over the stacked tensors
steps all clients as separate optimisers would. Clients with fewer batches than others finish
earlier; their parameters are stored when they do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from unskew.jit import jit
from unskew.kernels import Schedule
from unskew.kernels.batches import shuffle
from unskew.rng import stream
from unskew.torch.losses import Loss, bce
from unskew.torch.rows import RowReader, Score, add_gradients, gather_rows
from unskew.types import Bool, Cohort, Float32, Float64, Int32, Int64, Samples

FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
"""Optimisers with a fused version (``fused=True``), which updates in one pass over memory."""
KEPT_SHARE = 0.7
"""Finished clients are removed from the stacked parameters once at most this share of the clients
in them is still training."""
NO_ITEM = -1e9
"""Logit in place of a missing negative; some clients have too few items to draw negatives from."""


@dataclass(frozen=True)
class Phase:
    """One local training of a client, before or after the upload.

    ``train`` maps names of parameters to learning rates; all other parameters are frozen. A
    sequence of such maps is trained in turns: in every batch each map gets its own forward pass
    and step. ``score`` replaces the module's ``forward``. ``proximal`` is mu in FedProx's term
    mu / 2 |w - w_start|^2 (Li et al., 2020) on everything the phase trains.
    """

    train: Mapping[str, float] | Sequence[Mapping[str, float]]
    loss: Loss = bce
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam
    score: Score | None = None
    proximal: float = 0.0

    @property
    def groups(self) -> tuple[Mapping[str, float], ...]:
        return (self.train,) if isinstance(self.train, Mapping) else tuple(self.train)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for group in self.groups for name in group)


class _Batch(NamedTuple):
    """One batch per client, padded to equal length: row numbers, labels, and True for entries that
    are not padding."""

    rows: Tensor
    labels: Tensor
    present: Tensor


@jit
def _shuffled(
    users: Int64, indptr: Int64, epochs: int, seed: int, round: int, purpose: int, order: Int32
) -> None:
    """Write to ``order`` the shuffled order of each client's units in each epoch. A unit is a
    sample, or a positive with its negatives. Each client has a separate random stream."""
    for c in range(len(users)):
        n = indptr[c + 1] - indptr[c]
        current = np.arange(n).astype(np.int32)
        key, counter = stream(seed, round, users[c], purpose), 0
        for epoch in range(epochs):
            counter = shuffle(current, n, key, counter)
            first = indptr[c] * epochs + epoch * n
            order[first : first + n] = current


@jit
def _keys(users: Int64, seed: int, round: int, purpose: int) -> Int64:
    """A key for each client, from which dropout masks are computed by hashing in PyTorch."""
    keys = np.empty(len(users), np.int64)
    for c in range(len(users)):
        keys[c] = np.int64(stream(seed, round, users[c], purpose))
    return keys


class _Batches:
    """The shuffled batches of clients that are trained together, one batch each per step.

    A unit is a sample, or, for losses that compare a positive with its negatives, a positive with
    its negatives.
    """

    def __init__(
        self, cohort: Cohort, samples: Samples, schedule: Schedule, purpose: int, loss: Loss
    ) -> None:
        counts = samples.counts()
        self._grouped = getattr(loss, "per_positive", False)
        positives = np.maximum(cohort.positives.counts(), 1)
        self._width = counts // positives if self._grouped else np.ones(len(counts), np.int64)
        self.units = counts // self._width
        self.batch = max(1, schedule.batch // int(self._width.max()))
        self.per_epoch = -(-self.units // self.batch)
        self.steps = self.per_epoch * schedule.epochs
        self._samples, self._epochs = samples, schedule.epochs
        self._indptr = np.concatenate(([0], np.cumsum(self.units)))
        self._order = np.empty(self._indptr[-1] * schedule.epochs, np.int32)
        _shuffled(
            cohort.users,
            self._indptr,
            schedule.epochs,
            cohort.seed,
            cohort.round,
            purpose,
            self._order,
        )

    def at(self, step: int, clients: Int64, device: torch.device) -> _Batch:
        """The batch that each client trains on in this step; empty for finished clients."""
        number = step % np.maximum(self.per_epoch[clients], 1)
        left = np.minimum(self.units[clients] - number * self.batch, self.batch)
        left[step >= self.steps[clients]] = 0
        shape = len(clients), int(left.max()), int(self._width.max())
        rows, labels = np.zeros(shape, np.int64), np.zeros(shape, np.float32)
        present, first = np.zeros(shape, np.bool_), self._samples.indptr[clients]
        epoch = step // np.maximum(self.per_epoch[clients], 1)
        start = self._indptr[clients] * self._epochs + epoch * self.units[clients]
        start += number * self.batch
        _fill_batch(
            left,
            self._order,
            start,
            first,
            self._width[clients],
            self._samples,
            rows,
            labels,
            present,
        )
        parts = (rows, labels, present)
        tensors = (torch.from_numpy(p if self._grouped else p[:, :, 0]).to(device) for p in parts)
        return _Batch(*tensors)


@jit
def _fill_batch(
    left: Int64,
    order: Int32,
    start: Int64,
    first: Int64,
    width: Int64,
    samples: Samples,
    rows: Int64,
    labels: Float32,
    present: Bool,
) -> None:
    """Write each client's next batch to ``rows``, ``labels`` and ``present``: ``left`` units,
    listed in ``order`` from position ``start`` on. A unit is ``width`` consecutive samples; the
    client's samples begin at position ``first``."""
    for c in range(len(left)):
        for i in range(left[c]):
            unit = first[c] + order[start[c] + i] * width[c]
            for k in range(width[c]):
                rows[c, i, k] = samples.row[unit + k]
                labels[c, i, k] = samples.label[unit + k]
                present[c, i, k] = True


def _mean_loss(phase: Phase, reader: RowReader) -> Callable[..., Tensor]:
    """Return a function that computes the mean loss of one client's batch from its parameters."""
    grouped = getattr(phase.loss, "per_positive", False)

    def mean_loss(train: Any, frozen: Any, labels: Tensor, here: Tensor, key: Tensor) -> Tensor:
        reader.set_key(key)
        parameters = {f"module.{name}": value for name, value in (train | frozen).items()}
        logits = functional_call(reader, parameters, ())
        if grouped:
            logits, here = torch.where(here, logits, NO_ITEM), here[:, 0]
        losses = torch.where(here, phase.loss(logits, labels), 0.0)
        return losses.sum() / here.sum().clamp(min=1)

    return mean_loss


def train_phase(
    module: nn.Module,
    phase: Phase,
    tables: Sequence[str],
    stacked: dict[str, Tensor],
    cohort: Cohort,
    samples: Samples,
    schedule: Schedule,
    purpose: int,
) -> tuple[dict[str, Tensor], Float64]:
    """Train the clients' ``stacked`` parameters; returns the trained ones and the mean losses.

    Parameters with a row per item hold only the rows of each client's sampled items; samples name
    their item by its position among these rows. A client stops when the relative change of its mean
    loss is below the tolerance in ``schedule``.
    """
    reader = RowReader(module, tables, phase.score)
    gradients = vmap(grad_and_value(_mean_loss(phase, reader)), randomness="different")
    device = next(iter(stacked.values())).device
    batches = _Batches(cohort, samples, schedule, purpose, phase.loss)
    progress = _Progress(batches, schedule.tolerance)
    result = {name: stacked[name].clone() for name in phase.names}
    keys = torch.from_numpy(_keys(cohort.users, cohort.seed, cohort.round, purpose))
    stack = _Stack(phase, stacked, np.arange(len(cohort.users)))
    for step in range(int(batches.steps.max(initial=0))):
        batch = batches.at(step, stack.clients, device)
        reader.set_shape(batch.rows.shape[1:], device)
        key = keys[torch.from_numpy(stack.clients)].to(device) + (step << 40)
        size = next(value.shape[1] for name, value in stack.values.items() if name in tables)
        rows = batch.rows.flatten(1) + size * torch.arange(len(batch.rows), device=device)[:, None]
        for group, optimizer in zip(phase.groups, stack.optimizers, strict=True):
            used = {
                name: gather_rows(value, rows) if name in tables else value
                for name, value in stack.values.items()
            }
            train = {name: used[name] for name in group}
            rest = {name: value for name, value in used.items() if name not in group}
            slopes, losses = gradients(train, rest, batch.labels, batch.present, key)
            for name in group:
                value, slope = stack.values[name], slopes[name]
                value.grad = add_gradients(slope, rows, value) if name in tables else slope
                if phase.proximal:
                    value.grad += phase.proximal * (value - stack.start[name])
            optimizer.step()
        done = progress.add(step, stack.clients, losses.double().cpu().numpy())
        if done.any():
            there = torch.from_numpy(stack.clients[done])
            for name in phase.names:
                result[name][there.to(device)] = stack.values[name][torch.from_numpy(done)]
        active = progress.active[stack.clients]
        if not active.any():
            break
        if active.mean() <= KEPT_SHARE:
            stack.keep(active)
    return result, progress.means


class _Stack:
    """Stacked parameters of the clients that are still training, and their optimisers."""

    def __init__(self, phase: Phase, stacked: dict[str, Tensor], clients: Int64) -> None:
        self.clients = clients
        self.start = {name: stacked[name] for name in phase.names}
        self.values = stacked | {name: value.clone() for name, value in self.start.items()}
        self.optimizers = [
            phase.optimizer(
                [{"params": [self.values[name]], "lr": rate} for name, rate in group.items()],
                **({"fused": True} if phase.optimizer in FUSED else {}),
            )
            for group in phase.groups
        ]
        self._groups = phase.groups

    def keep(self, chosen: Bool) -> None:
        """Keep only the ``chosen`` clients and their part of the optimisers' state."""
        at = torch.from_numpy(chosen)
        n = len(self.clients)
        self.clients = self.clients[chosen]
        self.start = {name: value[at] for name, value in self.start.items()}
        before = self.values
        self.values = {name: value[at] for name, value in before.items()}
        for names, optimizer in zip(self._groups, self.optimizers, strict=True):
            for name, group in zip(names, optimizer.param_groups, strict=True):
                state = optimizer.state.pop(before[name], {})
                optimizer.state[self.values[name]] = {
                    key: part[at] if torch.is_tensor(part) and part.shape[:1] == (n,) else part
                    for key, part in state.items()
                }
                group["params"] = [self.values[name]]


class _Progress:
    """The mean loss of each client, and whether the client is still training."""

    def __init__(self, batches: _Batches, tolerance: float) -> None:
        self._batches, self._tolerance = batches, tolerance
        self._total = np.zeros(len(batches.units))
        self.active = batches.steps > 0
        self.means = np.zeros(len(batches.units))

    def add(self, step: int, clients: Int64, losses: Float64) -> Bool:
        """Record the losses of a step; returns True for the ``clients`` that finish with it."""
        b, active = self._batches, self.active[clients]
        units, per_epoch, total = b.units[clients], b.per_epoch[clients], self._total[clients]
        epoch, number = np.divmod(step, np.maximum(per_epoch, 1))
        total += np.where(active, losses * np.minimum(b.batch, units - number * b.batch), 0.0)
        self._total[clients] = total
        ends = active & (number == per_epoch - 1)
        mean, previous = total / np.maximum(units * (epoch + 1), 1), self.means[clients]
        change = np.abs(mean - previous) / np.abs(previous + 1e-5)
        self.means[clients[ends]] = mean[ends]
        last: Bool = ends & (epoch > 0) & (change < self._tolerance)
        last |= active & (step == b.steps[clients] - 1)
        self.active[clients[last]] = False
        return last
