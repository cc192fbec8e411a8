"""Ranks and recommendations from scores. A model is never seen here.

The tie rule, the same everywhere
    A held-out item loses every tie with a candidate that is not held out: a scorer that cannot tell
    items apart earns nothing. Held-out items of one user that tie with each other go by item
    number, as do recommendations (the smaller number first). NaN is worse than any number and ties
    with NaN only; it is never recommended. So a constant scorer and one that says only NaN both
    place all held-out items behind all other candidates.

What is ranked
    *All*: every item that is neither one of the user's training items nor, when testing, one of
    its validation items. *Sampled*: the user's fixed candidates. The held-out items themselves
    always belong, even where the ``paper`` protocol left the same pair in training.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from unskew.jit import jit
from unskew.ragged import empty_lists
from unskew.types import Float32, Int32, Int64, Ragged, Split

_BLOCK_ITEMS = 32
"""Number of items that are skipped at once when none is good enough to recommend."""


def held_out_ranks(
    scores: Float32,
    users: Int64,
    split: Split,
    part: Literal["validation", "test"],
    sampled: bool,
) -> Int32:
    """The rank (1 is best) of every held-out item of ``users``, one user's after the other's.

    ``scores`` has a row for each entry of ``users`` and a column for each item of the catalogue.
    """
    scores, users = _check_shapes(scores, users, split)
    held = split.test if part == "test" else split.validation
    ranks = np.empty(int(held.counts()[users].sum()), np.int32)
    if sampled:
        _ranks_among_sampled(scores, users, split.sampled, held.indptr, held.items, ranks)
    else:
        hidden = split.validation if part == "test" else empty_lists(split.n_users)
        _ranks_among_all(
            scores,
            users,
            split.seen.indptr,
            split.seen.items,
            hidden.indptr,
            hidden.items,
            held.indptr,
            held.items,
            ranks,
        )
    return ranks


def top_k(scores: Float32, users: Int64, split: Split, k: int) -> Int32:
    """The ``k`` best items for each of ``users``, best first.

    Training and validation items are never among them. A row ends in -1 where the user has fewer
    items with a score.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    scores, users = _check_shapes(scores, users, split)
    best = np.full((len(users), k), -1, np.int32)
    _best_items(
        scores,
        users,
        split.seen.indptr,
        split.seen.items,
        split.validation.indptr,
        split.validation.items,
        best,
    )
    return best


def best_unseen(scores: Float32, seen: Ragged, k: int) -> Int32:
    """The ``k`` best items of each row of ``scores``, without that row's ``seen`` items: for
    recommending in use, where nothing is held out."""
    scores = np.ascontiguousarray(scores, np.float32)
    best = np.full((len(scores), min(k, scores.shape[1])), -1, np.int32)
    nothing = empty_lists(len(scores))
    _best_items(
        scores, np.arange(len(scores)), seen.indptr, seen.items, nothing.indptr, nothing.items, best
    )
    return best


def _check_shapes(scores: Float32, users: Int64, split: Split) -> tuple[Float32, Int64]:
    """Check shapes and user numbers, because the kernels index without checks."""
    users = np.ascontiguousarray(users, np.int64)
    if scores.shape != (len(users), split.n_items):
        raise ValueError(
            f"scores have shape {scores.shape}; {len(users)} users and {split.n_items} items "
            f"need ({len(users)}, {split.n_items})"
        )
    if len(users) and not 0 <= users.min() <= users.max() < split.n_users:
        raise ValueError(f"user numbers must lie in 0..{split.n_users - 1}")
    return np.ascontiguousarray(scores, np.float32), users


@jit
def _exclude(items: Int32, start: int, end: int, is_out: Int32, rivals: Float32) -> int:
    """Set marked items' scores to NaN, unmark them, and count them: each is counted once."""
    count = 0
    for entry in range(start, end):
        item = items[entry]
        if is_out[item]:
            is_out[item] = 0
            rivals[item] = np.nan
            count += 1
    return count


@jit
def _mark(items: Int32, start: int, end: int, is_out: Int32) -> None:
    for entry in range(start, end):
        is_out[items[entry]] = 1


@jit
def _rank_held(scores: Float32, held: Int32, rivals: Float32, n_rivals: int, ranks: Int32) -> None:
    """Ranks of one user's held-out items: ``rivals`` are the scores of the other candidates (NaN
    where there is none), ``n_rivals`` how many there are, those scored NaN included."""
    for this in range(len(held)):
        score = scores[held[this]]
        better = np.int32(0)
        if np.isnan(score):
            better = np.int32(n_rivals)
            for other in range(len(held)):
                if not np.isnan(scores[held[other]]) or held[other] < held[this]:
                    better += np.int32(1)
        else:
            for rival in range(len(rivals)):
                better += np.int32(rivals[rival] >= score)
            for other in range(len(held)):
                rival_score = scores[held[other]]
                if rival_score > score or (rival_score == score and held[other] < held[this]):
                    better += np.int32(1)
        ranks[this] = better + 1


