"""Server optimisers for methods whose server gets the sum of the clients' parameter changes.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021. D is the weighted mean of the clients'
changes of a parameter x, and the server treats -D as the gradient. m and v are the first and second
moment; rate, momentum, second and adaptivity are settings:

    fedavg    x <- x + rate D
    fedavgm   m <- momentum m + D                     x <- x + rate m
    fedadam   m <- momentum m + (1 - momentum) D      v <- second v + (1 - second) D^2
              x <- x + rate m / (sqrt(v) + adaptivity)
    fedyogi   as fedadam, with v <- v - (1 - second) D^2 sign(v - D^2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from unskew.settings import Settings, setting
from unskew.types import Float32, Float64


@dataclass(frozen=True)
class ServerSettings(Settings):
    """Settings of the optimiser by which the server applies the clients' mean change."""

    server_optimizer: Literal["fedavg", "fedavgm", "fedadam", "fedyogi"] = "fedavg"
    """How the server applies the clients' mean change."""
    server_rate: float = setting(1.0, above=0)
    """The server's learning rate; adaptive optimisers want a small one, such as 0.01."""
    server_momentum: float = setting(0.9, at_most=1)
    """Share of the first moment that remains after a round."""
    server_second: float = setting(0.99, at_most=1)
    """Share of the second moment that remains after a round."""
    server_adaptivity: float = setting(1e-3, above=0)
    """Added to the root of the second moment: larger values make the optimiser less adaptive."""


class Moments(NamedTuple):
    """First moment (momentum of the change) and second moment (estimate of the squared change) of a
    parameter in a server optimiser. A moment that the optimiser does not use is an empty array."""

    first: Float32
    second: Float32


def initial_moments(settings: ServerSettings, value: Float32) -> Moments:
    """Moments of the parameter ``value`` before the first round: zeros of its shape, or empty
    arrays if the optimiser does not use them."""
    none, zero = np.zeros(0, np.float32), np.zeros_like(value)
    kind = settings.server_optimizer
    if kind == "fedavg":
        return Moments(none, none)
    return Moments(zero, none if kind == "fedavgm" else zero)


def apply_change(
    settings: ServerSettings, value: Float32, moments: Moments, change: Float64, weight: float
) -> tuple[Float32, Moments]:
    """Apply a round's changes to a parameter; returns its new value and its new moments. ``change``
    is the weighted sum of the clients' changes, ``weight`` the sum of the weights. If the weight is
    0, because no client has uploaded anything, both stay as they are."""
    if weight == 0:
        return value, moments
    s, mean = settings, change / weight
    first, second = moments
    if s.server_optimizer == "fedavg":
        return (value + s.server_rate * mean).astype(np.float32), moments
    if s.server_optimizer == "fedavgm":
        first = (s.server_momentum * first + mean).astype(np.float32)
        return (value + s.server_rate * first).astype(np.float32), Moments(first, second)
    first = (s.server_momentum * first + (1 - s.server_momentum) * mean).astype(np.float32)
    square, fresh = mean**2, 1 - s.server_second
    if s.server_optimizer == "fedadam":
        second = (s.server_second * second + fresh * square).astype(np.float32)
    else:
        second = (second - fresh * square * np.sign(second - square)).astype(np.float32)
    step = s.server_rate * first / (np.sqrt(second) + s.server_adaptivity)
    return (value + step).astype(np.float32), Moments(first, second)
