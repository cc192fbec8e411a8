"""Attacks of a curious server on the uploads it receives.

An upload is D = Q_u - Q_g, one row per item. Rows that a client did not touch are zero. Where the
score is an inner product, touched rows move along the client's own vector, positives one way and
sampled negatives the other (Chai et al., "Secure Federated Matrix Factorization", 2021, section 3,
observe the same for gradients). Every attack gives each item a score: the higher, the more likely
the user has the item.

Attack (d) trains shadow clients, after Yuan, Yang, Nguyen, Cui, Xu & Yin, "Interaction-level
Membership Inference Attack Against Federated Recommender Systems", WWW 2023. The server trains
clients that it makes up, whose items it therefore knows, on each round's own download. It fits a
logistic regression to their uploads and applies it to the real ones.

Arrays have the client axis first: ``D`` is clients × items × width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unskew.audit.success import auc, mid_ranks
from unskew.ragged import indptr_from_counts
from unskew.rng import Purpose, generator
from unskew.types import Bool, Cohort, Float32, Float64, Int64, Method, Ragged, Upload

Transform = Callable[[Upload, Cohort], Upload]

LISTED_ROW = np.float32(1e-15)
"""Added to rows that were sent, so that a row of zeros still differs from one that was not sent."""
MIN_ROUNDS_FOR_TREND = 12
"""Fewer rounds do not tell a trend over time from the effect of who took part."""
SHADOW_CLIENTS = 48
"""Clients that the server makes up."""
NEGATIVES_PER_POSITIVE = 5
"""Items without an interaction in the training set of the shadow attack, per item with one."""
RIDGE = 1e-3
"""Penalty on the weights of the logistic regression, per sample."""
MAX_NEWTON_STEPS = 12
"""Steps after which the logistic regression stops."""


def dense_uploads(upload: Upload, clients: Int64, n_items: int) -> Float32:
    """Item tables that these clients (positions in the upload) sent; zero where a row was not."""
    indptr, items, values = upload.rows
    D = np.zeros((len(clients), n_items, values.shape[1]), np.float32)
    for at, client in enumerate(clients):
        run = slice(indptr[client], indptr[client + 1])
        D[at, items[run]] = values[run]
        D[at, items[run], 0] += LISTED_ROW
    return D


def support(D: Float32) -> Float64:
    """(a) The norm of each row: which rows changed, and how much."""
    return np.asarray(np.sqrt(np.einsum("uid,uid->ui", D, D)), np.float64)


def main_direction(D: Float32, noise: float = 0.0) -> Float64:
    """The first right singular vector of each client, with the sign that makes positives large.

    Positives are the smaller group, so most rows get a negative coordinate. Rows within the known
    noise count by how far they lie.
    """
    gram = np.matmul(D.transpose(0, 2, 1), D).astype(np.float64)
    vectors = np.linalg.eigh(gram)[1][:, :, -1]
    z = direction(D, vectors)
    scale = max(noise, 1e-12)
    turned = np.where(np.tanh(z / scale).sum(1) > 0, -1.0, 1.0)
    return np.asarray(vectors * turned[:, None], np.float64)


def direction(D: Float32, vectors: Float64) -> Float64:
    """(b) The coordinate of each row along the client's main direction."""
    along = np.matmul(D, vectors[:, :, None].astype(np.float32))
    return np.asarray(along[:, :, 0], np.float64)


def inversion(D: Float32, vectors: Float64, Q: Float32) -> Float64:
    """(e) Scores by the client's own vector, which is the main direction up to scale."""
    return direction(D, vectors) + vectors @ Q.T.astype(np.float64)


def presence(moves: Float64, there: Bool) -> Float64:
    """(c, on sums) Which items move more in rounds with a client than in rounds without it.

    ``moves`` is rounds × items; a slow trend over rounds is removed first. ``there`` is rounds ×
    clients. A client that was never absent gets the plain mean.
    """
    time = np.linspace(-1.0, 1.0, len(moves))
    degrees = 3 if len(moves) >= MIN_ROUNDS_FOR_TREND else 1
    slow = np.stack([time**k for k in range(degrees)], axis=1)
    quick = moves - slow @ (np.linalg.pinv(slow) @ moves)
    contrast = there - there.mean(0)
    absent = contrast.any(0)
    found = np.where(absent[:, None], contrast.T @ quick, moves.mean(0)[None])
    return np.asarray(found, np.float64)


def owner_scores(row: Float64, table: Float32) -> Float64:
    """Scores of all items by a sum's row of a rare item.

    The row of an item that one client has lies along that client's vector; with few clients it is
    the sum of theirs.
    """
    scores = row[: table.shape[1]] @ table.T.astype(np.float64)
    return np.asarray(scores / (np.linalg.norm(scores) + 1e-30), np.float64)


def features(D: Float32, vectors: Float64) -> Float32:
    """Features of each row for the shadow attack: its entries, its norm and its coordinate along
    the main direction, and the last two in units of the client's root mean square norm."""
    norms, along = support(D), direction(D, vectors)
    spread = np.sqrt((norms**2).mean(1, keepdims=True)) + 1e-12
    extra = np.stack([norms, along, norms / spread, along / spread], axis=2)
    return np.concatenate([D, extra.astype(np.float32)], axis=2)


