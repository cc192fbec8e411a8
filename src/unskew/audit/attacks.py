"""Attacks of a curious server on the uploads it receives, and measures of their success.

An upload ``D`` has one row per item: the client's trained item vector minus the downloaded one, or
zero if the client did not train the item. If predictions are inner products, rows lie along the
user vector, positives one way and sampled negatives the other (Chai et al., "Secure Federated
Matrix Factorization", 2021, section 3, observe the same for gradients). Every attack gives each
item a score: the higher, the more likely the user has the item.

Attack (d) trains shadow clients, after Yuan, Yang, Nguyen, Cui, Xu & Yin, "Interaction-level
Membership Inference Attack Against Federated Recommender Systems", WWW 2023. In each round the
server trains simulated clients, whose items it knows, on the model that real clients download. It
fits a logistic regression to their uploads and applies it to the real uploads.

Arrays have the client axis first: ``D`` is clients × items × width. Success is measured user by
user, against the items that the user trained on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from unskew.engine import Devices, Transform, train_chunk
from unskew.evaluation import Interval, mean_interval, wilson_interval
from unskew.ragged import indptr_from_counts, owners, select
from unskew.rng import Purpose, generator
from unskew.types import Bool, Cohort, Float32, Float64, Int64, Method, Ragged, Upload

SENT_ROW_MARK = np.float32(1e-15)
"""Added to the first entry of every uploaded row, so that a row of zeros differs from no row."""
MIN_ROUNDS_FOR_TREND = 12
"""Minimum number of rounds from which attack (c) removes a quadratic trend over rounds."""
SHADOW_CLIENTS = 48
"""Number of clients that the server simulates for the shadow attack."""
NEGATIVES_PER_POSITIVE = 5
"""Number of training samples of items that a shadow client lacks, per item that it has."""
RIDGE_PER_SAMPLE = 1e-3
"""L2 penalty on the weights of the logistic regression, per training sample."""
MAX_NEWTON_STEPS = 12
"""Maximum number of Newton steps of the logistic regression."""
MIN_RECOVERED_PRECISION = 0.9
"""Precision of an attack on a user above which the user's items count as recovered."""


def dense_uploads(upload: Upload, clients: Int64, n_items: int) -> Float32:
    """Uploaded item tables (clients × items × row width), with zeros in rows that were not sent.
    ``clients`` are the positions of the wanted clients in the upload."""
    indptr, items, values = select(upload.rows, clients)
    D = np.zeros((len(clients), n_items, values.shape[1]), np.float32)
    D[owners(indptr), items] = values
    D[owners(indptr), items, 0] += SENT_ROW_MARK
    return D


def item_matrix(lists: Ragged, n_items: int) -> Bool:
    """Boolean matrix (users × items) that is true where the user's list contains the item."""
    found = np.zeros((len(lists.indptr) - 1, n_items), bool)
    found[owners(lists.indptr), lists.items] = True
    return found


def support(D: Float32) -> Float64:
    """Attack (a): score each item by the Euclidean norm of its uploaded row."""
    return np.asarray(np.sqrt(np.einsum("uid,uid->ui", D, D)), np.float64)


def main_direction(D: Float32, noise: float = 0.0) -> Float64:
    """First right singular vector of each client's upload. Its sign is chosen so that items that
    the client has, the minority, get positive coordinates: the sum of tanh(coordinate / noise)
    over all items is made negative. Coordinates below the noise level count less in it."""
    gram = np.matmul(D.transpose(0, 2, 1), D).astype(np.float64)
    vectors = np.linalg.eigh(gram)[1][:, :, -1]
    z = direction(D, vectors)
    scale = max(noise, 1e-12)
    turned = np.where(np.tanh(z / scale).sum(1) > 0, -1.0, 1.0)
    return np.asarray(vectors * turned[:, None], np.float64)


def direction(D: Float32, vectors: Float64) -> Float64:
    """Attack (b): score each item by its uploaded row's coordinate along the client's main
    direction (``vectors``, one per client)."""
    along = np.matmul(D, vectors[:, :, None].astype(np.float32))
    return np.asarray(along[:, :, 0], np.float64)


def inversion(D: Float32, vectors: Float64, Q: Float32) -> Float64:
    """Attack (e): score each item by the inner product of its trained row (download ``Q`` + upload)
    with the client's main direction, an estimate of the client's vector up to scale."""
    return direction(D, vectors) + vectors @ Q.T.astype(np.float64)


def presence(moves: Float64, there: Bool) -> Float64:
    """Attack (c), on sums of uploads: score each item by how much larger its change is in rounds
    with a client than in rounds without that client. Returns clients × items.

    ``moves`` (rounds × items) has the items' changes; a slow trend over rounds is removed first.
    ``there`` (rounds × clients) is true where a client took part. For a client that took part in
    every round, scores are the mean changes."""
    time = np.linspace(-1.0, 1.0, len(moves))
    degrees = 3 if len(moves) >= MIN_ROUNDS_FOR_TREND else 1
    slow = np.stack([time**k for k in range(degrees)], axis=1)
    quick = moves - slow @ (np.linalg.pinv(slow) @ moves)
    contrast = there - there.mean(0)
    absent = contrast.any(0)
    found = np.where(absent[:, None], contrast.T @ quick, moves.mean(0)[None])
    return np.asarray(found, np.float64)


