"""The arithmetic with which methods score newcomers, as values for devices without Python.

A method whose newcomers are scored without training describes its ``fold_in`` and ``score`` by one
of these values (hook ``export``). A history is a list of distinct items, oldest first; the age of
one of its items is the number of later items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.kernels.transitions import Fading
from unskew.types import Float32, Int32

NO_FADING = Fading(np.ones(1), np.ones(1))
"""Weight 1 for every past item, whatever its age."""


class SameForAll(NamedTuple):
    """Every user gets the same scores."""

    scores: Float32


class ItemWeights(NamedTuple):
    """score_j = sum over the history's items i of k(age of i) ``weights[i, j]``."""

    weights: Float32
    fading: Fading
    """The weight k of a past item by its age."""


class Neighbours(NamedTuple):
    """score_j = sum over n of x ``similarity[j, n]``, with x the weight k(age) of the item
    ``neighbours[j, n]`` in the history, 0 if it is not there."""

    neighbours: Int32
    similarity: Float32
    fading: Fading
    """The weight k of a past item by its age."""


class DecayedFactors(NamedTuple):
    """FedRefit: with a row u_i = ``U[i] damping[i]`` for each item and one vector per decay g,

    p_g = (sum over the history's items i of g^age u_i) / sqrt(sum of g^age),
    score_j = ``V[j]`` . [p_g of all decays, 1].
    """

    U: Float32
    damping: Float32
    decays: Float32
    V: Float32
    horizon: float | None
    """Decay of later items as targets in a device's upload; None if it sends its vector instead."""
    backward: float
    """Weight of reading the history backwards as well, in a device's upload."""
    network_follows: bool = False
    """Whether rounds that train a network come after these, as in FedNext."""


class HistoryNetwork(NamedTuple):
    """FedNext: score_j = ``R[j]`` . [h, 1] + tau log(softplus(y_j / ``scale``) + 1e-4), with y the
    scores of ``refit``, tau the last entry of ``net``, and h the vector of the network
    ``net`` (see ``kernels.history_network``) after the last item; without an item, h is zero.
    ``R`` may have a single column; then there is no h, and ``net`` has tau only."""

    refit: DecayedFactors
    R: Float32
    net: Float32
    scale: float


Arithmetic = SameForAll | ItemWeights | Neighbours | DecayedFactors | HistoryNetwork