def auc_of_one(upload: Float32, owned: Bool) -> float:
    """AUC against one upload (items × width) of the better of support and direction, the two
    attacks that need nothing else."""
    D = upload[None]
    scores = support(D)[0], direction(D, main_direction(D))[0]
    return max(float(auc(mid_ranks(one), owned)) for one in scores)


class Classifier:
    """Logistic regression on standardised features and on each item's prior log-odds.

    ``side`` is 1 if a method's positives are on the smaller side of the main direction, else -1.
    ``prior_weight`` is the weight of the prior, which counts once however many uploads there are.
    """

    def __init__(self, x: Float32, y: Bool, prior: Float32, side: float = 1.0) -> None:
        self.side = side
        self._mean, self._spread = x.mean(0), x.std(0) + np.float32(1e-12)
        z = np.concatenate([self._standardise(x), prior[:, None]], axis=1)
        w = np.zeros(z.shape[1])
        ridge = RIDGE * len(z) * np.eye(z.shape[1])
        # einsum, because a threaded BLAS takes seconds for this on busy cores.
        for _ in range(MAX_NEWTON_STEPS):
            p = 1 / (1 + np.exp(-np.clip(np.einsum("na,a->n", z, w), -30, 30)))
            gradient = np.einsum("na,n->a", z, p - y) + ridge @ w
            bend = (p * (1 - p)).astype(np.float32)[:, None]
            curvature = np.einsum("na,nb->ab", z * bend, z) + ridge
            step = np.linalg.solve(curvature, gradient)
            w -= step
            if np.abs(step).max() < 1e-6:
                break
        self._weights, self.prior_weight = w[:-1], float(w[-1])

    def log_odds(self, x: Float32) -> Float64:
        """Log-odds from the upload alone, without the prior."""
        flat = self._standardise(x.reshape(-1, x.shape[-1])) @ self._weights.astype(np.float32)
        return np.asarray(np.clip(flat, -30, 30).reshape(x.shape[:-1]), np.float64)

    def _standardise(self, x: Float32) -> Float32:
        z = np.clip((x - self._mean) / self._spread, -20, 20)
        return np.concatenate([z, np.ones((len(z), 1), np.float32)], axis=1)


class Shadows:
    """(d) Clients that the server makes up and trains along, round by round.

    Their items are drawn by popularity, which is public, and their numbers of items from a common
    range.
    """

    def __init__(self, method: Method, n_items: int, popularity: Int64, n_users: int, seed: int):
        self._method, self._n_items = method, n_items
        # Numbers beyond the federation's, so that no real client shares a random stream.
        self._users = np.arange(n_users, n_users + SHADOW_CLIENTS)
        self._draw = draw = generator(seed, Purpose.AUDIT_DATA, 2)
        most = max(12, min(n_items // 5, 250))
        sizes = np.exp(draw.uniform(np.log(10), np.log(most), SHADOW_CLIENTS)).astype(int)
        share = (popularity + 0.5) / (n_users + 1.0)
        self.prior: Float64 = np.log(share / (1 - share))
        """Log-odds that a user has an item, from the number of users who have it."""
        chances = (popularity + 0.5) / (popularity + 0.5).sum()
        lists = [
            np.sort(draw.choice(n_items, size, replace=False, p=chances)).astype(np.int32)
            for size in sizes
        ]
        self._positives = Ragged(indptr_from_counts(sizes), np.concatenate(lists))
        self._owned = np.zeros((SHADOW_CLIENTS, n_items), bool)
        for at, items in enumerate(lists):
            self._owned[at, items] = True
        _, private = method.init(n_users + SHADOW_CLIENTS, n_items, seed)
        self._private = type(private)(*(_last_users(leaf) for leaf in private))

    def learn(
        self, download: Any, round: int, seed: int, device: Transform | None, noise: float
    ) -> Classifier | None:
        """Train the shadow clients for a round and fit a classifier to their uploads.

        ``device`` transforms uploads as real devices do. None if nothing was uploaded.
        """
        cohort = Cohort(self._users, self._positives, self._positives, self._n_items, seed, round)
        private, upload, _ = self._method.local(download, self._private, cohort)
        if device is not None:
            upload = device(upload, cohort)
        self._private = self._method.personalize(download, private, cohort)
        sent = np.flatnonzero(upload.weight > 0)
        if len(sent) == 0:
            return None
        D = dense_uploads(upload, sent, self._n_items)
        vectors, owned = main_direction(D, noise), self._owned[sent]
        along = direction(D, vectors)
        aucs = [auc(mid_ranks(z), has) for z, has in zip(along, owned, strict=True)]
        side = 1.0 if np.mean(aucs) >= 0.5 else -1.0
        x = features(D, vectors)
        share = NEGATIVES_PER_POSITIVE * owned.mean() / (1 - owned.mean())
        chosen = owned | (self._draw.random(owned.shape) < share)
        prior = np.broadcast_to(self.prior.astype(np.float32), owned.shape)
        return Classifier(x[chosen], owned[chosen], prior[chosen], side)


def _last_users(leaf: Any) -> Any:
    """The part of a fresh private state that belongs to the shadow clients."""
    if hasattr(leaf, "indptr"):
        start = leaf.indptr[-SHADOW_CLIENTS - 1]
        return type(leaf)(leaf.indptr[-SHADOW_CLIENTS - 1 :] - start, *leaf[1:])
    return leaf[-SHADOW_CLIENTS:].copy()
