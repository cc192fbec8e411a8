"""Shared code of the central baselines that predict a user's next item from its history: settings,
states, and the steps that hand over to PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import numpy as np

from unskew.settings import Settings, setting
from unskew.types import CentralMethod, Cohort, Float32, Int64, Ragged, UnskewError


@dataclass(frozen=True)
class NextItemConfig(Settings):
    """Settings of the baselines that predict the next item."""

    rounds: int = setting(60, above=0)
    """Epochs over all histories."""
    dim: int = setting(64, above=0)
    """Embedding size d."""
    window: int = setting(200, above=0)
    """Most items of a history that the network sees: the last ones, or, in training, a window that
    is drawn in each epoch."""
    learning_rate: float = setting(0.001, above=0)
    """Learning rate of Adam."""
    warm_up: int = setting(100, above=0)
    """Steps of Adam in which the learning rate grows from zero."""
    batch: int = setting(4096, above=0)
    """Largest number of positions per batch, padding included."""
    least_steps: int = setting(150, above=0)
    """Steps of Adam per epoch; data sets with few positions get smaller batches."""
    negatives: int = 512
    """Items per batch that stand for the whole catalogue in the softmax; 0: all items."""
    dropout: float = setting(0.2, at_most=0.99)
    """Share of activations set to zero in training."""
    clip: float = setting(5.0, above=0)
    """Largest norm of the gradient of a batch; longer ones are shortened to it."""


class Server(NamedTuple):
    """Item embeddings, all other parameters in one array, Adam's moments of both (embeddings
    first), and the number of Adam steps."""

    Q: Float32
    network: Float32
    mean: Float32
    square: Float32
    steps: Int64


class Download(NamedTuple):
    """Item embeddings and all other parameters."""

    Q: Float32
    network: Float32


class Private(NamedTuple):
    """The network's vector after each user's last item."""

    h: Float32


class NextItemMethod(CentralMethod):
    """Base class: the network runs in PyTorch, and items are scored by their inner product with the
    user's vector ``h``."""

    config: NextItemConfig
    exact: ClassVar[bool] = False
    stateless: ClassVar[bool] = True

    def init(self, n_users: int, n_items: int, seed: int) -> tuple[Server, Private]:
        flat = self._torch().initial_parameters(self.name, self.config, n_items, seed)
        Q, network = self._split(flat, n_items)
        mean, square = np.zeros_like(flat), np.zeros_like(flat)
        h = np.zeros((n_users, self.config.dim), np.float32)
        return Server(Q, network, mean, square, np.zeros(1, np.int64)), Private(h)

    def download(self, server: Server) -> Download:
        return Download(server.Q, server.network)

    def epoch(
        self, server: Server, private: Private, everyone: Cohort
    ) -> tuple[Server, Private, float]:
        torch, parameters = self._torch(), _flat(server.Q, server.network)
        start = torch.Trained(parameters, server.mean, server.square, int(server.steps[0]))
        (flat, mean, square, steps), loss = torch.train_epoch(
            self.name, self.config, start, everyone
        )
        Q, network = self._split(flat, everyone.n_items)
        after = Server(Q, network, mean, square, np.array([steps]))
        return after, self.refresh(self.download(after), private, everyone.positives), loss

    def refresh(self, download: Download, private: Private, history: Ragged) -> Private:
        parameters = _flat(download.Q, download.network)
        encode = self._torch().encode_histories
        return Private(encode(self.name, self.config, parameters, len(download.Q), history))

    def score(self, download: Download, private: Private) -> Float32:
        scores: Float32 = private.h @ download.Q.T
        return scores

    def _split(self, flat: Float32, n_items: int) -> tuple[Float32, Float32]:
        """Item embeddings and all other parameters, from all parameters in one array."""
        Q, network = np.split(flat, [n_items * self.config.dim])
        return Q.reshape(n_items, -1), network

    def _torch(self) -> Any:
        """The module with the networks. It is loaded on first use because PyTorch is optional."""
        try:
            return import_module("unskew.torch.next_item")
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise UnskewError(
                f"{self.name} needs PyTorch; install it with: pip install 'unskew[torch]'."
            ) from None


def _flat(Q: Float32, network: Float32) -> Float32:
    """All parameters in one array."""
    return np.concatenate((Q.ravel(), network))
