"""Files of recommendations for all users of a run: tables, and ranked lists for other evaluation
tools. They are written part by part, so memory does not grow with the number of users."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import polars as pl
from polars.io.plugins import register_io_source

from unskew.engine import MAX_CHUNK_CLIENTS, RECOMMENDATIONS, Recommender, batches
from unskew.evaluation import top_k
from unskew.files import write_atomically
from unskew.text import without_formulas
from unskew.types import UnskewError

RankingFormat = Literal["trec", "ranx"]
"""``trec``: lines of text, as trec_eval reads them; ``ranx``: JSON objects, as ranx reads them."""
ROW_GROUP = 2**17
"""Number of rows that a Parquet file stores together; they are in memory until all are there."""
_Table = Iterator[tuple[str, dict[str, float]]]
"""For each user a number for each item."""


def write_recommendations(recommender: Recommender, out: Path, k: int) -> int:
    """Write the ``k`` best unseen items of every user to a .parquet or .csv file. Returns the
    number of rows."""
    rows = 0

    def parts() -> Iterator[pl.DataFrame]:
        nonlocal rows
        for table in recommender.tables(k):
            rows += len(table)
            yield table

    def write_csv(file: BinaryIO) -> None:
        for number, table in enumerate(parts()):
            without_formulas(table).write_csv(file, include_header=number == 0)

    def write_parquet(file: BinaryIO) -> None:
        # Polars asks for the parts one by one; the arguments would ask for some of their rows.
        table = register_io_source(lambda *_: parts(), schema=RECOMMENDATIONS)
        table.sink_parquet(file, row_group_size=ROW_GROUP)

    write_atomically(out, write_parquet if out.suffix == ".parquet" else write_csv)
    return rows


def write_rankings(recommender: Recommender, out: Path, k: int, format: RankingFormat) -> Path:
    """Write the ``k`` best items of every user who has test items to ``out``, ranked as in the
    evaluation (training and validation items are left out). The test items go to a second file
    in the same folder, whose name ends in ``.qrels``. Returns the path of this second file."""
    split = recommender.split
    users = np.flatnonzero(split.test.counts())
    if not len(users):
        raise UnskewError("Nobody in this run has test items, so there is nothing to rank.")

    def held() -> _Table:
        for user in users.tolist():
            items = split.test.of(user)
            yield split.user_ids[user], {split.item_ids[item]: 1 for item in items}

    def ranked() -> _Table:
        for some in batches(users, MAX_CHUNK_CLIENTS):
            _, scores = recommender.held_out_scores(some)
            best = top_k(scores, some, split, k)
            for row, user in enumerate(some.tolist()):
                items = best[row][best[row] >= 0]
                yield (
                    split.user_ids[user],
                    {split.item_ids[item]: float(scores[row, item]) for item in items},
                )

    qrels = out.with_name(out.name + ".qrels")
    if format == "trec":
        for user, items in held():
            _check_labels(user, items)
    for path, table in ((out, ranked()), (qrels, held())):
        lines = _ranx(table) if format == "ranx" else _trec(table, judged=path == qrels)
        write_atomically(path, partial(_write_lines, lines))
    return qrels


def _write_lines(lines: Iterator[bytes], file: BinaryIO) -> None:
    file.writelines(lines)


def _ranx(table: _Table) -> Iterator[bytes]:
    """A JSON object of all users, as ``json.dumps`` would write it."""
    start = "{"
    for user, items in table:
        name, values = (json.dumps(each, ensure_ascii=False) for each in (user, items))
        yield f"{start}{name}: {values}".encode()
        start = ", "
    yield b"}\n"


def _trec(table: _Table, *, judged: bool) -> Iterator[bytes]:
    """Lines of relevance judgements, or of ranked items."""
    for user, items in table:
        _check_labels(user, items)
        for rank, (item, score) in enumerate(items.items(), 1):
            text = (
                f"{user} 0 {item} 1\n" if judged else f"{user} Q0 {item} {rank} {score!r} unskew\n"
            )
            yield text.encode()


def _check_labels(user: str, items: dict[str, Any]) -> None:
    """Raise an UnskewError if a user's or item's label contains white space, which separates the
    fields of a line in a TREC file."""
    for label in (user, *items):
        if len(label.split()) != 1:
            raise UnskewError(
                f'The label "{label}" contains white space, which TREC files cannot hold; use '
                "--format ranx."
            )
