"""Ranking metrics, computed only from the ranks of the held-out items.

A user has H held-out items. Those on rank ``k`` or better are hits:

``hr@k``      1 if there is a hit, else 0
``recall@k``  hits / H
``mrr@k``     1 / the best hit's rank, 0 without a hit
``ndcg@k``    sum over hits of ln 2 / ln(1 + rank), divided by the same sum for the best possible
              ranks 1, 2, … min(H, k); with one held-out item just ln 2 / ln(1 + rank)
``map@k``     sum over hits of (number of hits up to this rank) / rank, divided by min(H, k)

A user with nothing held out has the value NaN and is left out of means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from unskew.ragged import distinct, owners
from unskew.types import Bool, Float64, Int32, Int64, Ragged, UnskewError

CUTOFFS = (5, 10, 20, 50)
"""Cutoffs k (lengths of recommended lists) at which metrics are reported."""
MAIN_CUTOFF = 10
"""Cutoff that is always computed, because NDCG@10 chooses the best round."""
OwnMetric = Callable[[Int32, Sequence[str]], float]
"""Type of a custom metric: a function that gets the ranks (1 is best) of one user's held-out items
and their labels in the same order, and returns a number. Called only if the user has such items."""


def per_user(ranks: Int32, indptr: Int64, ks: Sequence[int] = CUTOFFS) -> dict[str, Float64]:
    """Values of every metric, one per user, by name such as ``hr@10``. The ranks of user ``u``'s
    held-out items are ``ranks[indptr[u]:indptr[u + 1]]``."""
    n_users = len(indptr) - 1
    held = np.diff(indptr)
    if len(ranks) != indptr[-1]:
        raise ValueError(f"{len(ranks)} ranks do not fill lists that end at {indptr[-1]}")
    user = owners(indptr)
    rank = ranks[np.lexsort((ranks, user))].astype(np.float64)
    order = np.arange(len(rank)) - indptr[user] + 1.0  # 1 for a user's best-ranked item

    def total(values: Float64 | Bool) -> Float64:
        return np.bincount(user, weights=values, minlength=n_users).astype(np.float64)

    nothing = held == 0
    # The gain of the ideal list with h held-out items on ranks 1 to h, for each h.
    longest = min(max(ks), int(held.max(initial=0)))
    ideal = np.concatenate([[0.0], np.cumsum(_gain(np.arange(1.0, longest + 1)))])
    metrics: dict[str, Float64] = {}
    for k in ks:
        hit = rank <= k
        best_hit = hit & (order == 1)
        most_hits = np.minimum(held, k)
        values = {
            "hr": total(best_hit),
            "ndcg": _divide(total(hit * _gain(rank)), ideal[most_hits]),
            "mrr": total(best_hit / rank),
            "recall": _divide(total(hit), held),
            "map": _divide(total(hit * order / rank), most_hits),
        }
        for name, value in values.items():
            value[nothing] = np.nan
            metrics[f"{name}@{k}"] = value
    return metrics


def own_metrics(
    metrics: Mapping[str, OwnMetric], ranks: Int32, held_out: Ragged, item_ids: Sequence[str]
) -> dict[str, Float64]:
    """Values of custom metrics by name, one per user in the data; NaN for users with nothing held
    out. ``ranks`` are the ranks of the items in ``held_out``, in the same order."""
    values = {}
    for name, metric in metrics.items():
        values[name] = np.full(len(held_out.indptr) - 1, np.nan)
        for user in np.flatnonzero(held_out.counts()):
            own = slice(held_out.indptr[user], held_out.indptr[user + 1])
            labels = [item_ids[item] for item in held_out.items[own]]
            try:
                values[name][user] = metric(ranks[own].copy(), labels)
            except Exception as error:
                raise UnskewError(
                    f"The metric {name} fails for ranks {ranks[own].tolist()} "
                    f"({type(error).__name__}: {error}); it gets a user's ranks and items and must "
                    "return a number."
                ) from error
    return values


def mean_metrics(values: Mapping[str, Float64]) -> dict[str, float]:
    """Mean of each metric over users, without NaN values (users with nothing held out)."""
    means = {}
    for name, value in values.items():
        present = value[~np.isnan(value)]
        means[name] = float(present.mean()) if len(present) else float("nan")
    return means


def coverage(top: Int32, n_items: int) -> float:
    """Share of the catalogue that is recommended to at least one user."""
    return len(np.unique(top[top >= 0])) / n_items


def popularity(top: Int32, train: Ragged, n_items: int) -> float:
    """Mean popularity of the recommended items: the share of users with the item in training."""
    n_users = len(train.indptr) - 1
    share = np.bincount(distinct(train).items, minlength=n_items) / n_users
    recommended = top[top >= 0]
    return float(share[recommended].mean()) if len(recommended) else float("nan")


def _gain(rank: Float64) -> Float64:
    gain: Float64 = np.log(2.0) / np.log(1.0 + rank)
    return gain


def _divide(value: Float64, whole: Float64 | Int64) -> Float64:
    """Elementwise ``value / whole``, and 0 where ``whole`` is 0."""
    return np.divide(value, whole, out=np.zeros(len(value)), where=whole > 0)
