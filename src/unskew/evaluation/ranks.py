"""Ranks and recommendations, computed from scores alone.

Ties
    A held-out item loses every tie with a candidate that is not held out: a scorer that cannot tell
    items apart gains nothing. Ties between held-out items of one user go by item number, as do ties
    between recommendations (the smaller number first). NaN is worse than any number and ties with
    NaN only; an item with score NaN is never recommended. So a constant scorer and one that returns
    only NaN both rank all held-out items behind all other candidates.

Candidates
    *All*: every item that is neither one of the user's training items nor, when testing, one of
    the user's validation items. *Sampled*: the user's fixed candidates. The held-out items
    themselves are always ranked, even where the ``paper`` protocol left the same pair in training.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from unskew.jit import jit
from unskew.ragged import empty_lists
from unskew.types import Float32, Int32, Int64, Ragged, Split

_BLOCK_ITEMS = 32
"""Items per block. The search for the best items skips blocks in which no item scores enough."""


def held_out_ranks(
    scores: Float32,
    users: Int64,
    split: Split,
    part: Literal["validation", "test"],
    sampled: bool,
) -> Int32:
    """The rank (1 is best) of every held-out item of ``users``, concatenated user by user.

    ``scores`` has a row for each entry of ``users`` and a column for each item of the catalogue.
    """
    scores, users = _check_shapes(scores, users, split)
    held = split.test if part == "test" else split.validation
    ranks = np.empty(int(held.counts()[users].sum()), np.int32)
    if sampled:
        _ranks_among_sampled(scores, users, split.sampled, held, ranks)
    else:
        hidden = split.validation if part == "test" else empty_lists(split.n_users)
        _ranks_among_all(scores, users, split.seen, hidden, held, ranks)
    return ranks


def top_k(scores: Float32, users: Int64, split: Split, k: int) -> Int32:
    """The ``k`` best items for each of ``users``, best first.

    Training and validation items are left out. A row is padded with -1 if the user has fewer than
    ``k`` other items with a score.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}")
    scores, users = _check_shapes(scores, users, split)
    best = np.full((len(users), k), -1, np.int32)
    _best_items(scores, users, split.seen, split.validation, best)
    return best


def best_unseen(scores: Float32, seen: Ragged, k: int) -> Int32:
    """The ``k`` best items of each user (row of ``scores``) outside the user's ``seen`` items,
    padded with -1. For production, where nothing is held out."""
    scores = np.ascontiguousarray(scores, np.float32)
    best = np.full((len(scores), min(k, scores.shape[1])), -1, np.int32)
    _best_items(scores, np.arange(len(scores)), seen, empty_lists(len(scores)), best)
    return best


def _check_shapes(scores: Float32, users: Int64, split: Split) -> tuple[Float32, Int64]:
    """Check array shapes and user numbers, because compiled code does not check its indices."""
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
def _items_of(lists: Ragged, user: int) -> Int32:
    """The item list of one user."""
    return lists.items[lists.indptr[user] : lists.indptr[user + 1]]


@jit
def _leave_out(items: Int32, row: int, left_out_in: Int64, left_out: Int32, n: int) -> int:
    """Append to ``left_out``, which has ``n`` items so far, those of ``items`` that it lacks.
    Returns the new number of items.

    ``row`` is the number of the user's row of scores. ``left_out_in`` has, for each item, the last
    row for which the item was left out.
    """
    for item in items:
        if left_out_in[item] != row:
            left_out_in[item] = row
            left_out[n] = item
            n += 1
    return n


