"""Call a PyTorch module with a few rows of its embedding tables in place of the whole tables.

A training step reads few rows of a table. They are copied to a small table with which the module is
called, and the gradients of its rows are added to the rows of the table they come from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unskew.jit import jit
from unskew.types import Float32, Int64

Score = Callable[[nn.Module, Tensor], Tensor]
"""Function ``score(module, items)`` that returns the logits of items, given by number."""


class _Rows(nn.Embedding):
    """An embedding whose weight holds exactly the rows of the items it is called with, in order. It
    returns its weight, which saves a lookup and, in the backward pass, a slow sum."""

    items: Tensor

    def forward(self, items: Tensor) -> Tensor:
        if items is self.items:
            return self.weight.view(*items.shape, -1)
        return super().forward(items)


class _Dropout(nn.Dropout):
    """Dropout whose mask depends on the client, the step and the layer only, not on the clients
    trained together: a hash (SplitMix64) of ``key`` and n decides whether entry n is dropped."""

    key: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        bits = self.key + torch.arange(x.numel(), device=x.device) * -7046029254386353131
        for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
            bits = (bits ^ ((bits >> shift) & ((1 << (64 - shift)) - 1))) * factor
        uniform = ((bits >> 40) & 0xFFFFFF).to(x.dtype) / 2**24
        return x * (uniform >= self.p).view(x.shape) / (1 - self.p)


class RowReader(nn.Module):
    """A copy of a module that is called with a few rows of its tables in place of whole tables."""

    def __init__(self, module: nn.Module, tables: Sequence[str], score: Score | None) -> None:
        super().__init__()
        # functional_call swaps parameters of the module, which threads must not share.
        self.module, self._score = copy.deepcopy(module), score
        self._embeddings: list[Any] = []
        self._dropouts: list[Any] = []
        for name, part in self.module.named_modules():
            if type(part) is nn.Dropout:
                part.__class__ = _Dropout
                self._dropouts.append(part)
            if type(part) is nn.Embedding and f"{name}.weight" in tables:
                part.__class__, part.padding_idx = _Rows, None
                self._embeddings.append(part)

    def set_shape(self, shape: Sequence[int], device: torch.device) -> None:
        """Set the shape of the array of items that the module is called with next. Its entries are
        positions among the gathered rows, 0, 1, 2 and so on, not item numbers."""
        self.items = torch.arange(int(np.prod(shape)), device=device).view(*shape)
        for part in self._embeddings:
            part.items = self.items

    def set_key(self, key: Tensor) -> None:
        """Set the key from which a client's dropout masks in this step are computed."""
        for number, part in enumerate(self._dropouts):
            part.key = key + (number << 32)

    def forward(self) -> Any:
        """Logits of the items. These are an attribute because torch.func would wrap an argument."""
        if self._score is None:
            return self.module(self.items)
        return self._score(self.module, self.items)


def gather_rows(value: Tensor, rows: Tensor) -> Tensor:
    """Select rows of each client's table; returns a tensor of shape clients x rows x row shape."""
    chosen = value.flatten(0, 1).index_select(0, rows.flatten())
    return chosen.view(len(value), -1, *value.shape[2:])


def add_gradients(gradient: Tensor, rows: Tensor, like: Tensor) -> Tensor:
    """The gradient of a table from the gradients of rows gathered from it. Those of a row that was
    gathered several times are added."""
    total = torch.zeros_like(like)
    width = int(np.prod(like.shape[2:], dtype=int))
    flat = gradient.reshape(-1, width)
    if like.device.type == "cpu":
        _add_rows(total.view(-1, width).numpy(), rows.flatten().numpy(), flat.detach().numpy())
    else:
        total.view(-1, width).index_add_(0, rows.flatten(), flat)
    return total


@jit
def _add_rows(total: Float32, rows: Int64, values: Float32) -> None:
    """Add each of ``values`` to its row of ``total``. On a CPU this is many times as fast as
    PyTorch's index_add_."""
    for n in range(len(rows)):
        for k in range(values.shape[1]):
            total[rows[n], k] += values[n, k]
