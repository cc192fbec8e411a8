"""Clients' rows by item: who has a row of it, and these rows as columns of one matrix per item."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels._parallel import in_parallel
from unskew.types import Float32, Int32, Int64, Rows


class ByItem(NamedTuple):
    """Rows by their item: those of item i are from ``indptr[i]`` on, in the order of the clients;
    ``who`` changed them, ``columns`` has them as one matrix after another, a column per client, and
    ``place`` says which column of its item's each row is."""

    indptr: Int64
    who: Int32
    columns: Float32
    place: Int32


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
def _turn(block: Int64, rows: Rows, by_item: ByItem) -> None:
    width = rows.values.shape[1]
    for c in block:
        for j in range(rows.indptr[c], rows.indptr[c + 1]):
            i, row = rows.items[j], rows.values[j]
            first, end = by_item.indptr[i], by_item.indptr[i + 1]
            columns = by_item.columns[first * width : end * width].reshape(width, end - first)
            for k in range(width):
                columns[k, by_item.place[j]] = row[k]


def by_item_of(rows: Rows, n_items: int) -> ByItem:
    indptr = np.concatenate(([0], np.cumsum(np.bincount(rows.items, minlength=n_items))))
    who, place = np.empty((2, len(rows.items)), np.int32)
    _arrange(rows, indptr, who, place)
    turned = ByItem(indptr, who, np.empty(rows.values.size, np.float32), place)
    in_parallel(len(rows.indptr) - 1, _turn, rows, turned)
    return turned
