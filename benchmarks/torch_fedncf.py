"""FedNCF's twin: user vector, items and a small network trained together.

A client starts from the network it trained last instead of the server's, which costs the same; the
network's few hundred numbers are left out of the upload, in PyTorch's favour.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.torch_loop import Phase, State, Twin

LAYERS = (0, 2, 4)
"""Where the linear layers stand in the network."""


def network(dim: int) -> Any:
    half = dim // 2
    layers = nn.Linear(2 * dim, dim), nn.Linear(dim, half), nn.Linear(half, 1)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def build(n_items: int, config: Any) -> Any:
    return nn.ModuleDict(
        {
            "user": nn.Embedding(1, config.dim),
            "item": nn.Embedding(n_items, config.dim),
            "mlp": network(config.dim),
        }
    )


def state(model: Any, private: Any, client: int) -> State:
    mlp = network(private.p.shape[1])
    nn.utils.vector_to_parameters(torch.from_numpy(private.mlp[client]), mlp.parameters())
    own = {f"mlp.{name}": value for name, value in mlp.state_dict().items()}
    return {"user.weight": torch.from_numpy(private.p[client : client + 1]), **own}


def score(model: Any, users: Any, items: Any) -> Any:
    both = torch.cat([model["user"](users), model["item"](items)], dim=-1)
    return model["mlp"](both).squeeze(-1)


PARTS = [f"mlp.{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
JOINT = Phase(dict.fromkeys(["user.weight", "item.weight", *PARTS], "learning_rate"), score)
TWIN = Twin("fedncf", build, state, (JOINT,), bars={"ml-100k": 50, "ml-1m": 50})
