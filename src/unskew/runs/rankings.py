"""Ranked lists of a run in the formats of other evaluation tools: TREC files, and ranx's JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import numpy as np

from unskew.engine import MAX_CHUNK_CLIENTS, Recommender, batches
from unskew.evaluation import top_k
from unskew.files import write_text
from unskew.types import UnskewError

RankingFormat = Literal["trec", "ranx"]
"""``trec``: lines of text, as trec_eval reads them; ``ranx``: JSON objects, as ranx reads them."""
_Table = dict[str, dict[str, float]]
"""For each user a number for each item."""


def write_rankings(recommender: Recommender, out: Path, k: int, format: RankingFormat) -> Path:
    """Write the ``k`` best items of every user who has test items to ``out``, ranked as in the
    evaluation (training and validation items are left out). The test items go to a second file
    in the same folder, whose name ends in ``.qrels``. Returns the path of this second file."""
    split = recommender.split
    run: _Table = {}
    held: _Table = {}
    for users in batches(np.flatnonzero(split.test.counts()), MAX_CHUNK_CLIENTS):
        _, scores = recommender.held_out_scores(users)
        best = top_k(scores, users, split, k)
        for row, user in enumerate(users.tolist()):
            label, items = split.user_ids[user], best[row][best[row] >= 0]
            run[label] = {split.item_ids[item]: float(scores[row, item]) for item in items}
            held[label] = {split.item_ids[item]: 1 for item in split.test.of(user)}
    if not held:
        raise UnskewError("Nobody in this run has test items, so there is nothing to rank.")
    qrels = out.with_name(out.name + ".qrels")
    if format == "ranx":
        write_text(out, json.dumps(run, ensure_ascii=False) + "\n")
        write_text(qrels, json.dumps(held, ensure_ascii=False) + "\n")
        return qrels
    _check_labels(held)
    _check_labels(run)
    lines = (
        f"{user} Q0 {item} {rank} {score!r} unskew\n"
        for user, items in run.items()
        for rank, (item, score) in enumerate(items.items(), 1)
    )
    write_text(out, "".join(lines))
    write_text(qrels, "".join(f"{user} 0 {item} 1\n" for user in held for item in held[user]))
    return qrels


def _check_labels(table: _Table) -> None:
    """Raise an UnskewError if a user's or item's label contains white space, which separates the
    fields of a line in a TREC file."""
    for user, items in table.items():
        for label in (user, *items):
            if len(label.split()) != 1:
                raise UnskewError(
                    f'The label "{label}" contains white space, which TREC files cannot hold; use '
                    "--format ranx."
                )
