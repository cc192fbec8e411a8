"""Compare FedRefit's user vectors with the optimum for the items in use, round by round, and with
vectors made for the previous round's items.

    python experiments/fedrefit_skew.py DATA
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from unskew.data import load
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.methods import create
from unskew.types import Float32, Float64, Split


def ndcg(split: Split, scores: Float32) -> float:
    """Validation NDCG@10 over all unseen items."""
    gains = []
    for user in range(split.n_users):
        mine, row = split.validation.of(user)[0], scores[user]
        unseen = np.ones(split.n_items, bool)
        unseen[split.seen.of(user)] = False
        rank = int(np.count_nonzero(row[unseen] >= row[mine])) - 1
        gains.append(1 / np.log2(rank + 2) if rank < 10 else 0.0)
    return float(np.mean(gains))


def histories(
    split: Split, user: int, damped: Float64, in_order: bool, config: Any
) -> list[Float64]:
    """Weighted histories that a user's vectors are fitted to: constant, or faded at each pace."""
    found = []
    for pace in (config.fast, config.slow) if in_order else (1.0,):
        items = split.train.of(user)
        weights = pace ** np.arange(len(items))[::-1]
        x = np.zeros(split.n_items)
        x[items] = weights * damped[items] / np.sqrt(weights.sum())
        found.append(x)
    return found


def main(data: str) -> None:
    split = prepare(load(data), "leak-free")
    method = create("fedrefit")
    federation = Federation(method, split, seed=0)
    state, everyone = federation.start(), np.arange(split.n_users)
    previous = state.devices.take(everyone)
    print("round  furthest from the optimum  NDCG@10 with it  with the previous round's vector")
    for _ in range(method.config.rounds):
        download = method.download(state.server)
        federation.step(state)
        private = state.devices.take(everyone)
        solve = np.linalg.pinv(download.U.astype(np.float64))
        damped = download.users.astype(np.float64) ** -method.config.item_power
        furthest = 0.0
        for user in range(split.n_users):
            weighted = histories(split, user, damped, bool(download.V.shape[1]), method.config)
            best = np.concatenate([solve @ x for x in weighted])
            apart = np.linalg.norm(private.p[user][: len(best)] - best) / np.linalg.norm(best)
            furthest = max(furthest, float(apart))
        fresh, stale = (ndcg(split, method.score(download, one)) for one in (private, previous))
        print(f"{state.round:5d}  {furthest:25.1e}  {fresh:15.4f}  {stale:.4f}")
        previous = private


if __name__ == "__main__":
    main(sys.argv[1])
