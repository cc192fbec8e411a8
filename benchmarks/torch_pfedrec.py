"""PFedRec's twin: per batch, SGD steps on the score function, then on the whole item table."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.timing import Row, Setting
from benchmarks.torch_loop import Loop, Phase, State, Twin
from benchmarks.torch_loop import measure as measure_twin


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

    def _train(self, model: Any, phase: Phase, loader: Any, n: int) -> float:
        rate = self.config.learning_rate
        item_rate = rate * self.cohort.n_items * self.config.item_rate_factor
        optimisers = (
            torch.optim.SGD(model["affine"].parameters(), lr=rate),
            torch.optim.SGD(model["item"].parameters(), lr=item_rate),
        )
        criterion = nn.BCELoss()
        total = 0.0
        for _ in range(self.config.local_epochs):
            for users, items, labels in loader:
                for optimiser in optimisers:
                    optimiser.zero_grad()
                    loss = criterion(torch.sigmoid(phase.score(model, users, items)), labels)
                    loss.backward()
                    optimiser.step()
                total += loss.item() * len(labels)
                self.batches_run += 1
        return float(total / (n * self.config.local_epochs))


TWIN = Twin("pfedrec", build, state, (Phase({}, score),), bars={"ml-100k": 50, "ml-1m": 50})


def measure(setting: Setting) -> Row:
    return measure_twin(TWIN, setting, InTurns)
