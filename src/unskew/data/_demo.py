"""``demo``: interactions of an invented film service, the same to the bit on every machine.

A thousand users watch fifteen hundred films over two years. A film's style vector is its genre's
centre plus noise. Film popularity is a power law. A user's taste starts near two favourite genres
and moves in a straight line towards a third, so the last films resemble recent ones more than early
ones: they can be predicted from users with similar paths, but not with certainty. Nobody watches a
film twice. Users join during the first year and stay for different lengths of time. The number of
rows per user has a heavy tail and is at least 20.

Only integer arithmetic and elementwise IEEE ``+ - * /`` and ``sqrt`` are used, sums run in a fixed
order, and randomness comes from the package's own hash, so no library version or processor changes
a value. Do not replace :func:`_exp` or the loops over dimensions by library calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from unskew import rng
from unskew.data._rows import number_labels
from unskew.types import Float64, Int64, Interactions, UInt64

_N_USERS = 1_000
"""Number of users of the film service."""
_N_ITEMS = 1_500
"""Number of films."""
_DIMENSIONS = 8
"""Length of the style vector of a film and of the taste vector of a user."""
_N_PHASES = 6
"""Number of steps in which a user's taste moves from the first film to the last."""
_BLOCK_USERS = 50
"""Number of users generated at a time, so that their arrays stay in the processor's cache."""
_MIN_USER_ROWS = 20
"""Minimum number of films that a user watches."""
_START_SECONDS = 1_640_995_200
"""Start of the film service in seconds since 1970: 2022-01-01 00:00 UTC."""
_SPAN_SECONDS = 2 * 365 * 86_400
"""Time from the start to the end of the film service: two years."""
_STYLE_NOISE, _TASTE_NOISE = 0.55, 0.35
"""Standard deviations of the random part of a film's style and of a user's taste, per dimension."""
_POPULARITY_OFFSET = 12.0
"""Added to a film's popularity rank in the power law, so that the top films differ less."""
_GENRES = (
    """
drama, comedy, thriller, science fiction, romance, horror, western, documentary, animation, crime,
adventure, musical
""".strip()
    .replace("\n", " ")
    .split(", ")
)
"""Genres of the films."""
_ADJECTIVES = """
Amber Borrowed Bright Broken Burning Calm Clockwork Copper Crooked Distant Electric Empty Faded
Final Forgotten Frozen Gentle Glass Golden Hidden Hollow Honest Hungry Iron Last Little Lonely
Lucky Midnight Paper Patient Quiet Restless Scarlet Second Silent Stolen Velvet Wandering Winter
"""
"""First words of film titles."""
_NOUNS = """
Archive Bakery Balcony Bridge Carnival Cartographer Compass Detour Echo Elevator Festival
Gardener Harbour Horizon Inspector Island Jury Kite Lantern Letter Lighthouse Machine Meadow
Mirror Neighbour Orchard Orchestra Passenger Pilot Promise Railway River Season Shadow Signal
Station Stranger Summer Umbrella Voyage
"""
"""Second words of film titles."""


def demo() -> Interactions:
    """Generate the demo data set, with rows in order of time."""
    genres = (_bits(1, 0, _N_ITEMS) % np.uint64(len(_GENRES))).astype(np.int64)
    centres = _normal(2, len(_GENRES) * _DIMENSIONS).reshape(len(_GENRES), _DIMENSIONS)
    noise = _normal(3, _N_ITEMS * _DIMENSIONS).reshape(_N_ITEMS, _DIMENSIONS)
    styles = centres[genres] + _STYLE_NOISE * noise
    users, items, times = _draw_interactions(styles, _popularity(), centres)
    order = np.lexsort((items, users, times))
    users, items, times = users[order], items[order], times[order]
    user_numbers, user_labels = number_labels(pl.Series(users))
    item_numbers, item_labels = number_labels(pl.Series(items))
    titles = _titles(genres)
    return Interactions(
        name="demo",
        users=user_numbers,
        items=item_numbers,
        user_ids=[f"user-{label:04d}" for label in user_labels],
        item_ids=[f"film-{label:04d}" for label in item_labels],
        timestamps=times,
        clock="time",
        titles=[titles[label] for label in item_labels],
        min_user_rows=10,
    )


def _draw_interactions(
    styles: Float64, popularity: Float64, centres: Float64
) -> tuple[Int64, Int64, Int64]:
    """Draw all interactions, user by user; returns user numbers, film numbers and times."""
    tastes = _tastes(centres)
    counts = _row_counts()
    users, items, times = [], [], []
    for block in range(0, _N_USERS, _BLOCK_USERS):
        early, late = (_affinity(taste[block : block + _BLOCK_USERS], styles) for taste in tastes)
        tickets = np.empty((_N_PHASES, len(early), _N_ITEMS), np.int64)
        for phase in range(_N_PHASES):
            share = phase / (_N_PHASES - 1)
            weights = popularity * _exp(early * (1.0 - share) + late * share)
            np.cumsum((weights * 4096.0).astype(np.int64) + 1, axis=1, out=tickets[phase])
        for user in range(block, block + len(early)):
            films = _draw_films(tickets[:, user - block], int(counts[user]), user)
            users.append(np.full(len(films), user, np.int64))
            items.append(films)
            times.append(_times(len(films), user))
    return np.concatenate(users), np.concatenate(items), np.concatenate(times)


