"""Server optimisers for methods whose server gets a sum of changes.

Reddi et al., "Adaptive Federated Optimization", ICLR 2021. With D the weighted mean of the clients'
changes, the server treats -D as a gradient:

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
    """How the server applies the clients' mean change."""

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
    """First and second moment of a parameter; an optimiser that needs none has empty arrays."""

    first: Float32
    second: Float32


def initial_moments(settings: ServerSettings, value: Float32) -> Moments:
    """Zero moments of the shapes that the optimiser needs."""
    none, zero = np.zeros(0, np.float32), np.zeros_like(value)
    kind = settings.server_optimizer
    if kind == "fedavg":
        return Moments(none, none)
    return Moments(zero, none if kind == "fedavgm" else zero)


def apply_change(
    settings: ServerSettings, value: Float32, moments: Moments, change: Float64, weight: float
) -> tuple[Float32, Moments]:
    """The parameter and its moments after a round, from the weighted sum of the changes and the
    sum of the weights. A round in which nobody sent anything changes nothing."""
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
