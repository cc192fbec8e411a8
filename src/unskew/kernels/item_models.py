"""Item-item models (EASE, item-kNN): co-occurrence counts, nearest items, and users' scores.

Counts are whole numbers and exact in float32 up to 2^24 users, so they do not depend on any order.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.parallel import for_each_block, in_parallel
from unskew.types import Float32, Int32, Int64, Ragged, Rows


def transpose(seen: Ragged, n_items: int) -> Ragged:
    """Users of each item, given the distinct items of each user."""
    user = np.repeat(np.arange(len(seen.indptr) - 1, dtype=np.int32), seen.counts())
    counts = np.bincount(seen.items, minlength=n_items)
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    return Ragged(indptr, user[np.argsort(seen.items, kind="stable")])


@jit
def _count_shared(
    item: int, u_indptr: Int64, users: Int32, i_indptr: Int64, items: Int32, row: Float32
) -> None:
    """Add to ``row``, for every item, the number of users who have both it and ``item``."""
    for j in range(u_indptr[item], u_indptr[item + 1]):
        u = users[j]
        for n in range(i_indptr[u], i_indptr[u + 1]):
            row[items[n]] += np.float32(1.0)


@jit
def _gram(
    block: Int64, u_indptr: Int64, users: Int32, i_indptr: Int64, items: Int32, G: Float32
) -> None:
    for item in block:
        _count_shared(item, u_indptr, users, i_indptr, items, G[item])


def gram(seen: Ragged, n_items: int) -> Float32:
    """X^T X for the binary user-item matrix X."""
    G = np.zeros((n_items, n_items), np.float32)
    owners = transpose(seen, n_items)
    for_each_block(owners.counts(), _gram, *owners, *seen, G)
    return G


@jit
def _finish_weights(block: Int64, diagonal: Float32, B: Float32) -> None:
    """Columns divided by minus the diagonal, for the rows in ``block``; zero on the diagonal."""
    for i in block:
        for j in range(len(diagonal)):
            B[i, j] /= -diagonal[j]
        B[i, i] = 0.0


@jit
def _mirror(U: Float32) -> None:
    """Copy the upper triangle to the lower one, in tiles that stay in the cache."""
    n, tile = len(U), 64
    for low_i in range(0, n, tile):
        for low_j in range(low_i, n, tile):
            for i in range(low_i, min(low_i + tile, n)):
                for j in range(max(low_j, i + 1), min(low_j + tile, n)):
                    U[j, i] = U[i, j]


def weights_of_inverse(P: Float32) -> None:
    """B_ij = -P_ij / P_jj, B_jj = 0, in place; only the upper triangle of ``P`` is read."""
    _mirror(P)
    diagonal = np.ascontiguousarray(np.diag(P))
    in_parallel(len(P), _finish_weights, diagonal, P)


@jit
def _neighbours(
    block: Int64,
    u_indptr: Int64,
    users: Int32,
    i_indptr: Int64,
    items: Int32,
    shrinkage: float,
    ids: Int32,
    similarity: Float32,
) -> None:
    n_items, k = ids.shape
    shared = np.empty(n_items, np.float32)
    found = np.empty(n_items, np.int32)
    for item in block:
        shared[:] = 0.0
        _count_shared(item, u_indptr, users, i_indptr, items, shared)
        own = u_indptr[item + 1] - u_indptr[item]
        n = 0
        for other in range(n_items):
            if other != item and shared[other] > 0:
                degree = u_indptr[other + 1] - u_indptr[other]
                shared[other] /= np.sqrt(own * degree) + shrinkage
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
    owners = transpose(seen, n_items)
    for_each_block(
        owners.counts(),
        _neighbours,
        *owners,
        *seen,
        shrinkage,
        ids,
        similarity,
    )
    return ids, similarity


@jit
def _neighbour_scores(
    block: Int64,
    indptr: Int64,
    items: Int32,
    values: Float32,
    ids: Int32,
    similarity: Float32,
    scores: Float32,
) -> None:
    n_items, k = ids.shape
    own = np.zeros(n_items, np.float32)
    for c in block:
        for j in range(indptr[c], indptr[c + 1]):
            own[items[j]] = values[j, 0]
        for item in range(n_items):
            total = np.float32(0.0)
            for n in range(k):
                total += similarity[item, n] * own[ids[item, n]]
            scores[c, item] = total
        for j in range(indptr[c], indptr[c + 1]):
            own[items[j]] = 0.0


def neighbour_scores(X: Rows, ids: Int32, similarity: Float32) -> Float32:
    """For each user and item, the sum of the similarities of the item's neighbours the user has."""
    n = len(X.indptr) - 1
    scores = np.empty((n, len(ids)), np.float32)
    in_parallel(n, _neighbour_scores, *X, ids, similarity, scores)
    return scores


@jit
def _linear_scores(
    block: Int64, indptr: Int64, items: Int32, values: Float32, B: Float32, scores: Float32
) -> None:
    for c in block:
        out = scores[c]
        out[:] = 0.0
        for j in range(indptr[c], indptr[c + 1]):
            x, row = values[j, 0], B[items[j]]
            for i in range(len(out)):
                out[i] += x * row[i]


def linear_scores(X: Rows, B: Float32) -> Float32:
    """X B, where the ragged rows of X are the users' items."""
    scores = np.empty((len(X.indptr) - 1, B.shape[1]), np.float32)
    for_each_block(np.diff(X.indptr), _linear_scores, *X, B, scores)
    return scores
