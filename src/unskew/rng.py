"""Counter-based random numbers: streams without state, one per (seed, round, user, purpose).

The n-th value of a stream is a hash of these four numbers and n (SplitMix64: Steele, Lea & Flood,
OOPSLA 2014). So no draw depends on the number of threads, the order in which clients run, or
whether the run was resumed. Kernels use ``stream`` and ``value``. Code outside kernels gets a NumPy
generator from ``generator``, identified in the same way.
"""

from __future__ import annotations

import enum

import numba
import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64's counter: 2**64 divided by the golden ratio."""


class Purpose(enum.IntEnum):
    """What a random stream is used for. The numbers determine the draws: never change one."""

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
    WINDOW = 14
    DROPOUT = 15
    EVALUATED_USERS = 16
    TIES = 17


@numba.njit(inline="always")
def mix(x: np.uint64) -> np.uint64:
    """SplitMix64's final hash: a bijection of 64 bits that mixes every bit into every other."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(inline="always")
def stream(seed: int, round: int, user: int, purpose: int) -> np.uint64:
    """Initial state of the random stream of this seed, round, user and purpose."""
    state = mix(np.uint64(seed) + _GOLDEN)
    state = mix(state ^ (np.uint64(round) + _GOLDEN))
    state = mix(state ^ (np.uint64(user) + _GOLDEN))
    return mix(state ^ (np.uint64(purpose) + _GOLDEN))


@numba.njit(inline="always")
def value(state: np.uint64, counter: int) -> np.uint64:
    """Value number ``counter`` (from 0) of the stream with initial ``state``: 64 uniform bits."""
    return mix(state + np.uint64(counter + 1) * _GOLDEN)


@numba.njit(inline="always")
def below(bits: np.uint64, n: int) -> int:
    """Integer in [0, n) from the upper 32 of 64 random bits; its bias is below n / 2**32."""
    return int(((bits >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


def generator(seed: int, purpose: Purpose, *coordinates: int) -> np.random.Generator:
    """NumPy generator for a seed, a purpose and further numbers such as a round or a user."""
    # The number of coordinates is included so that no two streams get the same words.
    words = (seed & 0xFFFFFFFF, seed >> 32, int(purpose), len(coordinates), *coordinates)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))
