"""What a server can read out of uploads it was sent. Pure functions of what it has; no training.

An upload is D = Q_u - Q_g, one row per item. Rows a client did not touch are zero; where the score
is an inner product, touched rows move along the client's own vector, positives one way and sampled
negatives the other (Chai et al., "Secure Federated Matrix Factorization", 2021, section 3, make the
same observation for gradients). Every attack gives each item a score: the higher, the more likely
the server thinks the user has it.

Arrays have the client first: ``D`` is clients × items × width.
"""

from __future__ import annotations

import numpy as np

from unskew.types import Bool, Float32, Float64, Int64, Upload

_LISTED = np.float32(1e-15)
"""What a row is worth for being sent at all, be it zero."""
_TREND = 12
"""Rounds from which on a trend over them can be told from who took part."""


def dense_uploads(upload: Upload, clients: Int64, n_items: int) -> Float32:
    """The item tables these clients (numbers within the upload) sent, zero where they sent none;
    a row that was sent shows, even if nothing is in it."""
    indptr, items, values = upload.rows
    D = np.zeros((len(clients), n_items, values.shape[1]), np.float32)
    for at, client in enumerate(clients):
        run = slice(indptr[client], indptr[client + 1])
        D[at, items[run]] = values[run]
        D[at, items[run], 0] += _LISTED
    return D


def support(D: Float32) -> Float64:
    """(a) Which rows changed, and how much: the norm of each."""
    return np.asarray(np.sqrt(np.einsum("uid,uid->ui", D, D)), np.float64)


def main_direction(D: Float32, noise: float = 0.0) -> Float64:
    """Each client's first right singular vector, turned so that positives lie on its far side.

    Positives are the smaller group, so the vector is turned until most rows lie on the near side;
    rows inside the known noise count by how far they lie.
    """
    gram = np.matmul(D.transpose(0, 2, 1), D).astype(np.float64)
    vectors = np.linalg.eigh(gram)[1][:, :, -1]
    z = direction(D, vectors)
    scale = max(noise, 1e-12)
    turned = np.where(np.tanh(z / scale).sum(1) > 0, -1.0, 1.0)
    return np.asarray(vectors * turned[:, None], np.float64)


def direction(D: Float32, vectors: Float64) -> Float64:
    """(b) How far each row moved towards the positives' side."""
    along = np.matmul(D, vectors[:, :, None].astype(np.float32))
    return np.asarray(along[:, :, 0], np.float64)


def inversion(D: Float32, vectors: Float64, Q: Float32) -> Float64:
    """(e) The client's own vector is that direction up to scale: score the items as it would."""
    return direction(D, vectors) + vectors @ Q.T.astype(np.float64)


def presence(moves: Float64, there: Bool) -> Float64:
    """(c, of sums) Which items move more when a client is there: ``moves``, rounds × items, less
    what changes slowly as training goes on, summed over rounds with the client against rounds
    without; ``there`` is rounds × clients. Of a client that was never absent the plain mean."""
    time = np.linspace(-1.0, 1.0, len(moves))
    slow = np.stack([time**k for k in range(3 if len(moves) >= _TREND else 1)], axis=1)
    quick = moves - slow @ (np.linalg.pinv(slow) @ moves)
    contrast = there - there.mean(0)
    absent = contrast.any(0)
    found = np.where(absent[:, None], contrast.T @ quick, moves.mean(0)[None])
    return np.asarray(found, np.float64)


def owner_of(row: Float64, table: Float32) -> Float64:
    """A sum's row of an item that one client has is that client's own vector, or lies along it, and
    of few clients the sum of theirs: score the items as they would."""
    scores = row[: table.shape[1]] @ table.T.astype(np.float64)
    return np.asarray(scores / (np.linalg.norm(scores) + 1e-30), np.float64)


def features(D: Float32, vectors: Float64) -> Float32:
    """What a trained attack sees of each row: its entries, its norm, its place along the client's
    main direction, and both in units of the client's own spread."""
    norms, along = support(D), direction(D, vectors)
    spread = np.sqrt((norms**2).mean(1, keepdims=True)) + 1e-12
    extra = np.stack([norms, along, norms / spread, along / spread], axis=2)
    return np.concatenate([D, extra.astype(np.float32)], axis=2)
