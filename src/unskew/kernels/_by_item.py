"""Clients' rows by item: who has a row of it, and these rows side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels._line_sums import BLOCK
from unskew.kernels.parallel import in_parallel
from unskew.types import Float32, Int32, Int64, Rows


class ByItem(NamedTuple):
    """Rows by their item: those of item i are from ``indptr[i]`` on, in the order of the clients
    ``who`` have them. ``values`` has them in blocks of ``BLOCK``, item i's from ``blocks[i]`` on,
    and ``place`` says where among its item's each row is."""

    indptr: Int64
    who: Int32
    place: Int32
    blocks: Int64
    values: Float32


@jit
def _arrange(rows: Rows, indptr: Int64, who: Int32, place: Int32) -> None:
    found = np.zeros(len(indptr) - 1, np.int32)
    for c in range(len(rows.indptr) - 1):
        for j in range(rows.indptr[c], rows.indptr[c + 1]):
            i = rows.items[j]
            place[j] = found[i]
            who[indptr[i] + found[i]] = c
            found[i] += 1


@jit
def _spread(block: Int64, rows: Rows, by_item: ByItem) -> None:
    for c in block:
        for j in range(rows.indptr[c], rows.indptr[c + 1]):
            place, row = by_item.place[j], rows.values[j]
            to = by_item.values[by_item.blocks[rows.items[j]] + place // BLOCK]
            for k in range(len(row)):
                to[k, place % BLOCK] = row[k]


def by_item_of(rows: Rows, n_items: int) -> ByItem:
    counts = np.bincount(rows.items, minlength=n_items)
    indptr, blocks = (np.concatenate(([0], np.cumsum(x))) for x in (counts, -(-counts // BLOCK)))
    who, place = np.empty((2, len(rows.items)), np.int32)
    _arrange(rows, indptr, who, place)
    values = np.zeros((int(blocks[-1]), rows.values.shape[1], BLOCK), np.float32)
    by_item = ByItem(indptr, who, place, blocks, values)
    in_parallel(len(rows.indptr) - 1, _spread, rows, by_item)
    return by_item
