"""GPFedRec's server: who is far from whom, and the mean over those who are.

Clients' tables are never all unpacked: everything happens tile by tile, on the differences
y_u = (1 - f_u) (r_u - g) + what u trained, from the common table g, which keeps the small distances
between large tables exact. A tile's products are matrix products of NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from unskew.kernels._arithmetic import jit
from unskew.kernels.packing import TILE, Packed, empty_packed, pack, unpack
from unskew.types import Bool, Float32, Float64, Int32, Int64, Rows


@jit
def _add_rows(
    indptr: Int64,
    items: Int32,
    values: Float32,
    position: Int64,
    low: int,
    high: int,
    out: Float32,
) -> None:
    """Add the entries with columns in [low, high); ``position`` moves to each client's next row."""
    width = values.shape[1]
    for c in range(len(position)):
        j = position[c]
        while j < indptr[c + 1] and items[j] * width < high:
            at = items[j] * width
            for k in range(max(low - at, 0), min(high - at, width)):
                out[c, at + k - low] += values[j, k]
            if at + width > high:
                break
            j += 1
        position[c] = j


def _tiles(
    columns: int, packed: Packed, users: Int64, trained: Rows, factor: Float32
) -> Iterator[tuple[int, slice, Float32, Float32]]:
    """Each tile's number and columns, the clients' r_u - g there, and their y_u."""
    position = trained.indptr[:-1].copy()
    for tile, low in enumerate(range(0, columns, TILE)):
        high = min(low + TILE, columns)
        own = unpack(packed, users, low, high)
        y = own * (1 - factor)[:, None]
        _add_rows(*trained, position, low, high, y)
        yield tile, slice(low, high), own, y


def distances(Q: Float32, packed: Packed, users: Int64, trained: Rows, factor: Float32) -> Float64:
    """All pairwise cosine distances of the clients' tables."""
    g = Q.reshape(-1)
    products = np.zeros((len(users), len(users)))
    along = np.zeros(len(users))
    for _, columns, _, y in _tiles(len(g), packed, users, trained, factor):
        products += y @ y.T
        along += y @ g[columns]
    wide = g.astype(np.float64)
    products += along[:, None]
    products += along[None, :] + wide @ wide
    sizes = np.sqrt(np.diag(products))
    products /= sizes[:, None]
    products /= -sizes[None, :]
    products += 1.0
    np.fill_diagonal(products, 0.0)
    return products


def neighbours(
    Q: Float32, packed: Packed, users: Int64, trained: Rows, factor: Float32, threshold: float
) -> Bool:
    """Whom each client listens to: those further away than ``threshold`` x the mean distance, or
    itself if there are none."""
    apart = distances(Q, packed, users, trained, factor)
    graph: Bool = apart > threshold * apart.mean()
    alone = np.flatnonzero(~graph.any(1))
    graph[alone, alone] = True
    return graph


def pass_messages(
    graph: Bool, Q: Float32, packed: Packed, users: Int64, trained: Rows, factor: Float32
) -> tuple[Float32, Packed]:
    """The next g and r_u: means over neighbours' tables, and the mean of those means.

    Clients outside the round keep their r_u.
    """
    g = Q.reshape(-1)
    everyone = np.arange(len(packed.entries))
    weights = graph.astype(np.float32) / graph.sum(1, keepdims=True).astype(np.float32)
    common, next_own = np.empty_like(g), empty_packed(len(everyone), len(g))
    for tile, columns, _, y in _tiles(len(g), packed, users, trained, factor):
        mean = weights @ y
        centre = mean.mean(0, dtype=np.float64).astype(np.float32)
        own = unpack(packed, everyone, columns.start, columns.stop)
        own[users] = mean
        own -= centre
        common[columns] = g[columns] + centre
        pack(next_own, tile, own)
    return common.reshape(Q.shape), next_own
