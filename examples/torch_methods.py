"""Three methods through the PyTorch adapter: PFedCLR, PFedRec, and a small perceptron.

A module is the model of one device: ``forward`` gets item numbers and returns their logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unskew.torch import Phase, TorchConfig, TorchMethod


class CalibratedItems(nn.Module):
    """p.(q + a B): a user vector, shared item rows, and a private low-rank buffer over them."""

    def __init__(self, n_items: int, dim: int, rank: int) -> None:
        super().__init__()
        self.user = nn.Parameter(torch.randn(dim))
        self.items = nn.Embedding(n_items, dim)
        self.A = nn.Embedding(n_items, rank)
        self.B = nn.Parameter(torch.randn(rank, dim))
        nn.init.zeros_(self.A.weight)

    def forward(self, items: Tensor) -> Any:
        return (self.items(items) + self.A(items) @ self.B) @ self.user

    def without_buffer(self, items: Tensor) -> Any:
        return self.items(items) @ self.user


@dataclass(frozen=True)
class PFedCLRConfig(TorchConfig):
    rank: int = 2
    """Rank r of A B."""
    buffer_rate: float = 0.01
    """Adam's rate for the buffer (beta)."""


class PFedCLR(TorchMethod):
    """PFedCLR: Step 1 trains the items, Step 2 the user vector and the buffer."""

    name = "pfedclr-torch"
    Config = PFedCLRConfig
    shared = ("items.weight",)

    def build(self, n_items: int) -> nn.Module:
        return CalibratedItems(n_items, self.config.dim, self.config.rank)

    def phases(self, n_items: int) -> Sequence[Phase]:
        c = self.config
        own = {"user": c.learning_rate, "A.weight": c.buffer_rate, "B": c.buffer_rate}
        items = Phase({"items.weight": c.learning_rate}, score=CalibratedItems.without_buffer)
        return items, Phase(own)


class AffineScore(nn.Module):
    """theta.q + b: a private score function over shared item rows."""

    def __init__(self, n_items: int, dim: int) -> None:
        super().__init__()
        self.items = nn.Embedding(n_items, dim)
        self.affine = nn.Linear(dim, 1)

    def forward(self, items: Tensor) -> Any:
        return self.affine(self.items(items)).squeeze(-1)


@dataclass(frozen=True)
class PFedRecConfig(TorchConfig):
    participation: float = 1.0
    local_epochs: int = 1
    tolerance: float = 0.0
    learning_rate: float = 0.1
    item_rate_factor: float = 80.0
    """SGD's rate for the items is this times ``learning_rate`` times the number of items."""


class PFedRec(TorchMethod):
    """PFedRec: per batch, SGD on the score function, then on the items."""

    name = "pfedrec-torch"
    Config = PFedRecConfig
    shared = ("items.weight",)
    weighting = "equal"

    def build(self, n_items: int) -> nn.Module:
        return AffineScore(n_items, self.config.dim)

    def phases(self, n_items: int) -> Sequence[Phase]:
        rate = self.config.learning_rate
        score = {"affine.weight": rate, "affine.bias": rate}
        items = {"items.weight": rate * n_items * self.config.item_rate_factor}
        return (Phase((score, items), optimizer=torch.optim.SGD),)


class SmallPerceptron(nn.Module):
    """A perceptron over the user's and the item's vector; only the user vector is private."""

    def __init__(self, n_items: int, dim: int) -> None:
        super().__init__()
        self.user = nn.Parameter(torch.randn(dim))
        self.items = nn.Embedding(n_items, dim)
        self.hidden = nn.Linear(2 * dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, items: Tensor) -> Any:
        both = torch.cat((self.user.expand(*items.shape, -1), self.items(items)), -1)
        return self.out(torch.relu(self.hidden(both))).squeeze(-1)


class Perceptron(TorchMethod):
    """A small perceptron whose weights the server averages with the items."""

    name = "perceptron-torch"
    shared = ("items.weight", "hidden.weight", "hidden.bias", "out.weight", "out.bias")

    def build(self, n_items: int) -> nn.Module:
        return SmallPerceptron(n_items, self.config.dim)
