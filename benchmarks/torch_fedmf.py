"""FedMF's twin: user vector and items trained together; pFedGraph's local training is the same.

pFedGraph's clients are trained without the pull, and its server's quadratic programmes are replaced
by one plain mean: both in PyTorch's favour. Unskew's side does all of it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.torch_loop import Phase, State, Twin


def build(n_items: int, config: Any) -> Any:
    return nn.ModuleDict(
        {"user": nn.Embedding(1, config.dim), "item": nn.Embedding(n_items, config.dim)}
    )


def state(model: Any, private: Any, client: int) -> State:
    return {"user.weight": torch.from_numpy(private.p[client : client + 1])}


def score(model: Any, users: Any, items: Any) -> Any:
    return (model["user"](users) * model["item"](items)).sum(1)


JOINT = Phase({"user.weight": "learning_rate", "item.weight": "learning_rate"}, score)
TWIN = Twin("fedmf", build, state, (JOINT,), bars={})
PFEDGRAPH = Twin("pfedgraph", build, state, (JOINT,), bars={"ml-100k": 50, "ml-1m": 50})
