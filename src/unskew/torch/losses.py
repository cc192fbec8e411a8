"""Losses for PyTorch methods.

A loss takes the logits and labels of a client's batch, two vectors with one entry per sample, and
returns one value per sample; training minimises their mean. A loss marked with ``per_positive``
takes two matrices and returns one value per row: each row has a positive in column 0 and its
negatives in the other columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

Loss = Callable[[Tensor, Tensor], Tensor]


def per_positive(loss: Loss) -> Loss:
    """Mark a loss as one that compares each positive with the negatives drawn for it."""
    loss.per_positive = True  # type: ignore[attr-defined]
    return loss


def bce(logits: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of each sample."""
    return functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")


@per_positive
def bpr(logits: Tensor, labels: Tensor) -> Tensor:
    """Bayesian personalised ranking (Rendle et al., 2009): -log sigmoid(positive - negative),
    averaged over the negatives of each positive."""
    return -functional.logsigmoid(logits[:, :1] - logits[:, 1:]).mean(1)


@per_positive
def softmax(logits: Tensor, labels: Tensor) -> Tensor:
    """Softmax cross-entropy of each positive against its negatives."""
    return torch.logsumexp(logits, 1) - logits[:, 0]
