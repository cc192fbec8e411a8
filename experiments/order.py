"""How much of a method's quality comes from the order of histories, and from the order of ties.

    python experiments/order.py METHOD DATA SEED ORDER [ROUNDS]

ORDER is `kept`, `ties` (rows with equal times get a random order before the data is split, so that
other items may be held out) or `none` (each user's training history gets a random order after the
split). Protocol `sequential`; for example `fedrefit ml-100k 0 none`. The row goes to
results/order.jsonl.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unskew.data import load
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.files import append_json_line
from unskew.methods import create
from unskew.ragged import owners
from unskew.types import Interactions, Ragged, Split

RESULTS = Path(__file__).resolve().parents[1] / "results" / "order.jsonl"


def shuffle_ties(data: Interactions, rng: np.random.Generator) -> Interactions:
    """The rows in random order. `sequential` sorts them by time, so only ties stay shuffled."""
    order = rng.permutation(len(data.users))
    columns = {name: getattr(data, name) for name in ("ratings", "timestamps")}
    moved = {name: None if old is None else old[order] for name, old in columns.items()}
    return replace(data, users=data.users[order], items=data.items[order], **moved)


def shuffle_histories(split: Split, rng: np.random.Generator) -> Split:
    """Each user's training items in random order, each with its time; held-out items stay."""
    train, times = split.train, split.train_timestamps
    order = np.lexsort((rng.random(len(train.items)), owners(train.indptr)))
    moved = None if times is None else times[order]
    return replace(split, train=Ragged(train.indptr, train.items[order]), train_timestamps=moved)


def make_split(source: str, order: str, rng: np.random.Generator) -> Split:
    data = load(source)
    split = prepare(shuffle_ties(data, rng) if order == "ties" else data, "sequential")
    return shuffle_histories(split, rng) if order == "none" else split


def main(name: str, source: str, seed: str, order: str, rounds: str = "") -> None:
    split = make_split(source, order, np.random.default_rng(int(seed)))
    method: Any = create(name, **({"rounds": int(rounds)} if rounds else {}))
    federation = Federation(method, split, int(seed))
    state = federation.run()
    row = {
        "command": f"python experiments/order.py {name} {source} {seed} {order} {rounds}".rstrip(),
        "method": name,
        "data": source,
        "protocol": "sequential",
        "order": order,
        "seed": int(seed),
        "rounds": method.config.rounds,
        "best_round": state.best_round,
        "test": state.rows[state.best_round - 1]["test"],
    }
    append_json_line(RESULTS, row)
    print(row)


if __name__ == "__main__":
    main(*sys.argv[1:])
