"""PFedRec's twin: per batch, SGD steps on the score function, then on the whole item table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.torch_loop import Loop, Phase, State, Twin


def build(n_items: int, config: Any) -> Any:
    return nn.ModuleDict(
        {"item": nn.Embedding(n_items, config.dim), "affine": nn.Linear(config.dim, 1)}
    )


def state(model: Any, private: Any, client: int) -> State:
    return {
        "affine.weight": torch.from_numpy(private.theta[client : client + 1]),
        "affine.bias": torch.from_numpy(private.bias[client : client + 1]),
    }


def score(model: Any, users: Any, items: Any) -> Any:
    return model["affine"](model["item"](items)).squeeze(-1)


class InTurns(Loop):
    """Two optimisers, two forward passes and two backward passes a batch."""

    def _stepper(self, model: Any, phase: Phase) -> Callable[[Any, Any, Any], float]:
        rate = self.config.learning_rate
        item_rate = rate * self.cohort.n_items * self.config.item_rate_factor
        optimisers = (
            torch.optim.SGD(model["affine"].parameters(), lr=rate),
            torch.optim.SGD(model["item"].parameters(), lr=item_rate),
        )
        criterion = nn.BCELoss()

        def step(users: Any, items: Any, labels: Any) -> float:
            for optimiser in optimisers:
                optimiser.zero_grad()
                loss = criterion(torch.sigmoid(phase.score(model, users, items)), labels)
                loss.backward()
                optimiser.step()
            return float(loss.item())

        return step


BARS = {"ml-100k": 50, "ml-1m": 50}
TWIN = Twin("pfedrec", build, state, (Phase({}, score),), BARS, InTurns)
