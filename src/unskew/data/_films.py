"""An invented film service: its films, and what every user likes and when it watches.

A film's style vector is its genre's centre plus noise. Film popularity is a power law. A user's
taste starts near two favourite genres and moves in a straight line towards a third, so the last
films resemble recent ones more than early ones: they can be predicted from users with similar
paths, but not with certainty. Nobody watches a film twice. Users join during the first year and
stay for different lengths of time. The number of rows per user has a heavy tail.

``_demo`` and ``_generate`` draw interactions from this model. Users are numbered, and a *cohort* is
1,000 of them in a row, drawn from the same random streams. With seed 0 the first cohort has the
tastes and times of the demo's users.

Only integer arithmetic and elementwise IEEE ``+ - * /`` and ``sqrt`` are used, sums run in a fixed
order, and randomness comes from the package's own hash, so no library version or processor changes
a value. Do not replace :func:`exp` or the loops over dimensions by library calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from unskew import rng
from unskew.ragged import indptr_from_counts, owners
from unskew.types import Float64, Int64, UInt64

COHORT_USERS = 1_000
"""Number of users whose tastes are drawn together."""
N_PHASES = 6
"""Number of steps in which a user's taste moves from the first film to the last."""
GENRES = (
    """
drama, comedy, thriller, science fiction, romance, horror, western, documentary, animation, crime,
adventure, musical
""".strip()
    .replace("\n", " ")
    .split(", ")
)
"""Genres of the films."""
DIMENSIONS = 8
"""Length of the style vector of a film and of the taste vector of a user."""
_MIN_USER_ROWS = 20
"""Minimum number of films that a user of the demo watches."""
_START_SECONDS = 1_640_995_200
"""Start of the film service in seconds since 1970: 2022-01-01 00:00 UTC."""
_SPAN_SECONDS = 2 * 365 * 86_400
"""Time from the start to the end of the film service: two years."""
_STYLE_NOISE, _TASTE_NOISE = 0.55, 0.35
"""Standard deviations of the random part of a film's style and of a user's taste, per dimension."""
_POPULARITY_OFFSET = 12.0
"""Added to a film's popularity rank in the power law, so that the top films differ less."""


class Films(NamedTuple):
    """The films of the service, and the centres of their genres."""

    genres: Int64
    styles: Float64
    popularity: Float64
    centres: Float64


def make_films(n_items: int, seed: int) -> Films:
    """Draw the films. Popularity is a power law with exponent -3/4 over a random ranking."""
    genres = (bits(seed, 1, 0, n_items) % np.uint64(len(GENRES))).astype(np.int64)
    centres = _normal(seed, 2, 0, len(GENRES) * DIMENSIONS).reshape(len(GENRES), DIMENSIONS)
    noise = _normal(seed, 3, 0, n_items * DIMENSIONS).reshape(n_items, DIMENSIONS)
    rank = np.empty(n_items)
    rank[np.argsort(bits(seed, 7, 0, n_items), kind="stable")] = np.arange(n_items)
    root = np.sqrt(rank + _POPULARITY_OFFSET)
    popularity = 100.0 / (root * np.sqrt(root))
    return Films(genres, centres[genres] + _STYLE_NOISE * noise, popularity, centres)


def draw_tastes(films: Films, cohort: int, seed: int) -> tuple[Float64, Float64]:
    """Taste vectors of a cohort's users at the first film watched and at the last."""
    n = COHORT_USERS
    picks = bits(seed, 4, cohort, 3 * n) % np.uint64(len(GENRES))
    first, second, later = picks.reshape(3, n).astype(np.int64)
    lean = _uniform(seed, 5, cohort, n)[:, None]
    noise = _normal(seed, 6, cohort, n * DIMENSIONS).reshape(n, DIMENSIONS)
    centres = films.centres
    start = centres[first] * (0.5 + 0.5 * lean) + centres[second] * (0.5 - 0.5 * lean)
    end = 0.45 * start + 0.55 * centres[later]
    return start + _TASTE_NOISE * noise, end + _TASTE_NOISE * noise


def draw_row_counts(cohort: int, seed: int) -> Int64:
    """Number of rows of each user of a cohort: at least 20, with a heavy tail."""
    u = _uniform(seed, 8, cohort, COHORT_USERS)
    return _MIN_USER_ROWS + (24.0 * u / (1.05 - u)).astype(np.int64)


def draw_times(counts: Int64, first_user: int, seed: int) -> Int64:
    """Strictly increasing times in seconds since 1970 for each of a range of users, user after
    user. ``counts`` says how many a user needs."""
    users = np.arange(first_user, first_user + len(counts))
    start = _streams(seed, 20, users)[:, None]
    join, stay = (_values(start, np.arange(2)) >> np.uint64(34)).astype(np.int64).T
    begin = join * (_SPAN_SECONDS // 2) // (1 << 30)
    length = (_SPAN_SECONDS - begin) * ((1 << 30) + 3 * stay) // (1 << 32)
    indptr = indptr_from_counts(counts)
    user = owners(indptr)
    place = np.arange(len(user)) - indptr[user]
    offsets = (_values(_streams(seed, 21, users)[user], place) >> np.uint64(34)).astype(np.int64)
    offsets = offsets * (length - counts)[user] // (1 << 30)
    offsets = np.sort(user << 32 | offsets) & 0xFFFFFFFF
    times: Int64 = _START_SECONDS + begin[user] + offsets + place
    return times


def exp(x: Float64) -> Float64:
    """Approximate exp(x) as (1 + x/1024)^1024, which has the same bits on every machine."""
    power = np.maximum(1.0 + x * (1.0 / 1024.0), 0.0)
    for _ in range(10):
        power *= power
    return power


def bits(seed: int, block: int, user: int, count: int) -> UInt64:
    """The first ``count`` 64-bit values of the random stream with the number ``block`` of a user
    or cohort."""
    return _values(_streams(seed, block, np.array([user])), np.arange(count))


def _streams(seed: int, block: int, users: Int64) -> UInt64:
    """Initial states of the users' streams, as ``rng.stream`` computes them."""
    golden = np.array([rng._GOLDEN])
    state = _mix(np.array([seed], np.uint64) + golden)
    for coordinate in (np.array([block]), users, np.array([int(rng.Purpose.DEMO_DATA)])):
        state = _mix(state ^ (coordinate.astype(np.uint64) + golden))
    return state


def _values(state: UInt64, counter: Int64) -> UInt64:
    """Values of streams, as ``rng.value`` computes them."""
    return _mix(state + (counter + 1).astype(np.uint64) * rng._GOLDEN)


_jitted_mix: Any = rng.mix
_mix: Callable[[UInt64], UInt64] = getattr(_jitted_mix, "py_func", _jitted_mix)
"""``rng.mix`` for arrays."""


def _uniform(seed: int, block: int, cohort: int, count: int) -> Float64:
    """Draw uniform values in [0, 1) that are multiples of 2^-53."""
    whole = bits(seed, block, cohort, count) >> np.uint64(11)
    return whole.astype(np.float64) * (1.0 / (1 << 53))


def _normal(seed: int, block: int, cohort: int, count: int) -> Float64:
    """Draw approximately standard normal values: centred sums of four uniforms times sqrt(3)."""
    a, b, c, d = _uniform(seed, block, cohort, 4 * count).reshape(4, count)
    values: Float64 = (((a + b) + (c + d)) - 2.0) * np.sqrt(np.float64(3.0))
    return values
