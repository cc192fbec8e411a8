"""``demo``: a made-up film service, generated on the spot, the same to the last bit everywhere.

A thousand users watch fifteen hundred films over two years. A film belongs to a genre and has a
style around its genre's; how often films are drawn falls off as a power of their rank. A user's
taste starts near two favourite genres and drifts in a straight line towards a third, so what
someone watches last resembles their recent past more than their early days: predictable from
others with similar paths, but never certain. Nobody sees a film twice. Users join during the first
half and stay for different lengths of time; activity has a heavy tail and starts at 20 rows.

Only integer arithmetic and elementwise IEEE ``+ - * /`` and ``sqrt`` are used, sums run in a fixed
order, and randomness comes from the package's own hash, so no library version or processor can
change a value. Do not replace :func:`_exp` or the loops over dimensions by library calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unskew import rng
from unskew.data._demo_words import ADJECTIVES, GENRES, NOUNS
from unskew.types import Float64, Int32, Int64, Interactions, UInt64

_N_USERS = 1_000
_N_ITEMS = 1_500
_DIMENSIONS = 8
_PHASES = 6
"""Taste moves in this many steps from a user's first row to the last."""
_BLOCK = 50
"""Users worked out at a time, so that the working set stays in the cache."""
_LEAST_ROWS = 20
_START = 1_640_995_200
"""2022-01-01 00:00 UTC; the service runs for two years."""
_SPAN = 2 * 365 * 86_400
_STYLE_NOISE = 0.55
_TASTE_NOISE = 0.35
_HEAD = 12.0
"""Flattens the top of the popularity curve."""


def demo() -> Interactions:
    """The generated data set, its rows in order of time."""
    genres = (_bits(1, 0, _N_ITEMS) % np.uint64(len(GENRES))).astype(np.int64)
    centres = _normal(2, 0, len(GENRES) * _DIMENSIONS).reshape(len(GENRES), _DIMENSIONS)
    noise = _normal(3, 0, _N_ITEMS * _DIMENSIONS).reshape(_N_ITEMS, _DIMENSIONS)
    styles = centres[genres] + _STYLE_NOISE * noise
    users, items, times = _watch(styles, _popularity(), centres)
    order = np.lexsort((items, users, times))
    users, items, times = users[order], items[order], times[order]
    user_numbers, user_labels = _by_first_appearance(users)
    item_numbers, item_labels = _by_first_appearance(items)
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


def _watch(styles: Float64, popularity: Float64, centres: Float64) -> tuple[Int64, Int64, Int64]:
    """(user, film, time) of every viewing, user by user."""
    tastes = _tastes(centres)
    counts = _activity()
    users, items, times = [], [], []
    for block in range(0, _N_USERS, _BLOCK):
        early, late = (_affinity(taste[block : block + _BLOCK], styles) for taste in tastes)
        tickets = np.empty((_PHASES, len(early), _N_ITEMS), np.int64)
        for phase in range(_PHASES):
            share = phase / (_PHASES - 1)
            weights = popularity * _exp(early * (1.0 - share) + late * share)
            np.cumsum((weights * 4096.0).astype(np.int64) + 1, axis=1, out=tickets[phase])
        for user in range(block, block + len(early)):
            films = _choose(tickets[:, user - block], int(counts[user]), user)
            users.append(np.full(len(films), user, np.int64))
            items.append(films)
            times.append(_moments(len(films), user))
    return np.concatenate(users), np.concatenate(items), np.concatenate(times)


def _affinity(taste: Float64, styles: Float64) -> Float64:
    """Inner products, one dimension after the other so that the order of the sum is fixed."""
    affinity = np.zeros((len(taste), len(styles)))
    for k in range(_DIMENSIONS):
        affinity += taste[:, k : k + 1] * styles[:, k]
    return affinity


