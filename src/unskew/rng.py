"""Counter-based randomness: a stream is named by (seed, round, user, purpose) and has no state.

A stream's n-th value is a hash of its name and n (SplitMix64: Steele, Lea & Flood, OOPSLA 2014),
so no draw depends on how many threads there are, in which order clients run, or whether the run
was resumed. Kernels use ``stream`` and ``value``; code outside kernels gets a NumPy generator from
``generator``, named in the same way.
"""

from __future__ import annotations

import enum

import numba
import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
"""The constants of SplitMix64."""


class Purpose(enum.IntEnum):
    """The use of a stream. Saved results depend on the values: add new ones, never renumber."""

    INIT_ITEMS = 1
    INIT_USER = 2
    INIT_BUFFER = 3
    COHORT = 4
    NEGATIVES = 5
    SHUFFLE_LOCAL = 6
    SHUFFLE_PERSONAL = 7
    CANDIDATES = 8
    NOISE = 9
    DEMO_DATA = 10
    AUDIT_DATA = 11
    INIT_DENSE = 12
    BOOTSTRAP = 13


@numba.njit(inline="always")
def mix(x: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of 64 bits that mixes every bit into every other."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@numba.njit(inline="always")
def stream(seed: int, round: int, user: int, purpose: int) -> np.uint64:
    """The first state of the stream named by its four coordinates."""
    state = mix(np.uint64(seed) + _GOLDEN)
    state = mix(state ^ (np.uint64(round) + _GOLDEN))
    state = mix(state ^ (np.uint64(user) + _GOLDEN))
    return mix(state ^ (np.uint64(purpose) + _GOLDEN))


@numba.njit(inline="always")
def value(state: np.uint64, counter: int) -> np.uint64:
    """The stream's value number ``counter``: 64 uniform bits."""
    return mix(state + np.uint64(counter + 1) * _GOLDEN)


@numba.njit(inline="always")
def below(bits: np.uint64, n: int) -> int:
    """An integer in [0, n) from the upper 32 bits, with a bias below n / 2**32."""
    return int(((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


def generator(seed: int, purpose: Purpose, *coordinates: int) -> np.random.Generator:
    """A NumPy generator for a named stream, for draws outside kernels."""
    # The seed in two words and the number of coordinates keep different names from coinciding.
    words = (seed & 0xFFFFFFFF, seed >> 32, int(purpose), len(coordinates), *coordinates)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
