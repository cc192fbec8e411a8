"""GPFedRec: the local trainer, and the server's graph of clients.

A client trains a private perceptron (FedNCF's) and its item rows by SGD, with mean binary
cross-entropy plus reg x the mean squared distance of the *whole* item table from an anchor, the
table that the server last made for it. With learning rate eta, a step moves row q, whose anchor is
a, to

    a + keep (q - a) - eta dL/dq,    keep = 1 - 2 eta reg / (n_items dim),

so a row without samples is, after t steps, at a + keep^t (q - a) and needs no training.

The server connects clients whose tables are far apart and averages each client's neighbours. With g
the common table, r_u client u's anchor, f_u = keep^t and t_u its trained rows, its table is g + y_u
with

    y_u = (1 - f_u) (r_u - g) + t_u.

The r_u - g of all users are stored at 16 bits an entry, and y_u is computed for a range of columns
at a time, so no float32 array of users x items x dim is ever made. Matrix products are divided in
the same way for any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.batches import ENDLESS, Clients, client_rows, next_batch, packed_samples
from unskew.kernels.parallel import in_parallel, one_blas_thread
from unskew.kernels.perceptron import client_gradients, layer_buffers
from unskew.ragged import owners
from unskew.types import Bool, Float32, Float64, Int32, Int64, Ragged, Rows

_GROUP = 64
"""Number of consecutive columns of a table stored in 16 bits an entry that share one scale."""
_MAX_ENTRY = np.float32(32767.0)
"""Largest int16: entries of a table are stored as integers up to this, times a scale."""
_TILE_COLUMNS = 8 * _GROUP
"""Number of columns of the clients' flat tables that are computed at a time."""
_ROWS_PER_PRODUCT = 256
"""Clients (matrix rows) per product; fixed, so that the number of threads changes no result."""


@jit
def train_anchored(
    clients: Clients,
    P: Float32,
    rows: Float32,
    anchor: Float32,
    weights: Float32,
    steps: Int64,
    lr_user: float,
    lr_rows: float,
    lr_weights: float,
    keep: float,
) -> None:
    """Train in place user vectors ``P``, the ``rows`` of the items in each client's samples, and
    network ``weights``. ``steps`` gets the number of SGD steps. Losses leave out the anchor's
    term."""
    D, size = P.shape[1], weights.shape[1]
    layers = layer_buffers(D, D, size, clients.schedule.batch)
    user_rate, row_rate = np.float32(lr_user), np.float32(lr_rows)
    weight_rate, kept = np.float32(lr_weights), np.float32(keep)
    for c in clients.block:
        p, w = P[c], weights[c]
        q, a = client_rows(clients, c, rows), client_rows(clients, c, anchor)
        g = np.zeros_like(q)
        order = packed_samples(clients, c)
        for t in range(1, ENDLESS):
            packed = next_batch(clients, c, order, t)
            if not len(packed):
                break
            clients.losses[c] += client_gradients(w, p, q, packed, layers, g)
            w -= weight_rate * layers.gw
            p -= user_rate * layers.gp
            q[:] = a + kept * (q - a) - row_rate * g
            g[:] = 0.0
            steps[c] = t


def whole_tables(base: Float32, tables: Float32, extra: Rows) -> Rows:
    """Each client's whole item table: ``base`` + its row of ``tables`` + its ``extra`` rows."""
    n, (n_items, width) = len(tables), base.shape
    values = (tables + base.reshape(-1)).reshape(n, n_items, width)
    values[owners(extra.indptr), extra.items] += extra.values
    items = np.tile(np.arange(n_items, dtype=np.int32), n)
    return Rows(np.arange(n + 1, dtype=np.int64) * n_items, items, values.reshape(-1, width))


class Packed(NamedTuple):
    """Flat item tables of many users in 16 bits an entry: an int16 times the scale of its group of
    columns, exact to 1.6e-5 of the group's largest entry. An int32 holds two int16."""

    entries: Int32
    scale: Float32


class RoundTables(NamedTuple):
    """Data from which the item tables of a round's ``users`` are computed: all users' anchors minus
    the common table (``packed``), and the uploads (``trained`` rows and ``factor``)."""

    packed: Packed
    users: Int64
    trained: Rows
    factor: Float32


