"""Convert the ragged arrays of clients' states to stacked tensors with one slice per client, train
or score with these, and convert the results back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from unskew.kernels import Schedule, merge, overlay
from unskew.ragged import indptr_from_counts, owners, positions, select
from unskew.torch.rows import RowReader
from unskew.torch.training import Phase, train_phase
from unskew.types import Cohort, Float32, Float64, Int64, Rows, Samples

SCORED_AT_ONCE = 32
"""Number of users scored at a time; each of them needs a copy of all item tables in memory."""


class Parameter(NamedTuple):
    """A parameter of a PyTorch module: its name in the module, its field in the server's and
    clients' states, and its shape (that of one row, if it has a row per item)."""

    name: str
    field: str
    shared: bool
    per_item: bool
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values in the parameter or, if it has a row per item, in one row."""
        return int(np.prod(self.shape, dtype=int))


def train_clients(
    module: nn.Module,
    parameters: Sequence[Parameter],
    phase: Phase,
    download: Any,
    private: Any,
    cohort: Cohort,
    schedule: Schedule,
    purpose: int,
    clients_at_once: int,
    device: str,
) -> tuple[dict[str, Any], Float64]:
    """Train the clients of a cohort; returns the trained fields of their private state and the
    mean loss of each client.

    ``phase`` says which parameters are trained, ``cohort`` includes the training samples. Of a
    parameter with a row per item, only the rows of sampled items are trained. A row that a client
    has not trained before starts as in ``download``.
    """
    samples = cohort.samples
    assert samples is not None
    touched = samples.touched
    start: dict[str, Float32] = {}
    for p in parameters:
        own = getattr(private, p.field)
        if p.per_item:
            own = overlay(getattr(download, p.field)[touched.items], touched, own)
        start[p.name] = own
    trained = {name: start[name].copy() for name in phase.names}
    losses = np.zeros(len(cohort.users))
    tables = [p.name for p in parameters if p.per_item]
    for chosen in _similar_sizes(samples, clients_at_once):
        few = _select_samples(samples, chosen)
        widest = int(few.touched.counts().max())
        place = touched.indptr[chosen][:, None] + np.arange(widest)
        valid = np.arange(widest) < few.touched.counts()[:, None]
        stacked: dict[str, Tensor] = {}
        for p in parameters:
            values = start[p.name]
            if p.per_item:
                part = values[np.where(valid, place, 0)].reshape(len(chosen), widest, *p.shape)
            else:
                part = values[chosen]
            stacked[p.name] = torch.from_numpy(part).to(device)
        here = cohort._replace(
            users=cohort.users[chosen], positives=select(cohort.positives, chosen), samples=few
        )
        result, losses[chosen] = train_phase(
            module, phase, tables, stacked, here, few, schedule, purpose
        )
        for p in parameters:
            if p.name in result and p.per_item:
                rows = result[p.name].cpu().numpy().reshape(len(chosen), widest, p.size)
                trained[p.name][place[valid]] = rows[valid]
            elif p.name in result:
                trained[p.name][chosen] = result[p.name].cpu().numpy()
    fields: dict[str, Any] = {}
    for p in parameters:
        if p.name in trained and p.per_item:
            fields[p.field] = merge(getattr(private, p.field), Rows(*touched, trained[p.name]))
        elif p.name in trained:
            fields[p.field] = trained[p.name]
    return fields, losses


def score_all(
    module: nn.Module, parameters: Sequence[Parameter], download: Any, private: Any, device: str
) -> Float32:
    """Logits of all items for every user in the private state: users x items."""
    table = next(p for p in parameters if p.per_item)
    n_items = len(getattr(download, table.field))
    n_users = len(getattr(private, table.field).indptr) - 1
    reader = RowReader(module, [p.name for p in parameters if p.per_item], None).eval()
    reader.set_shape((n_items,), torch.device(device))
    scores = np.empty((n_users, n_items), np.float32)

    def logits(values: dict[str, Tensor]) -> Any:
        named = {f"module.{name}": value for name, value in values.items()}
        return functional_call(reader, named, ())

    for low in range(0, n_users, SCORED_AT_ONCE):
        users = np.arange(low, min(low + SCORED_AT_ONCE, n_users))
        stacked = {}
        for p in parameters:
            own = getattr(private, p.field)
            if p.per_item:
                part = np.repeat(getattr(download, p.field)[None], len(users), 0)
                rows = select(own, users)
                part[owners(rows.indptr), rows.items] = rows.values
                part = part.reshape(len(users), n_items, *p.shape)
            else:
                part = own[users]
            stacked[p.name] = torch.from_numpy(part).to(device)
        with torch.no_grad():
            scores[users] = vmap(logits)(stacked).cpu().numpy()
    return scores


def _similar_sizes(samples: Samples, clients: int) -> Iterator[Int64]:
    """Yield groups of at most ``clients`` clients with similar numbers of samples."""
    order = np.argsort(samples.counts(), kind="stable")
    if len(order):
        yield from np.array_split(order, -(-len(order) // clients))


def _select_samples(samples: Samples, chosen: Int64) -> Samples:
    place = positions(samples.indptr, chosen)
    return Samples(
        indptr_from_counts(samples.counts()[chosen]),
        samples.row[place],
        samples.label[place],
        select(samples.touched, chosen),
    )
