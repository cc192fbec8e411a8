"""Networks that predict a user's next item from its items so far, and their training.

A network maps a batch of histories, padded on the right, to one vector per position; position t
depends on the items 0..t alone. Items are scored by the inner product of that vector with their
embeddings, which are also the network's input. `unskew.methods.sasrec` and `gru4rec` load this
module when they are first used, so that the package works without PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unskew.rng import Purpose, generator
from unskew.torch.training import NO_ITEM
from unskew.types import Bool, Cohort, Float32, Int64, Ragged

INIT_SCALE = 0.02
"""Standard deviation of the initial embeddings."""
BETAS = (0.9, 0.98)
"""Decay rates of Adam's two moments."""
LAST_RATE = 0.02
"""Learning rate at the end of training, as a share of the initial one."""
EVALUATION_POSITIONS = 8192
"""Positions per batch when no gradients are needed. Larger ones leave the cache and are slower."""


class Block(nn.Module):
    """Causal self-attention and a two-layer network for each position, each added to its input
    after layer normalisation of that input."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before_attention, self.before_network = nn.LayerNorm(dim), nn.LayerNorm(dim)
        # A bias of the keys would not change the attention, so there is none.
        self.query_key_value = nn.Linear(dim, 3 * dim, bias=False)
        self.mix_heads = nn.Linear(dim, dim)
        self.widen, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        users, length, dim = x.shape
        parts = self.query_key_value(self.before_attention(x))
        parts = parts.view(users, length, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        seen = self.mix_heads(seen.transpose(1, 2).reshape(users, length, dim))
        x = x + F.dropout(seen, self.dropout, self.training)
        deep = self.narrow(F.gelu(self.widen(self.before_network(x))))
        return x + F.dropout(deep, self.dropout, self.training)


class Transformer(nn.Module):
    """SASRec: item and position embeddings, then causal self-attention blocks."""

    def __init__(self, n_items: int, config: Any) -> None:
        super().__init__()
        self.items = nn.Embedding(n_items, config.dim)
        self.positions = nn.Embedding(config.window, config.dim)
        sizes = config.dim, config.heads, config.dropout
        self.blocks = nn.Sequential(*(Block(*sizes) for _ in range(config.blocks)))
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = config.dropout
        nn.init.normal_(self.items.weight, std=INIT_SCALE)
        nn.init.normal_(self.positions.weight, std=INIT_SCALE)

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        """Vectors (users, positions, dim) of padded histories of these lengths. A position's number
        is its distance from the end of the history."""
        after = (lengths[:, None] - 1 - torch.arange(items.shape[1], device=items.device)).clamp(0)
        x = (self.items(items) + self.positions(after)) * math.sqrt(self.items.embedding_dim)
        x = F.dropout(x, self.dropout, self.training)
        return self.norm(self.blocks(x))


class Recurrent(nn.Module):
    """GRU4Rec: a gated recurrent unit over the items' embeddings."""

    def __init__(self, n_items: int, config: Any) -> None:
        super().__init__()
        self.items = nn.Embedding(n_items, config.dim)
        self.unit = nn.GRU(config.dim, config.hidden, batch_first=True)
        self.narrow = nn.Linear(config.hidden, config.dim)
        self.norm = nn.LayerNorm(config.dim)
        self.dropout = config.dropout
        nn.init.normal_(self.items.weight, std=INIT_SCALE)

    def forward(self, items: Tensor, lengths: Tensor) -> Tensor:
        """Vectors (users, positions, dim) of padded histories."""
        x = self.items(items) * math.sqrt(self.items.embedding_dim)
        x, _ = self.unit(F.dropout(x, self.dropout, self.training))
        return self.norm(self.narrow(F.dropout(x, self.dropout, self.training)))


NETWORKS: dict[str, Any] = {"sasrec": Transformer, "gru4rec": Recurrent}
"""The network of each method."""


class Trained(NamedTuple):
    """Parameters, Adam's two moments (all three flat, in the order of the network's parameters),
    and the number of Adam steps so far."""

    parameters: Float32
    mean: Float32
    square: Float32
    steps: int


class _Batch(NamedTuple):
    """Users' numbers, their items padded to equal length, and True for items that are not
    padding."""

    users: Int64
    items: Int64
    present: Bool


def initial_parameters(name: str, config: Any, n_items: int, seed: int) -> Float32:
    """Initial parameters of a method's network in one flat array, the item embeddings first."""
    with _seeded(generator(seed, Purpose.INIT_ITEMS)):
        network = NETWORKS[name](n_items, config)
    flat: Float32 = nn.utils.parameters_to_vector(network.parameters()).detach().numpy()
    return flat


