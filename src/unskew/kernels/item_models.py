"""Item-item models (EASE, item-kNN): co-occurrence counts, nearest items, and users' scores.

Counts are whole numbers and exact in float32 up to 2^24 users, so they do not depend on any order.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.kernels.tables import binary_matrix, transpose
from unskew.types import Float32, Int32, Int64, Ragged, Rows

_TILE_ROWS = 256
"""Side of the tiles in which the upper triangle is copied to the lower; they fit the cache."""


@jit
def _count_shared(item: int, users: Ragged, seen: Ragged, row: Float32) -> None:
    """Add to ``row``, for every item, the number of users who have both it and ``item``."""
    for j in range(users.indptr[item], users.indptr[item + 1]):
        u = users.items[j]
        for n in range(seen.indptr[u], seen.indptr[u + 1]):
            row[seen.items[n]] += np.float32(1.0)


@jit
def _gram(block: Int64, users: Ragged, seen: Ragged, G: Float32) -> None:
    for item in block:
        _count_shared(item, users, seen, G[item])


def gram(seen: Ragged, n_items: int) -> Float32:
    """X^T X for the binary user-item matrix X."""
    G = np.zeros((n_items, n_items), np.float32)
    users = transpose(seen, n_items)
    for_each_block(users.counts(), _gram, users, seen, G)
    return G


def weights_of_inverse(P: Float32) -> None:
    """B_ij = -P_ij / P_jj, B_jj = 0, in place; only the upper triangle of ``P`` is read."""
    for low in range(0, len(P), _TILE_ROWS):
        here, after = slice(low, low + _TILE_ROWS), slice(low + _TILE_ROWS, None)
        P[after, here] = P[here, after].T
        P[here, here] = np.triu(P[here, here]) + np.triu(P[here, here], 1).T
    P /= -np.diag(P)
    np.fill_diagonal(P, 0.0)


@jit
def _neighbours(
    block: Int64, users: Ragged, seen: Ragged, shrinkage: float, ids: Int32, similarity: Float32
) -> None:
    n_items, k = ids.shape
    degrees = np.diff(users.indptr)
    shared = np.empty(n_items, np.float32)
    found = np.empty(n_items, np.int32)
    for item in block:
        shared[:] = 0.0
        _count_shared(item, users, seen, shared)
        n = 0
        for other in range(n_items):
            if other != item and shared[other] > 0:
                shared[other] /= np.sqrt(degrees[item] * degrees[other]) + shrinkage
                found[n] = other
                n += 1
        order = np.argsort(-shared[found[:n]], kind="mergesort")
        for place in range(min(k, n)):
            ids[item, place] = found[order[place]]
            similarity[item, place] = shared[found[order[place]]]


def nearest_items(seen: Ragged, n_items: int, k: int, shrinkage: float) -> tuple[Int32, Float32]:
    """The ``k`` most similar items of each item, and their similarities.

    The similarity is shared users / (sqrt(users_i users_j) + shrinkage). Ties go to the lower item
    number; missing neighbours have similarity 0.
    """
    ids = np.zeros((n_items, k), np.int32)
    similarity = np.zeros((n_items, k), np.float32)
    users = transpose(seen, n_items)
    for_each_block(users.counts(), _neighbours, users, seen, shrinkage, ids, similarity)
    return ids, similarity


@jit
def _neighbour_scores(
    block: Int64, X: Rows, ids: Int32, similarity: Float32, scores: Float32
) -> None:
    n_items, k = ids.shape
    for c in block:
        own = np.zeros(n_items, np.float32)
        for j in range(X.indptr[c], X.indptr[c + 1]):
            own[X.items[j]] = X.values[j, 0]
        for item in range(n_items):
            total = np.float32(0.0)
            for n in range(k):
                total += similarity[item, n] * own[ids[item, n]]
            scores[c, item] = total


def neighbour_scores(X: Rows, ids: Int32, similarity: Float32) -> Float32:
    """For each user and item, the sum of the similarities of the item's neighbours the user has."""
    scores = np.empty((len(X.indptr) - 1, len(ids)), np.float32)
    in_parallel(len(scores), _neighbour_scores, X, ids, similarity, scores)
    return scores


def linear_scores(X: Rows, B: Float32) -> Float32:
    """X B, where the ragged rows of X are the users' items, each with the value 1."""
    scores: Float32 = binary_matrix(Ragged(X.indptr, X.items), len(B)) @ B
    return scores