def _affinity(taste: Float64, styles: Float64) -> Float64:
    """Inner products of taste vectors and film style vectors, summed in a fixed order."""
    affinity = np.zeros((len(taste), len(styles)))
    for k in range(_DIMENSIONS):
        affinity += taste[:, k : k + 1] * styles[:, k]
    return affinity


def _draw_films(tickets: Int64, count: int, user: int) -> Int64:
    """Draw a user's films, at most ``count``, in the order watched and without repeats. The user's
    taste changes in phases; a row of ``tickets`` has the films' cumulative weights in a phase."""
    chosen: list[Int64] = []
    seen = np.zeros(_N_ITEMS, np.bool_)
    draws = _bits(10, user, _N_PHASES * (count + 30)).reshape(_N_PHASES, count + 30)
    for phase in range(_N_PHASES):
        wanted = count * (phase + 1) // _N_PHASES - count * phase // _N_PHASES
        total = tickets[phase, -1]
        picks = (draws[phase] % np.uint64(total)).astype(np.int64)
        films = np.searchsorted(tickets[phase], picks, side="right")
        _, first = np.unique(films, return_index=True)
        films = films[np.sort(first)]
        films = films[~seen[films]][:wanted]
        seen[films] = True
        chosen.append(films)
    return np.concatenate(chosen)


def _tastes(centres: Float64) -> tuple[Float64, Float64]:
    """Draw every user's taste vector at the first film watched and at the last."""
    picks = _bits(4, 0, 3 * _N_USERS) % np.uint64(len(_GENRES))
    first, second, later = picks.reshape(3, _N_USERS).astype(np.int64)
    lean = _uniform(5, _N_USERS)[:, None]
    noise = _normal(6, _N_USERS * _DIMENSIONS).reshape(_N_USERS, _DIMENSIONS)
    start = centres[first] * (0.5 + 0.5 * lean) + centres[second] * (0.5 - 0.5 * lean)
    end = 0.45 * start + 0.55 * centres[later]
    return start + _TASTE_NOISE * noise, end + _TASTE_NOISE * noise


def _popularity() -> Float64:
    """Popularity weight of each film: a power law with exponent -3/4 over a random ranking."""
    rank = np.empty(_N_ITEMS)
    rank[np.argsort(_bits(7, 0, _N_ITEMS), kind="stable")] = np.arange(_N_ITEMS)
    root = np.sqrt(rank + _POPULARITY_OFFSET)
    return 100.0 / (root * np.sqrt(root))


def _row_counts() -> Int64:
    """Draw the number of rows of each user, with a heavy tail."""
    u = _uniform(8, _N_USERS)
    return _MIN_USER_ROWS + (24.0 * u / (1.05 - u)).astype(np.int64)


def _times(count: int, user: int) -> Int64:
    """Draw ``count`` strictly increasing times of a user, in seconds since 1970."""
    join, stay = _bits(20, user, 2) >> np.uint64(34)
    begin = int(join) * (_SPAN_SECONDS // 2) // (1 << 30)
    length = (_SPAN_SECONDS - begin) * ((1 << 30) + 3 * int(stay)) // (1 << 32)
    offsets = (_bits(21, user, count) >> np.uint64(34)).astype(np.int64)
    offsets = offsets * (length - count) // (1 << 30)
    return _START_SECONDS + begin + np.sort(offsets) + np.arange(count)


def _titles(genres: Int64) -> list[str]:
    """A distinct title for each film: two words and the genre in parentheses."""
    pairs = [f"{first} {second}" for first in _ADJECTIVES.split() for second in _NOUNS.split()]
    order = np.argsort(_bits(9, 0, len(pairs)), kind="stable")[:_N_ITEMS]
    return [
        f"{pairs[pair]} ({_GENRES[genre]})"
        for pair, genre in zip(order.tolist(), genres.tolist(), strict=True)
    ]


def _exp(x: Float64) -> Float64:
    """Approximate exp(x) as (1 + x/1024)^1024, which has the same bits on every machine."""
    power = np.maximum(1.0 + x * (1.0 / 1024.0), 0.0)
    for _ in range(10):
        power *= power
    return power


def _bits(block: int, user: int, count: int) -> UInt64:
    """Draw ``count`` random 64-bit integers as an array. ``block`` and ``user`` number the random
    stream. The values are those of ``rng.value`` on the same ``rng.stream``."""
    jitted: Any = rng.mix
    mix: Callable[[UInt64], UInt64] = getattr(jitted, "py_func", jitted)
    golden = np.array([rng._GOLDEN])
    state = mix(golden)
    for coordinate in (block, user, int(rng.Purpose.DEMO_DATA)):
        state = mix(state ^ (np.array([coordinate], np.uint64) + golden))
    return mix(state + np.arange(1, count + 1, dtype=np.uint64) * golden)


def _uniform(block: int, count: int) -> Float64:
    """Draw uniform values in [0, 1) that are multiples of 2^-53."""
    return (_bits(block, 0, count) >> np.uint64(11)).astype(np.float64) * (1.0 / (1 << 53))


def _normal(block: int, count: int) -> Float64:
    """Draw approximately standard normal values: centred sums of four uniforms times sqrt(3)."""
    a, b, c, d = _uniform(block, 4 * count).reshape(4, count)
    values: Float64 = (((a + b) + (c + d)) - 2.0) * np.sqrt(np.float64(3.0))
    return values