@jit
def _rank_held(
    scores: Float32, held: Int32, rivals: Float32, left_out: Int32, ranks: Int32
) -> None:
    """Write the ranks of one user's held-out items to ``ranks``. ``rivals`` has the scores of the
    other candidates, apart from the entries named in ``left_out``, which are no candidates."""
    for this in range(len(held)):
        score = scores[held[this]]
        better = np.int32(0)
        if np.isnan(score):
            better = np.int32(len(rivals) - len(left_out))
            for other in range(len(held)):
                if not np.isnan(scores[held[other]]) or held[other] < held[this]:
                    better += np.int32(1)
        else:
            for rival in range(len(rivals)):
                better += np.int32(rivals[rival] >= score)
            for place in left_out:
                better -= np.int32(rivals[place] >= score)
            for other in range(len(held)):
                rival_score = scores[held[other]]
                if rival_score > score or (rival_score == score and held[other] < held[this]):
                    better += np.int32(1)
        ranks[this] = better + 1


@jit
def _ranks_among_all(
    scores: Float32, users: Int64, seen: Ragged, hidden: Ragged, held: Ragged, ranks: Int32
) -> None:
    n_items = scores.shape[1]
    left_out_in = np.full(n_items, -1, np.int64)
    left_out = np.empty(n_items, np.int32)
    done = 0
    for row, user in enumerate(users):
        own = _items_of(held, user)
        if len(own) == 0:
            continue
        n = _leave_out(own, row, left_out_in, left_out, 0)
        n = _leave_out(_items_of(seen, user), row, left_out_in, left_out, n)
        n = _leave_out(_items_of(hidden, user), row, left_out_in, left_out, n)
        _rank_held(scores[row], own, scores[row], left_out[:n], ranks[done : done + len(own)])
        done += len(own)


@jit
def _ranks_among_sampled(
    scores: Float32, users: Int64, sampled: Int32, held: Ragged, ranks: Int32
) -> None:
    rivals = np.empty(sampled.shape[1], np.float32)
    nobody = np.empty(0, np.int32)
    done = 0
    for row, user in enumerate(users):
        own = _items_of(held, user)
        n_rivals = 0
        for candidate in sampled[user]:
            counts = candidate >= 0
            for item in own:
                counts = counts and item != candidate
            if counts:
                rivals[n_rivals] = scores[row, candidate]
                n_rivals += 1
        _rank_held(scores[row], own, rivals[:n_rivals], nobody, ranks[done : done + len(own)])
        done += len(own)


@jit
def _best_items(scores: Float32, users: Int64, seen: Ragged, hidden: Ragged, best: Int32) -> None:
    """Write the best items of each user to ``best``. One pass over the items keeps a sorted list;
    an item enters a full list only if it beats the last one, and goes behind items of equal score.
    Blocks of items that all score too low are skipped."""
    n_items, k = scores.shape[1], best.shape[1]
    left_out_in = np.full(n_items, -1, np.int64)
    kept = np.empty(k, np.float32)
    for row, user in enumerate(users):
        left_out_in[_items_of(seen, user)] = row
        left_out_in[_items_of(hidden, user)] = row
        chosen, usable = best[row], scores[row]
        n_kept = 0
        for start in range(0, n_items, _BLOCK_ITEMS):
            if n_kept == k and start + _BLOCK_ITEMS <= n_items:
                any_better = False
                for offset in range(_BLOCK_ITEMS):
                    any_better |= usable[start + offset] > kept[k - 1]
                if not any_better:
                    continue
            for item in range(start, min(start + _BLOCK_ITEMS, n_items)):
                score = usable[item]
                enters = score > kept[k - 1] if n_kept == k else not np.isnan(score)
                if enters and left_out_in[item] != row:
                    n_kept = min(n_kept + 1, k)
                    _insert(score, item, kept, chosen, n_kept - 1)


@jit
def _insert(score: np.float32, item: int, kept: Float32, chosen: Int32, place: int) -> None:
    """Insert an item into a list sorted by score, behind items of equal score. The entry at index
    ``place``, the end of the list, is overwritten."""
    while place > 0 and kept[place - 1] < score:
        kept[place] = kept[place - 1]
        chosen[place] = chosen[place - 1]
        place -= 1
    kept[place] = score
    chosen[place] = item
