"""FedRAP's twin: two dense tables and a linear layer, one SGD with weight decay over all of them.

``item`` is the shared table D, ``own`` the private table C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.torch_loop import Loop, Phase, State, Twin


def build(n_items: int, config: Any) -> Any:
    return nn.ModuleDict(
        {
            "item": nn.Embedding(n_items, config.dim),
            "own": nn.Embedding(n_items, config.dim),
            "affine": nn.Linear(config.dim, 1),
        }
    )


def state(model: Any, private: Any, client: int) -> State:
    own = model["own"].weight.detach().clone()
    run = slice(private.C.indptr[client], private.C.indptr[client + 1])
    own[torch.from_numpy(private.C.items[run]).long()] = torch.from_numpy(private.C.values[run])
    return {
        "own.weight": own * float(private.C_scale[client]),
        "affine.weight": torch.from_numpy(private.weight[client : client + 1]),
        "affine.bias": torch.from_numpy(private.bias[client : client + 1]),
    }


def score(model: Any, users: Any, items: Any) -> Any:
    return model["affine"](model["own"](items) + model["item"](items)).squeeze(-1)


class Additive(Loop):
    """The loss keeps the batch's rows of the two tables apart and the shared ones sparse; rates
    fall after every batch."""

    def __init__(self, twin: Twin, federation: Any, state: Any) -> None:
        super().__init__(twin, federation, state)
        with torch.no_grad():
            self.model["own"].weight.copy_(torch.from_numpy(self.download.C_0))

    def _stepper(self, model: Any, phase: Phase) -> Callable[[Any, Any, Any], float]:
        rates = self.config.rates(self.cohort.round)
        tables = [model["own"].weight, model["item"].weight]
        optimiser = torch.optim.SGD(
            [
                {"params": model["affine"].parameters(), "lr": rates.score},
                {"params": tables, "lr": rates.tables},
            ],
            weight_decay=rates.weight_decay,
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, rates.decay)
        criterion, distance, size = nn.BCELoss(), nn.MSELoss(), nn.L1Loss()

        def step(users: Any, items: Any, labels: Any) -> float:
            optimiser.zero_grad()
            own, shared = model["own"](items), model["item"](items)
            loss = criterion(torch.sigmoid(phase.score(model, users, items)), labels)
            loss = loss - rates.independence * distance(own, shared)
            loss = loss + rates.sparsity * size(shared, torch.zeros_like(shared))
            loss.backward()
            optimiser.step()
            schedule.step()
            return float(loss.item())

        return step


BARS = {"ml-100k": 50, "ml-1m": 50}
TWIN = Twin("fedrap", build, state, (Phase({}, score),), BARS, Additive)
