"""GPFedRec's twin: three SGD optimisers, and a pull of the whole item table to another.

The table it is pulled to is the common one, which costs the same as the client's own. The server
compares all tables with all and averages over neighbours: two dense products, timed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from benchmarks.torch_fedncf import build, score, state
from benchmarks.torch_loop import Loop, Phase, Twin


class Pulled(Loop):
    """One backward pass through both losses a batch; an optimiser for each part of the model."""

    def server_seconds(self, threads: int) -> float:
        return _graph_seconds(len(self.batches), self.model["item"].weight.numel(), threads)

    def _stepper(self, model: Any, phase: Phase) -> Callable[[Any, Any, Any], float]:
        c = self.config
        rate, boost = c.learning_rate, c.learning_rate * c.rate_factor
        optimisers = (
            torch.optim.SGD(model["mlp"].parameters(), lr=rate),
            torch.optim.SGD(model["user"].parameters(), lr=boost / c.participation - rate),
            torch.optim.SGD(model["item"].parameters(), lr=boost * self.cohort.n_items - rate),
        )
        target = self.model["item"].weight.detach().clone()
        criterion, distance = nn.BCELoss(), nn.MSELoss()

        def step(users: Any, items: Any, labels: Any) -> float:
            for optimiser in optimisers:
                optimiser.zero_grad()
            loss = criterion(torch.sigmoid(phase.score(model, users, items)), labels)
            (loss + c.reg * distance(model["item"].weight, target)).backward()
            for optimiser in optimisers:
                optimiser.step()
            return float(loss.item())

        return step


@cache
def _graph_seconds(clients: int, entries: int, threads: int) -> float:
    torch.set_num_threads(threads)
    tables = torch.randn(clients, entries)
    began = time.perf_counter()
    directions = nn.functional.normalize(tables)
    apart = 1 - directions @ directions.T
    graph = (apart > apart.mean()).float()
    (graph @ tables / graph.sum(1, keepdim=True)).mean(0)
    return time.perf_counter() - began


TWIN = Twin("gpfedrec", build, state, (Phase({}, score),), bars={}, loop=Pulled)