def train_epoch(name: str, config: Any, state: Trained, everyone: Cohort) -> tuple[Trained, float]:
    """Train once on all users' histories. Returns the new state and the mean loss per position."""
    random = generator(everyone.seed, Purpose.SHUFFLE_LOCAL, everyone.round)
    counts = everyone.positives.counts()
    windows = np.minimum(counts, config.window + 1)
    first = everyone.positives.indptr[:-1] + random.integers(0, counts - windows + 1)
    device, total, positions, steps = _device(), 0.0, 0, state.steps
    network = _network(name, config, state.parameters, everyone.n_items).train()
    optimizer = _adam(network, config, state)
    learners = random.permutation(np.flatnonzero(windows > 1))
    size = min(config.batch, int(windows.sum()) // config.least_steps)
    batches = list(_batches(everyone.positives, learners, first, windows, max(1, size)))
    with _seeded(random):
        for done, at in enumerate(random.permutation(len(batches)).tolist()):
            _, items, present = (torch.from_numpy(part).to(device) for part in batches[at])
            vectors = network(items[:, :-1], present[:, 1:].sum(1))[present[:, 1:]]
            targets, negatives = items[:, 1:][present[:, 1:]], None
            if 0 < config.negatives < everyone.n_items:
                drawn = random.choice(everyone.n_items, config.negatives, replace=False)
                negatives = torch.from_numpy(drawn).to(device)
            loss = next_item_loss(vectors, network.items.weight, targets, negatives)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), config.clip)
            epochs = everyone.round - 1 + done / len(batches)
            steps, left = steps + 1, max(1 - epochs / config.rounds, LAST_RATE)
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * min(left, steps / config.warm_up)
            optimizer.step()
            total, positions = total + loss.item() * len(targets), positions + len(targets)
    return _trained(network, optimizer, steps), total / max(positions, 1)


def next_item_loss(
    vectors: Tensor, items: Tensor, targets: Tensor, negatives: Tensor | None
) -> Tensor:
    """Mean cross-entropy of the target items under a softmax over all items, or, if ``negatives``
    are given, over the target and these distinct items. A negative then stands for
    n_items / len(negatives) items; one that is the target itself is left out."""
    if negatives is None:
        return F.cross_entropy(vectors @ items.T, targets)
    column = torch.full((len(items),), -1, device=targets.device)
    column[negatives] = torch.arange(len(negatives), device=targets.device)
    logits = F.linear(vectors, items[negatives])
    (hit,) = torch.where(column[targets] >= 0)
    logits[hit, column[targets[hit]]] = NO_ITEM
    others = torch.logsumexp(logits, 1) + math.log(len(items) / len(negatives))
    return F.softplus(others - (vectors * items[targets]).sum(1)).mean()


def encode_histories(
    name: str, config: Any, parameters: Float32, n_items: int, history: Ragged
) -> Float32:
    """The network's vector after the last item of each history; zeros for an empty one."""
    counts = history.counts()
    windows = np.minimum(counts, config.window)
    first = history.indptr[1:] - windows
    network, device = _network(name, config, parameters, n_items).eval(), _device()
    vectors = np.zeros((len(counts), config.dim), np.float32)
    somebody = np.flatnonzero(windows > 0)
    with torch.inference_mode():
        for batch in _batches(history, somebody, first, windows, EVALUATION_POSITIONS):
            items, lengths = torch.from_numpy(batch.items).to(device), batch.present.sum(1)
            out = network(items, torch.from_numpy(lengths).to(device))
            vectors[batch.users] = out[torch.arange(len(items)), lengths - 1].cpu().numpy()
    return vectors


def _batches(
    history: Ragged, users: Int64, first: Int64, lengths: Int64, positions: int
) -> Iterator[_Batch]:
    """Batches of users with similar lengths, of about ``positions`` padded positions each."""
    users = users[np.argsort(-lengths[users], kind="stable")]
    while len(users):
        longest = lengths[users[0]]
        here, users = np.split(users, [max(1, positions // longest)])
        steps = np.arange(longest)
        present = steps < lengths[here, None]
        items = history.items[np.where(present, first[here, None] + steps, 0)].astype(np.int64)
        yield _Batch(here, items, present)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def _seeded(random: np.random.Generator) -> Iterator[None]:
    """Seed PyTorch's generators from ``random`` and restore them afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(int(random.integers(2**63)))
        yield


def _network(name: str, config: Any, parameters: Float32, n_items: int) -> nn.Module:
    """A method's network with these parameters."""
    with torch.random.fork_rng():  # its initial values are overwritten
        network = NETWORKS[name](n_items, config)
    flat = torch.from_numpy(parameters.copy())
    nn.utils.vector_to_parameters(flat, network.parameters())
    return network.to(_device())


def _adam(network: nn.Module, config: Any, state: Trained) -> torch.optim.Adam:
    """Adam with the moments of earlier epochs."""
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(parameters, config.learning_rate, BETAS, fused=True)
    sizes: Sequence[int] = [one.numel() for one in parameters]
    moments = (torch.from_numpy(m.copy()).to(_device()).split(sizes) for m in state[1:3])
    for one, mean, square in zip(parameters, *moments, strict=True):
        optimizer.state[one] = {
            "step": torch.tensor(float(state.steps), device=one.device),
            "exp_avg": mean.view_as(one),
            "exp_avg_sq": square.view_as(one),
        }
    return optimizer


def _trained(network: nn.Module, optimizer: torch.optim.Adam, steps: int) -> Trained:
    """Flat copies of the network's parameters and of Adam's moments."""
    parameters = list(network.parameters())
    kept = (
        parameters,
        [optimizer.state[one]["exp_avg"] for one in parameters],
        [optimizer.state[one]["exp_avg_sq"] for one in parameters],
    )
    flat, mean, square = (
        torch.cat([one.detach().flatten() for one in part]).cpu().numpy() for part in kept
    )
    return Trained(flat, mean, square, steps)