def owner_scores(row: Float64, table: Float32) -> Float64:
    """Score all items by inner products with a rare item's row of the summed upload; the scores are
    scaled to norm 1. If only one client has the rare item, the row is a multiple of that client's
    user vector; if a few have it, the row is a weighted sum of their vectors."""
    scores = row[: table.shape[1]] @ table.T.astype(np.float64)
    return np.asarray(scores / (np.linalg.norm(scores) + 1e-30), np.float64)


def features(D: Float32, vectors: Float64) -> Float32:
    """Features of each uploaded row for the shadow attack: its entries, its norm, its coordinate
    along the main direction, and the last two divided by the client's root mean square norm."""
    norms, along = support(D), direction(D, vectors)
    spread = np.sqrt((norms**2).mean(1, keepdims=True)) + 1e-12
    extra = np.stack([norms, along, norms / spread, along / spread], axis=2)
    return np.concatenate([D, extra.astype(np.float32)], axis=2)


def auc_of_one(upload: Float32, owned: Bool) -> float:
    """AUC of attack (a), by row norm, or (b), by direction, on one upload: the higher of both."""
    D = upload[None]
    scores = np.concatenate([support(D), direction(D, main_direction(D))])
    return float(auc(mid_ranks(scores), owned[None]).max())


class Classifier:
    """Logistic regression that predicts from an uploaded row whether the client has the item.

    Its inputs are standardised features of the row and the item's prior log-odds (its popularity).
    ``side`` is 1 if items that clients have score high in attack (b) (AUC >= 0.5), else -1.
    ``prior_weight`` is the fitted weight of the prior, added once for all uploads of a client."""

    def __init__(self, x: Float32, y: Bool, prior: Float32, side: float = 1.0) -> None:
        self.side = side
        self._mean, self._spread = x.mean(0), x.std(0) + np.float32(1e-12)
        z = np.concatenate([self._standardise(x), prior[:, None]], axis=1)
        w = np.zeros(z.shape[1])
        ridge = RIDGE_PER_SAMPLE * len(z) * np.eye(z.shape[1])
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
        """Log-odds that a client has each item, from features of the upload without the prior."""
        flat = self._standardise(x.reshape(-1, x.shape[-1])) @ self._weights.astype(np.float32)
        return np.asarray(np.clip(flat, -30, 30).reshape(x.shape[:-1]), np.float64)

    def _standardise(self, x: Float32) -> Float32:
        z = np.clip((x - self._mean) / self._spread, -20, 20)
        return np.concatenate([z, np.ones((len(z), 1), np.float32)], axis=1)


class Shadows:
    """Attack (d): simulated clients with known items, trained each round on the real download.

    Their items are drawn by popularity, which is public; their numbers of items are log-uniform.
    ``device`` transforms their uploads as real devices do, with noise of strength ``noise``.
    """

    def __init__(
        self,
        method: Method,
        n_users: int,
        popularity: Int64,
        seed: int,
        device: Transform | None,
        noise: float,
    ) -> None:
        self._method, self._device, self._noise = method, device, noise
        self._draw = draw = generator(seed, Purpose.AUDIT_DATA, 2)
        n_items = len(popularity)
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
        items = Ragged(indptr_from_counts(sizes), np.concatenate(lists))
        self._owned = item_matrix(items, n_items)
        # Numbers beyond the federation's, so that no real client shares a random stream.
        users = np.arange(n_users, n_users + SHADOW_CLIENTS)
        ages = draw.uniform(size=len(items.items)) if method.uses_ages else None
        self._cohort = Cohort(users, items, items, n_items, seed, 0, ages=ages)
        server, private = method.init(n_users + SHADOW_CLIENTS, n_items, seed)
        self._private = Devices(private, method.download(server)).take(users)

    def learn(self, download: Any, round: int) -> Classifier | None:
        """Train the shadow clients for a round and return a classifier fitted to their uploads;
        None if they uploaded nothing."""
        cohort = self._cohort.at_round(round)
        self._private, upload, _ = train_chunk(
            self._method, download, self._private, cohort, self._device
        )
        sent = np.flatnonzero(upload.weight > 0)
        if len(sent) == 0:
            return None
        D = dense_uploads(upload, sent, cohort.n_items)
        vectors, owned = main_direction(D, self._noise), self._owned[sent]
        aucs = auc(mid_ranks(direction(D, vectors)), owned)
        side = 1.0 if np.mean(aucs) >= 0.5 else -1.0
        x = features(D, vectors)
        share = NEGATIVES_PER_POSITIVE * owned.mean() / (1 - owned.mean())
        chosen = owned | (self._draw.random(owned.shape) < share)
        prior = np.broadcast_to(self.prior.astype(np.float32), owned.shape)
        return Classifier(x[chosen], owned[chosen], prior[chosen], side)