def empty_packed(n_users: int, columns: int) -> Packed:
    """Packed tables of zeros, with ``columns`` rounded up to whole groups."""
    groups = -(-columns // _GROUP)
    entries = np.zeros((n_users, groups * _GROUP // 2), np.int32)
    return Packed(entries, np.zeros((n_users, groups), np.float32))


def pack(packed: Packed, users: Int64, low: int, values: Float32) -> None:
    """Quantise ``values`` into these users' columns from ``low``, a multiple of the group size."""
    groups = -(-values.shape[1] // _GROUP)
    padded = np.zeros((len(users), groups * _GROUP), np.float32)
    padded[:, : values.shape[1]] = values
    grouped = padded.reshape(-1, groups, _GROUP)
    step = np.abs(grouped).max(2) / _MAX_ENTRY  # NaN stays NaN
    with np.errstate(all="ignore"):
        back = np.where(step > 0, np.float32(1.0) / step, np.float32(0.0))
        grouped = np.rint(grouped * back[:, :, None]).astype(np.int16)
    packed.scale[users, low // _GROUP : low // _GROUP + groups] = step
    packed.entries.view(np.int16)[users, low : low + groups * _GROUP] = grouped.reshape(
        padded.shape
    )


def unpack(
    packed: Packed, users: Int64, low: int, high: int, factor: Float32 | None = None
) -> Float32:
    """Columns ``low`` to ``high`` of these users' tables as float32, times ``factor`` per user."""
    first = low // _GROUP
    scale = packed.scale[users, first : -(-high // _GROUP)]
    scale = scale if factor is None else factor[:, None] * scale
    each = np.repeat(scale, _GROUP, axis=1)[:, low - first * _GROUP : high - first * _GROUP]
    return each * packed.entries.view(np.int16)[users, low:high]


def unpack_rows(packed: Packed, users: Int64, rows: Ragged, width: int) -> Float32:
    """Some item rows, ``width`` entries each, of each user's table. For a new user, whose number is
    beyond the last table, the last table is read as a placeholder."""
    user = np.minimum(users, len(packed.entries) - 1)[owners(rows.indptr), None]
    columns = rows.items[:, None].astype(np.int64) * width + np.arange(width)
    found: Float32 = packed.scale[user, columns // _GROUP]
    found *= packed.entries.view(np.int16)[user, columns]
    return found


@jit
def _add_trained(block: Int64, trained: Rows, low: int, y: Float32) -> None:
    """Add clients' trained item rows to ``y``, columns of their flat tables from ``low`` on."""
    width, columns = trained.values.shape[1], y.shape[1]
    for c in block:
        start, end = trained.indptr[c], trained.indptr[c + 1]
        start += np.searchsorted(trained.items[start:end], low // width)
        for j in range(start, end):
            at = trained.items[j] * width - low
            if at >= columns:
                break
            for k in range(max(-at, 0), min(columns - at, width)):
                y[c, at + k] += trained.values[j, k]


def _tiles(tables: RoundTables, columns: int) -> Iterator[tuple[int, Float32]]:
    """For each range of columns, its start and all clients' tables minus the common one."""
    for low in range(0, columns, _TILE_COLUMNS):
        high = min(low + _TILE_COLUMNS, columns)
        y = unpack(tables.packed, tables.users, low, high, 1 - tables.factor)
        in_parallel(len(y), _add_trained, tables.trained, low, y)
        yield low, y


def _for_row_blocks(n: int, function: Callable[[slice], None]) -> None:
    """Call ``function`` in parallel with slices that cover ``range(n)``.

    The slices do not depend on the number of threads, and BLAS uses one thread per call, so that
    every matrix product gives the same bits for any number of threads.
    """

    def run(block: Int64) -> None:
        for number in block.tolist():
            function(slice(number * _ROWS_PER_PRODUCT, min((number + 1) * _ROWS_PER_PRODUCT, n)))

    with one_blas_thread():
        in_parallel(-(-n // _ROWS_PER_PRODUCT), run)


def distances(Q: Float32, tables: RoundTables) -> Float64:
    """Cosine distances between all pairs of the clients' item tables; ``Q`` is the common table."""
    g, n = Q.reshape(-1), len(tables.users)
    products, along = np.zeros((n, n)), np.zeros(n)
    for low, y in _tiles(tables, len(g)):
        here = g[low : low + y.shape[1]].astype(np.float64)

        def add(rows: slice, y: Float32 = y, here: Float64 = here) -> None:
            products[rows, : rows.stop] += y[rows] @ y[: rows.stop].T
            along[rows] += y[rows] @ here

        _for_row_blocks(n, add)
    for u in range(n):
        products[:u, u] = products[u, :u]
    products += along[:, None]
    products += along[None, :] + np.sum(np.square(g, dtype=np.float64))
    sizes = np.sqrt(np.diag(products))
    products /= sizes[:, None]
    products /= -sizes[None, :]
    products += 1.0
    np.fill_diagonal(products, 0.0)
    return products


def neighbour_graph(Q: Float32, tables: RoundTables, threshold: float) -> Bool:
    """Whether one client is a neighbour of another, as a matrix: their distance is above
    ``threshold`` x the mean distance. A client without neighbours is its own neighbour."""
    apart = distances(Q, tables)
    graph: Bool = apart > threshold * apart.mean()
    alone = np.flatnonzero(~graph.any(1))
    graph[alone, alone] = True
    return graph


def pass_messages(graph: Bool, Q: Float32, tables: RoundTables) -> tuple[Float32, Packed]:
    """New common table, and all users' tables minus it, in 16 bits an entry. Each client gets the
    mean of its neighbours' tables; the common table is the mean of these. Others keep theirs."""
    packed, users = tables.packed, tables.users
    weights = graph.astype(np.float32)
    weights /= graph.sum(1, keepdims=True).astype(np.float32)
    away = np.setdiff1d(np.arange(len(packed.entries)), users)
    step, after = np.zeros(Q.size, np.float32), empty_packed(len(packed.entries), Q.size)
    for low, y in _tiles(tables, Q.size):
        high, means = low + y.shape[1], np.empty_like(y)

        def average(rows: slice, y: Float32 = y, means: Float32 = means) -> None:
            np.matmul(weights[rows], y, out=means[rows])

        _for_row_blocks(len(users), average)
        step[low:high] = means.mean(0, dtype=np.float64)
        pack(after, users, low, means - step[low:high])
        pack(after, away, low, unpack(packed, away, low, high) - step[low:high])
    return Q + step.reshape(Q.shape), after
