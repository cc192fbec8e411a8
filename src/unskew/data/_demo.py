"""``demo``: interactions of an invented film service, the same to the bit on every machine.

A thousand users watch fifteen hundred films over two years, by the model in ``_films``. Each film
is drawn from all films that the user has not watched, with a probability in proportion to its
popularity times exp(taste · style).
"""

from __future__ import annotations

import numpy as np

from unskew.data._films import (
    COHORT_USERS,
    DIMENSIONS,
    GENRES,
    N_PHASES,
    Films,
    bits,
    draw_row_counts,
    draw_tastes,
    draw_times,
    exp,
    make_films,
)
from unskew.numbering import number_by_appearance
from unskew.types import Float64, Int64, Interactions

_SEED = 0
"""Seed of the demo's random streams."""
_N_ITEMS = 1_500
"""Number of films."""
_BLOCK_USERS = 50
"""Number of users generated at a time, so that their arrays stay in the processor's cache."""
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
    films = make_films(_N_ITEMS, _SEED)
    users, items, times = _draw_interactions(films)
    order = np.lexsort((items, users, times))
    users, items, times = users[order], items[order], times[order]
    user_numbers, user_labels = number_by_appearance(users)
    item_numbers, item_labels = number_by_appearance(items)
    titles = _titles(films.genres)
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


def _draw_interactions(films: Films) -> tuple[Int64, Int64, Int64]:
    """Draw all interactions, user by user; returns user numbers, film numbers and times."""
    tastes = draw_tastes(films, 0, _SEED)
    wanted = draw_row_counts(0, _SEED)
    items: list[Int64] = []
    for block in range(0, COHORT_USERS, _BLOCK_USERS):
        early, late = (
            _affinity(taste[block : block + _BLOCK_USERS], films.styles) for taste in tastes
        )
        tickets = np.empty((N_PHASES, len(early), _N_ITEMS), np.int64)
        for phase in range(N_PHASES):
            share = phase / (N_PHASES - 1)
            weights = films.popularity * exp(early * (1.0 - share) + late * share)
            np.cumsum((weights * 4096.0).astype(np.int64) + 1, axis=1, out=tickets[phase])
        for user in range(block, block + len(early)):
            items.append(_draw_films(tickets[:, user - block], int(wanted[user]), user))
    counts = np.array([len(films) for films in items])
    users = np.repeat(np.arange(COHORT_USERS), counts)
    return users, np.concatenate(items), draw_times(counts, 0, _SEED)


def _affinity(taste: Float64, styles: Float64) -> Float64:
    """Inner products of taste vectors and film style vectors, summed in a fixed order."""
    affinity = np.zeros((len(taste), len(styles)))
    for k in range(DIMENSIONS):
        affinity += taste[:, k : k + 1] * styles[:, k]
    return affinity


def _draw_films(tickets: Int64, count: int, user: int) -> Int64:
    """Draw a user's films, at most ``count``, in the order watched and without repeats. The user's
    taste changes in phases; a row of ``tickets`` has the films' cumulative weights in a phase."""
    chosen: list[Int64] = []
    seen = np.zeros(_N_ITEMS, np.bool_)
    draws = bits(_SEED, 10, user, N_PHASES * (count + 30)).reshape(N_PHASES, count + 30)
    for phase in range(N_PHASES):
        wanted = count * (phase + 1) // N_PHASES - count * phase // N_PHASES
        total = tickets[phase, -1]
        picks = (draws[phase] % np.uint64(total)).astype(np.int64)
        films = np.searchsorted(tickets[phase], picks, side="right")
        _, first = np.unique(films, return_index=True)
        films = films[np.sort(first)]
        films = films[~seen[films]][:wanted]
        seen[films] = True
        chosen.append(films)
    return np.concatenate(chosen)


def _titles(genres: Int64) -> list[str]:
    """A distinct title for each film: two words and the genre in parentheses."""
    pairs = [f"{first} {second}" for first in _ADJECTIVES.split() for second in _NOUNS.split()]
    order = np.argsort(bits(_SEED, 9, 0, len(pairs)), kind="stable")[:_N_ITEMS]
    return [
        f"{pairs[pair]} ({GENRES[genre]})"
        for pair, genre in zip(order.tolist(), genres.tolist(), strict=True)
    ]