class Success(NamedTuple):
    """Success of an attack: means over the attacked users, each with its 95 % interval."""

    auc: Interval
    """Probability that an item of the user scores above one that is not; chance is 0.5."""
    personal_auc: Interval
    """Probability that an item scores higher for a user who has it than for a user who lacks it. It
    measures what the server learns about this user rather than about all users: chance is 0.5, and
    popularity alone gives 0.5."""
    precision: Interval
    """Share of the user's items among its n highest scores, where n is the number it has."""
    recovered: Interval
    """Share of users whose precision is above ``MIN_RECOVERED_PRECISION``."""
    heaviest: Interval
    """Personal AUC over the 10 % of users with the most items, who weigh most in a sum."""
    users: int

    def to_json(self) -> dict[str, Any]:
        figures = {
            name: _interval_json(i) for name, i in zip(self._fields[:-1], self[:-1], strict=True)
        }
        return figures | {"users": self.users}


def measure(scores: Float64, owned: Bool, seed: int = 0) -> Success:
    """Measure how well the item scores of one attack find the items that users have. ``scores`` and
    ``owned`` are users × items; users without scores (NaN) are left out."""
    there = ~np.isnan(scores).any(axis=1)
    scores, owned = scores[there], owned[there]
    n = len(scores)
    if n == 0:
        nothing = mean_interval(np.zeros(0))
        return Success(nothing, nothing, nothing, nothing, nothing, 0)
    # Break ties at random, in the same way every time.
    shuffled = generator(seed, Purpose.AUDIT_DATA, 1).permutation(scores.shape[1])
    scores, owned = scores[:, shuffled], owned[:, shuffled]
    ranks, precisions = mid_ranks(scores), _precisions(scores, owned)
    personal = personal_auc(ranks, owned)
    heavy = np.argsort(owned.sum(1), kind="stable")[-max(2, n // 10) :]
    return Success(
        _interval(auc(ranks, owned)),
        _interval(personal),
        _interval(precisions),
        wilson_interval(int((precisions > MIN_RECOVERED_PRECISION).sum()), n),
        _interval(personal[heavy]),
        n,
    )


def owner_success(scores: Float64, items: Int64, owned: Bool) -> dict[str, Any]:
    """AUC and precision of the attack on clients who have a rare item, as JSON. The rare item
    (``items``, one per client) is left out. ``scores`` and ``owned`` are clients × items."""
    others = np.arange(scores.shape[1]) != items[:, None]
    scores, owned = (table[others].reshape(len(items), -1) for table in (scores, owned))
    some = owned.any(1)
    scores, owned = scores[some], owned[some]
    return {
        "auc": _interval_json(_interval(auc(mid_ranks(scores), owned))),
        "precision": _interval_json(_interval(_precisions(scores, owned))),
        "items": len(scores),
    }


def mid_ranks(scores: Float64) -> Float64:
    """Ranks within each row, from 1 for the lowest score; equal scores share their mean rank."""
    from scipy.stats import rankdata  # costs most of a second to import: only when needed

    return np.asarray(rankdata(scores, axis=1), np.float64)


def auc(ranks: Float64, owned: Bool) -> Float64:
    """AUC of each user: the probability that an item of the user ranks above an item that the user
    lacks; ties count half. ``ranks`` (users × items) comes from ``mid_ranks``."""
    n = owned.sum(1)
    wins = np.where(owned, ranks, 0.0).sum(1) - n * (n + 1) / 2
    return np.asarray(wins / (n * (ranks.shape[1] - n)), np.float64)


def personal_auc(ranks: Float64, owned: Bool) -> Float64:
    """For each user, the mean over the user's items of a share: among all users who lack the item,
    those for whom it ranks lower than for this user. NaN if everybody has all of the user's items.
    """
    # The number of those users is this user's rank for the item among all minus among owners.
    lacking = (~owned).sum(0)
    beaten = mid_ranks(ranks.T).T - mid_ranks(np.where(owned, ranks, np.inf).T).T
    counts = owned & (lacking > 0)
    with np.errstate(invalid="ignore"):
        wins = np.where(counts, beaten / np.maximum(lacking, 1), 0.0).sum(1)
        return np.asarray(wins / counts.sum(1), np.float64)


def _interval_json(interval: Interval) -> dict[str, float]:
    """Mean, lower and upper end of an interval as JSON, rounded to four digits."""
    return {name: round(value, 4) for name, value in interval._asdict().items()}


def _interval(values: Float64) -> Interval:
    """A 95 % confidence interval of the mean over users; its width is 0 if all values are equal."""
    known = values[~np.isnan(values)]
    if len(known) and np.ptp(known) == 0:
        return Interval(float(known[0]), float(known[0]), float(known[0]))
    return mean_interval(values)


def _precisions(scores: Float64, owned: Bool) -> Float64:
    """For each user with n items, the share of these items among the n with the highest scores."""
    n = owned.sum(1)
    best = np.argsort(-scores, axis=1, kind="stable")
    hits = np.take_along_axis(owned, best, axis=1) & (np.arange(scores.shape[1]) < n[:, None])
    return np.asarray(hits.sum(1) / n, np.float64)
