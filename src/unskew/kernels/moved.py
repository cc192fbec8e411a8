"""How far the clients of a round are from the common table g; they are never all unpacked.

Client u is at g + y_u with y_u = (1 - f_u) (r_u - g) + what u trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.packing import GROUP, Packed, unpack_columns
from unskew.kernels.parallel import in_parallel
from unskew.types import Bool, Float32, Int64, Rows

_HELD = 2**23
"""Bytes of a tile, about."""
_SMALL = 1e-8
"""Rows whose square is less than this share of all a client trained count as what it was given."""


class Moved(NamedTuple):
    """r_u - g of all users, which of them take part, what these trained, and their f_u."""

    packed: Packed
    users: Int64
    trained: Rows
    factor: Float32

    def tiles(self, clients: Int64, columns: int) -> Iterator[Float32]:
        """The y_u of these clients, a tile of columns at a time; the memory of one tile serves for
        all. An odd number of groups, since lines whose lengths are powers of two would share a few
        places of the cache."""
        n, position = len(clients), self.trained.indptr[clients]
        width = min((_HELD // (4 * n) // GROUP | 1) * GROUP, columns)
        held = np.empty(n * width, np.float32)
        for low in range(0, columns, width):
            high = min(low + width, columns)
            y = held[: n * (high - low)].reshape(n, high - low)
            in_parallel(n, _fill, clients, self, position, low, y)
            yield y


@jit
def columns_of_client(client: int, moved: Moved, position: int, low: int, out: Float32) -> int:
    """y_u from column ``low`` on. ``position`` is that of the first row u trained that does not end
    before it; the answer is the one to go on with."""
    trained, width, high = moved.trained, moved.trained.values.shape[1], low + len(out)
    rest = np.float32(1.0) - moved.factor[client]
    unpack_columns(moved.users[client], low, moved.packed, rest, out)
    while position < trained.indptr[client + 1]:
        at = trained.items[position] * width
        if at >= high:
            break
        first, end = max(low - at, 0), min(high - at, width)
        target, row = out[at + first - low : at + end - low], trained.values[position, first:end]
        for k in range(len(target)):
            target[k] += row[k]
        if at + width > high:
            break
        position += 1
    return position


@jit
def _fill(
    block: Int64, clients: Int64, moved: Moved, position: Int64, low: int, y: Float32
) -> None:
    for i in block:
        position[i] = columns_of_client(clients[i], moved, position[i], low, y[i])


class Parts(NamedTuple):
    """y_u in two: the rows that u has changed much, few of them, and everything else, dense but
    much the same for all. ``changed`` says which of the trained rows ``rows`` has."""

    moved: Moved
    changed: Bool
    rows: Rows


@jit
def _weigh(block: Int64, trained: Rows, squares: Float32, changed: Bool, counts: Int64) -> None:
    indptr, width = trained.indptr, trained.values.shape[1]
    for c in block:
        total = np.float32(0.0)
        for j in range(indptr[c], indptr[c + 1]):
            square, row = np.float32(0.0), trained.values[j]
            for k in range(width):
                square += row[k] * row[k]
            squares[j] = square
            total += square
        for j in range(indptr[c], indptr[c + 1]):
            changed[j] = squares[j] > np.float32(_SMALL) * total
            counts[c + 1] += changed[j]


@jit
def _keep(block: Int64, trained: Rows, changed: Bool, rows: Rows) -> None:
    for c in block:
        at = rows.indptr[c]
        for j in range(trained.indptr[c], trained.indptr[c + 1]):
            if changed[j]:
                rows.items[at] = trained.items[j]
                rows.values[at] = trained.values[j]
                at += 1


def in_parts(moved: Moved) -> Parts:
    trained, n = moved.trained, len(moved.users)
    counts, changed = np.zeros(n + 1, np.int64), np.empty(len(trained.items), np.bool_)
    squares = np.empty(len(trained.items), np.float32)
    in_parallel(n, _weigh, trained, squares, changed, counts)
    indptr = np.cumsum(counts)
    shape = (int(indptr[-1]), trained.values.shape[1])
    rows = Rows(indptr, np.empty(shape[0], np.int32), np.empty(shape, np.float32))
    in_parallel(n, _keep, trained, changed, rows)
    return Parts(moved, changed, rows)


@jit
def everything_else(client: int, parts: Parts, out: Float32) -> None:
    """y_u without the rows that u has changed much."""
    moved, trained = parts.moved, parts.moved.trained
    width, rest = trained.values.shape[1], np.float32(1.0) - moved.factor[client]
    unpack_columns(moved.users[client], 0, moved.packed, rest, out)
    for j in range(trained.indptr[client], trained.indptr[client + 1]):
        if not parts.changed[j]:
            at, row = trained.items[j] * width, trained.values[j]
            for k in range(width):
                out[at + k] += row[k]
