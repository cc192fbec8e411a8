"""GPFedRec's twin: three SGD optimisers, and a pull of the whole item table to another.

The table it is pulled to is the common one, which costs the same as the client's own. The server
compares all tables with all and averages over neighbours: two dense products, timed once.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import torch
from torch import nn

from benchmarks.timing import Row, Setting
from benchmarks.torch_fedncf import build, score, state
from benchmarks.torch_loop import Loop, Phase, Twin
from benchmarks.torch_loop import measure as measure_twin


class Pulled(Loop):
    """One backward pass through both losses a batch; an optimiser for each part of the model."""

    def server_seconds(self, threads: int) -> float:
        return _graph_seconds(len(self.batches), self.model["item"].weight.numel(), threads)

    def _train(self, model: Any, phase: Phase, loader: Any, n: int) -> float:
        c = self.config
        rate, boost = c.learning_rate, c.learning_rate * c.rate_factor
        optimisers = (
            torch.optim.SGD(model["mlp"].parameters(), lr=rate),
            torch.optim.SGD(model["user"].parameters(), lr=boost / c.participation - rate),
            torch.optim.SGD(model["item"].parameters(), lr=boost * self.cohort.n_items - rate),
        )
        target = self.model["item"].weight.detach().clone()
        criterion, distance = nn.BCELoss(), nn.MSELoss()
        total = 0.0
        for _ in range(c.local_epochs):
            for users, items, labels in loader:
                for optimiser in optimisers:
                    optimiser.zero_grad()
                loss = criterion(torch.sigmoid(phase.score(model, users, items)), labels)
                total += loss.item() * len(labels)
                (loss + c.reg * distance(model["item"].weight, target)).backward()
                for optimiser in optimisers:
                    optimiser.step()
                self.batches_run += 1
        return float(total / (n * c.local_epochs))


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


TWIN = Twin("gpfedrec", build, state, (Phase({}, score),), bars={})


def measure(setting: Setting) -> Row:
    return measure_twin(TWIN, setting, Pulled)
