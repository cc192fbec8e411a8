"""PFedCLR's twin: items against a frozen user vector, then user vector, A and B over frozen items.

The buffer is dense, A with a row per item and B; a batch gathers its rows of both tables, which is
kinder to PyTorch than forming Q + A B for all items.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.torch_loop import Phase, State, Twin


def build(n_items: int, config: Any) -> Any:
    return nn.ModuleDict(
        {
            "user": nn.Embedding(1, config.dim),
            "item": nn.Embedding(n_items, config.dim),
            "A": nn.Embedding(n_items, config.rank),
            "B": nn.Linear(config.rank, config.dim, bias=False),
        }
    )


def state(model: Any, private: Any, client: int) -> State:
    A = torch.zeros_like(model["A"].weight)
    run = slice(private.A.indptr[client], private.A.indptr[client + 1])
    A[torch.from_numpy(private.A.items[run]).long()] = torch.from_numpy(private.A.values[run])
    return {
        "user.weight": torch.from_numpy(private.p[client : client + 1]),
        "A.weight": A,
        "B.weight": torch.from_numpy(private.B[client]).T,
    }


def local_score(model: Any, users: Any, items: Any) -> Any:
    return (model["user"](users) * model["item"](items)).sum(1)


def personal_score(model: Any, users: Any, items: Any) -> Any:
    personal = model["item"](items) + model["B"](model["A"](items))
    return (model["user"](users) * personal).sum(1)


LOCAL = Phase({"item.weight": "learning_rate"}, local_score)
PERSONAL = Phase(
    {"user.weight": "learning_rate", "A.weight": "buffer_rate", "B.weight": "buffer_rate"},
    personal_score,
)
TWIN = Twin("pfedclr", build, state, (LOCAL, PERSONAL), bars={"ml-100k": 400, "ml-1m": 600})