def _choose(tickets: Int64, count: int, user: int) -> Int64:
    """Films in the order watched: each phase draws its share by ticket, skipping those seen."""
    chosen: list[Int64] = []
    seen = np.zeros(_N_ITEMS, np.bool_)
    draws = _bits(10, user, _PHASES * (count + 30)).reshape(_PHASES, count + 30)
    for phase in range(_PHASES):
        wanted = count * (phase + 1) // _PHASES - count * phase // _PHASES
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
    """Every user's taste at the first and at the last row."""
    picks = _bits(4, 0, 3 * _N_USERS) % np.uint64(len(GENRES))
    first, second, later = picks.reshape(3, _N_USERS).astype(np.int64)
    lean = _uniform(5, 0, _N_USERS)[:, None]
    noise = _normal(6, 0, _N_USERS * _DIMENSIONS).reshape(_N_USERS, _DIMENSIONS)
    start = centres[first] * (0.5 + 0.5 * lean) + centres[second] * (0.5 - 0.5 * lean)
    end = 0.45 * start + 0.55 * centres[later]
    return start + _TASTE_NOISE * noise, end + _TASTE_NOISE * noise


def _popularity() -> Float64:
    """Power law of exponent 3/4 over a random ranking."""
    rank = np.empty(_N_ITEMS)
    rank[np.argsort(_bits(7, 0, _N_ITEMS), kind="stable")] = np.arange(_N_ITEMS)
    root = np.sqrt(rank + _HEAD)
    return 100.0 / (root * np.sqrt(root))


def _activity() -> Int64:
    u = _uniform(8, 0, _N_USERS)
    return _LEAST_ROWS + (24.0 * u / (1.05 - u)).astype(np.int64)


def _moments(count: int, user: int) -> Int64:
    """Strictly increasing seconds between a user's joining and leaving."""
    join, stay = _bits(20, user, 2) >> np.uint64(34)
    begin = int(join) * (_SPAN // 2) // (1 << 30)
    length = (_SPAN - begin) * ((1 << 30) + 3 * int(stay)) // (1 << 32)
    offsets = (_bits(21, user, count) >> np.uint64(34)).astype(np.int64)
    offsets = offsets * (length - count) // (1 << 30)
    return _START + begin + np.sort(offsets) + np.arange(count)


def _titles(genres: Int64) -> list[str]:
    """Made-up two-word titles, no two alike."""
    order = np.argsort(_bits(9, 0, len(ADJECTIVES) * len(NOUNS)), kind="stable")[:_N_ITEMS]
    return [
        f"{ADJECTIVES[pair // len(NOUNS)]} {NOUNS[pair % len(NOUNS)]} ({GENRES[genre]})"
        for pair, genre in zip(order.tolist(), genres.tolist(), strict=True)
    ]


def _exp(x: Float64) -> Float64:
    """(1 + x/1024)^1024 by ten squarings: close enough to the exponential, and exact to repeat."""
    power = np.maximum(1.0 + x * (1.0 / 1024.0), 0.0)
    for _ in range(10):
        power *= power
    return power


def _bits(block: int, user: int, count: int) -> UInt64:
    """Values 0 to ``count`` - 1 of the stream (seed 0, ``block``, ``user``, demo data): what
    ``rng.stream`` and ``rng.value`` give, for many counters at once."""
    jitted: Any = rng.mix
    mix: Callable[[UInt64], UInt64] = getattr(jitted, "py_func", jitted)
    golden = np.array([rng._GOLDEN])
    state = mix(golden)
    for coordinate in (block, user, int(rng.Purpose.DEMO_DATA)):
        state = mix(state ^ (np.array([coordinate], np.uint64) + golden))
    return mix(state + np.arange(1, count + 1, dtype=np.uint64) * golden)


def _uniform(block: int, user: int, count: int) -> Float64:
    """In [0, 1), in steps of 2^-53."""
    return (_bits(block, user, count) >> np.uint64(11)).astype(np.float64) * (1.0 / (1 << 53))


def _normal(block: int, user: int, count: int) -> Float64:
    """Nearly normal, variance 1: the sum of four uniforms, scaled by sqrt(3)."""
    a, b, c, d = _uniform(block, user, 4 * count).reshape(4, count)
    values: Float64 = (((a + b) + (c + d)) - 2.0) * np.sqrt(np.float64(3.0))
    return values


def _by_first_appearance(labels: Int64) -> tuple[Int32, list[int]]:
    names, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(names), np.int32)
    number[order] = np.arange(len(names), dtype=np.int32)
    return number[inverse], [int(label) for label in names[order]]
