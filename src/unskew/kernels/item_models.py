"""Item-item models (EASE, item-kNN): co-occurrence counts, nearest items, and users' scores.

Counts are integers, exact in float32 up to 2^24 users, so the order of summation does not matter.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.parallel import in_parallel
from unskew.kernels.tables import binary_matrix
from unskew.types import Float32, Int32, Int64, Ragged, Rows

_TILE_ROWS = 256
"""Number of rows of an item-item matrix that are processed at a time."""


def gram(seen: Ragged, n_items: int) -> Float32:
    """Number of users that each pair of items shares: X^T X for the binary user-item matrix X."""
    X = binary_matrix(seen, n_items)
    counts: Float32 = (X.T @ X).toarray(order="C")
    return counts


def weights_of_inverse(P: Float32) -> None:
    """Turn ``P``, the inverse of EASE's regularised Gram matrix, into the item weights -P_ij / P_jj
    (0 on the diagonal), in place. Only the upper triangle of ``P`` is read."""
    for low in range(0, len(P), _TILE_ROWS):
        here, after = slice(low, low + _TILE_ROWS), slice(low + _TILE_ROWS, None)
        P[after, here] = P[here, after].T
        P[here, here] = np.triu(P[here, here]) + np.triu(P[here, here], 1).T
    P /= -np.diag(P)
    np.fill_diagonal(P, 0.0)


def nearest_items(seen: Ragged, n_items: int, k: int, shrinkage: float) -> tuple[Int32, Float32]:
    """The ``k`` most similar items of each item, and their similarities.

    The similarity of items i and j is the number of users who have both / (sqrt(users_i users_j) +
    shrinkage). Ties go to the lower item number; missing neighbours are item 0 with similarity 0.
    """
    X = binary_matrix(seen, n_items)
    users = np.bincount(seen.items, minlength=n_items)
    ids = np.zeros((n_items, k), np.int32)
    similarity = np.zeros((n_items, k), np.float32)
    for low in range(0, n_items, _TILE_ROWS):
        tile = np.arange(low, min(low + _TILE_ROWS, n_items))
        shared = (X[:, tile].T @ X).toarray()
        shared[np.arange(len(tile)), tile] = 0.0
        shared = (shared / (np.sqrt(users[tile, None] * users) + shrinkage)).astype(np.float32)
        order = np.argsort(-shared, axis=1, kind="stable")[:, :k]
        similarity[tile] = np.take_along_axis(shared, order, axis=1)
        ids[tile] = np.where(similarity[tile] > 0, order, 0)
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
    """Score of each item for each user: the summed similarity of neighbours that the user has."""
    scores = np.empty((len(X.indptr) - 1, len(ids)), np.float32)
    in_parallel(len(scores), _neighbour_scores, X, ids, similarity, scores)
    return scores