@jit
def _ranks_among_all(
    scores: Float32,
    users: Int64,
    seen_indptr: Int64,
    seen: Int32,
    hidden_indptr: Int64,
    hidden: Int32,
    held_indptr: Int64,
    held: Int32,
    ranks: Int32,
) -> None:
    n_items = scores.shape[1]
    is_out = np.zeros(n_items, np.int32)
    rivals = np.empty(n_items, np.float32)
    done = 0
    for row in range(len(users)):
        user = users[row]
        seen_from, seen_to = seen_indptr[user], seen_indptr[user + 1]
        hidden_from, hidden_to = hidden_indptr[user], hidden_indptr[user + 1]
        held_from, held_to = held_indptr[user], held_indptr[user + 1]
        if held_from == held_to:
            continue
        _mark(seen, seen_from, seen_to, is_out)
        _mark(hidden, hidden_from, hidden_to, is_out)
        _mark(held, held_from, held_to, is_out)
        rivals[:] = scores[row]
        n_rivals = n_items - _exclude(seen, seen_from, seen_to, is_out, rivals)
        n_rivals -= _exclude(hidden, hidden_from, hidden_to, is_out, rivals)
        n_rivals -= _exclude(held, held_from, held_to, is_out, rivals)
        n_held = held_to - held_from
        _rank_held(
            scores[row], held[held_from:held_to], rivals, n_rivals, ranks[done : done + n_held]
        )
        done += n_held


@jit
def _ranks_among_sampled(
    scores: Float32,
    users: Int64,
    sampled: Int32,
    held_indptr: Int64,
    held: Int32,
    ranks: Int32,
) -> None:
    rivals = np.empty(sampled.shape[1], np.float32)
    done = 0
    for row in range(len(users)):
        user = users[row]
        own = held[held_indptr[user] : held_indptr[user + 1]]
        n_rivals = 0
        rivals[:] = np.nan
        for candidate in sampled[user]:
            counts = candidate >= 0
            for item in own:
                counts = counts and item != candidate
            if counts:
                rivals[n_rivals] = scores[row, candidate]
                n_rivals += 1
        _rank_held(scores[row], own, rivals, n_rivals, ranks[done : done + len(own)])
        done += len(own)


@jit
def _best_items(
    scores: Float32,
    users: Int64,
    seen_indptr: Int64,
    seen: Int32,
    hidden_indptr: Int64,
    hidden: Int32,
    best: Int32,
) -> None:
    """One pass per user that keeps a sorted list of the best items so far. An item enters a full
    list only if it beats the last one, and goes behind items of equal score, which have smaller
    numbers. Blocks without an item good enough are skipped."""
    n_items = scores.shape[1]
    k = best.shape[1]
    n_blocks = (n_items + _BLOCK_ITEMS - 1) // _BLOCK_ITEMS
    usable = np.full(n_blocks * _BLOCK_ITEMS, np.nan, np.float32)
    kept = np.empty(k, np.float32)
    for row in range(len(users)):
        user = users[row]
        usable[:n_items] = scores[row]
        for entry in range(seen_indptr[user], seen_indptr[user + 1]):
            usable[seen[entry]] = np.nan
        for entry in range(hidden_indptr[user], hidden_indptr[user + 1]):
            usable[hidden[entry]] = np.nan
        chosen = best[row]
        n_kept = 0
        for block in range(n_blocks):
            start = block * _BLOCK_ITEMS
            if n_kept == k:
                any_better = False
                for offset in range(_BLOCK_ITEMS):
                    any_better |= usable[start + offset] > kept[k - 1]
                if not any_better:
                    continue
            for item in range(start, start + _BLOCK_ITEMS):
                score = usable[item]
                if n_kept < k and not np.isnan(score):
                    _insert(score, item, kept, chosen, n_kept)
                    n_kept += 1
                elif n_kept == k and score > kept[k - 1]:
                    _insert(score, item, kept, chosen, k - 1)


@jit
def _insert(score: np.float32, item: int, kept: Float32, chosen: Int32, place: int) -> None:
    """Insert an item into a list sorted by score, behind equal scores; the entry at ``place`` is
    lost."""
    while place > 0 and kept[place - 1] < score:
        kept[place] = kept[place - 1]
        chosen[place] = chosen[place - 1]
        place -= 1
    kept[place] = score
    chosen[place] = item
