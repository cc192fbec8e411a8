"""The fixed candidates of the sampled metrics: items a user never interacted with."""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.rng import Purpose, below, stream, value
from unskew.types import Int32, Int64, Ragged

_CANDIDATES = int(Purpose.CANDIDATES)


def draw_candidates(known: Ragged, n_items: int, count: int, seed: int) -> Int32:
    """``count`` distinct items per user, uniform over all items outside the user's ``known`` list.

    A user's draw depends on the seed, the user's number and its own list only. A user with no more
    than ``count`` eligible items gets all of them in ascending order, then -1.
    """
    n_users = len(known.indptr) - 1
    drawn = np.full((n_users, count), -1, np.int32)
    _draw(known.indptr, known.items, n_items, seed, drawn)
    return drawn


def _draw_kernel(indptr: Int64, known: Int32, n_items: int, seed: int, drawn: Int32) -> None:
    n_users, count = drawn.shape
    taken_by = np.full(n_items, -1, np.int64)
    for user in range(n_users):
        eligible = n_items
        for entry in range(indptr[user], indptr[user + 1]):
            if taken_by[known[entry]] != user:
                taken_by[known[entry]] = user
                eligible -= 1
        n_drawn = 0
        if eligible <= count:
            for item in range(n_items):
                if taken_by[item] != user:
                    drawn[user, n_drawn] = item
                    n_drawn += 1
            continue
        state = stream(seed, 0, user, _CANDIDATES)
        counter = 0
        while n_drawn < count:
            item = below(value(state, counter), n_items)
            counter += 1
            if taken_by[item] != user:
                taken_by[item] = user
                drawn[user, n_drawn] = item
                n_drawn += 1


_draw = jit(_draw_kernel)
