"""(d) Interaction-level membership inference with shadow clients.

After Yuan, Yang, Nguyen, Cui, Xu & Yin, "Interaction-level Membership Inference Attack Against
Federated Recommender Systems", WWW 2023: the server runs the method itself for users it makes up,
whose items it therefore knows, sees what such clients upload, and learns to tell items they have
from items they do not. Each round it plays its shadow clients on the round's own download, trains a
logistic regression on their uploads and applies it to the real ones.

The shadow users' items are drawn by popularity, which is no secret (charts are public), and their
numbers of items from a common range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from unskew.audit._attacks import dense_uploads, direction, features, main_direction
from unskew.audit._success import auc, mid_ranks
from unskew.ragged import indptr_from_counts
from unskew.rng import Purpose, generator
from unskew.types import Bool, Cohort, Float32, Float64, Int64, Method, Ragged, Upload

SHADOWS = 48
_NEGATIVES_PER_POSITIVE = 5
_RIDGE = 1e-3
_NEWTON_STEPS = 12


class Classifier:
    """Logistic regression on standardised features and on what is known of an item beforehand, with
    its log-odds as score. ``side`` says where a method's positives lie: 1 on the smaller side of
    the main direction, -1 on the larger. ``trust`` is the weight of what is known beforehand, which
    counts once, however many uploads there are."""

    def __init__(self, x: Float32, y: Bool, known: Float32, side: float = 1.0) -> None:
        self.side = side
        self._mean, self._spread = x.mean(0), x.std(0) + np.float32(1e-12)
        z = np.concatenate([self._prepared(x), known[:, None]], axis=1)
        w = np.zeros(z.shape[1])
        ridge = _RIDGE * len(z) * np.eye(z.shape[1])
        # einsum and not matmul: a threaded BLAS takes seconds for this on busy cores.
        for _ in range(_NEWTON_STEPS):
            p = 1 / (1 + np.exp(-np.clip(np.einsum("na,a->n", z, w), -30, 30)))
            gradient = np.einsum("na,n->a", z, p - y) + ridge @ w
            bend = (p * (1 - p)).astype(np.float32)[:, None]
            curvature = np.einsum("na,nb->ab", z * bend, z) + ridge
            step = np.linalg.solve(curvature, gradient)
            w -= step
            if np.abs(step).max() < 1e-6:
                break
        self._weights, self.trust = w[:-1], float(w[-1])

    def log_odds(self, x: Float32) -> Float64:
        """Of the upload alone."""
        flat = self._prepared(x.reshape(-1, x.shape[-1])) @ self._weights.astype(np.float32)
        return np.asarray(np.clip(flat, -30, 30).reshape(x.shape[:-1]), np.float64)

    def _prepared(self, x: Float32) -> Float32:
        z = np.clip((x - self._mean) / self._spread, -20, 20)
        return np.concatenate([z, np.ones((len(z), 1), np.float32)], axis=1)


class Shadows:
    """Clients the server makes up and plays along, round by round."""

    def __init__(self, method: Method, n_items: int, popularity: Int64, n_users: int, seed: int):
        self._method, self._n_items = method, n_items
        # Numbers beyond the federation's: other random streams than any real client's.
        self.users = np.arange(n_users, n_users + SHADOWS)
        draw = generator(seed, Purpose.AUDIT_DATA, 2)
        most = max(12, min(n_items // 5, 250))
        sizes = np.exp(draw.uniform(np.log(10), np.log(most), SHADOWS)).astype(int)
        self.known = log_popularity(popularity, n_users)
        chances = (popularity + 0.5) / (popularity + 0.5).sum()
        lists = [
            np.sort(draw.choice(n_items, size, replace=False, p=chances)).astype(np.int32)
            for size in sizes
        ]
        indptr = indptr_from_counts(sizes)
        self._positives = Ragged(indptr, np.concatenate(lists))
        self._owned = np.zeros((SHADOWS, n_items), bool)
        for at, items in enumerate(lists):
            self._owned[at, items] = True
        _, self._private = method.init(n_users + SHADOWS, n_items, seed)
        self._private = type(self._private)(*(_tail(leaf) for leaf in self._private))
        self._draw = draw

    def learn(
        self,
        download: Any,
        round: int,
        seed: int,
        device: Callable[[Upload, Cohort], Upload] | None,
        noise: float,
    ) -> Classifier | None:
        """Play the round; what its uploads teach. None if nothing was uploaded."""
        cohort = Cohort(self.users, self._positives, self._positives, self._n_items, seed, round)
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
        hits = [auc(mid_ranks(z), has) for z, has in zip(along, owned, strict=True)]
        side = 1.0 if np.mean(hits) >= 0.5 else -1.0
        x = features(D, vectors)
        share = _NEGATIVES_PER_POSITIVE * owned.mean() / (1 - owned.mean())
        kept = owned | (self._draw.random(owned.shape) < share)
        known = np.broadcast_to(self.known.astype(np.float32), owned.shape)
        return Classifier(x[kept], owned[kept], known[kept], side)


def log_popularity(popularity: Int64, n_users: int) -> Float64:
    """The log-odds that a user has an item, knowing no more than how many have it."""
    share = (popularity + 0.5) / (n_users + 1.0)
    return np.asarray(np.log(share / (1 - share)), np.float64)


def _tail(leaf: Any) -> Any:
    """The last users' part of a fresh private state."""
    if hasattr(leaf, "indptr"):
        return type(leaf)(leaf.indptr[-SHADOWS - 1 :] - leaf.indptr[-SHADOWS - 1], *leaf[1:])
    return leaf[-SHADOWS:].copy()
