"""Train the user vector and the touched rows together by Adam, with an optional pull to a target.

FedMF and PFedCLR's full buffer train without the pull. pFedGraph adds -weight cos(A, Q) over the
*whole* item tables, which has a gradient on every row: clients with a pull train all their rows,
the others, in the same call, the rows they touch.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.adam import adam_step, corrections
from unskew.kernels.arithmetic import batch_arrays, columns_of, score_columns, store_columns
from unskew.kernels.batches import Clients, batch_gradient, client_rows, shuffled_batches
from unskew.kernels.vectors import inner
from unskew.types import Bool, Float32, Float64, Ragged, Samples


@jit
def _pulled_gradient(
    u: Float32, g: Float32, gk: float, q: Float32, along: float, a: Float32, towards: float
) -> None:
    """u = gk g + along q + towards (a - q)."""
    f, h = np.float32(along), np.float32(towards)
    for i in range(len(u)):
        u[i] = g[i] * gk + (f * q[i] + h * (a[i] - q[i]))


@jit
def _cosine_gradient(
    Q: Float32, A: Float32, size: float, weight: float, u: Float32
) -> tuple[float, float]:
    """Coefficients of d(-weight cos(A, Q)) / dQ = along Q + towards (A - Q); ``size`` is |A|^2.

    -d cos / dQ = -(A / (|A| |Q|) - cos Q / |Q|^2). In terms of Q and A - Q, because the two terms
    almost cancel as long as Q is near A. ``u`` is scratch.
    """
    own, apart = 0.0, 0.0
    for k in range(len(Q)):
        a, q = A[k], Q[k]
        for i in range(len(u)):
            u[i] = a[i] - q[i]
        own += inner(q, q, len(u))
        apart += inner(u, q, len(u))
    towards = -weight / np.sqrt(size * own)
    return -towards * apart / own, towards


@jit
def train_joint(
    clients: Clients,
    P: Float32,
    rows: Float32,
    lr_user: float,
    lr_rows: float,
    target: Float32,
    weights: Float64,
) -> None:
    """Train the vectors ``P`` and the touched ``rows`` in place.

    -weight cos(target, rows) is added to the loss of each client whose weight is not 0. The mean
    losses do not include it. See :func:`no_pull`.
    """
    D = P.shape[1]
    batch = batch_arrays(clients.schedule.batch)
    old, gp = np.empty(D, np.float32), np.empty(D, np.float32)
    for c in clients.block:
        p, weight, mine = P[c], weights[c], client_rows(clients, c, rows)
        n, Q = len(mine), columns_of(mine)
        m, v = np.zeros_like(Q), np.zeros_like(Q)
        mp, vp = np.zeros(D, np.float32), np.zeros(D, np.float32)
        z, g, u = np.empty(n, np.float32), np.zeros(n, np.float32), np.empty(n, np.float32)
        A, size = Q, 0.0
        if weight != 0.0:
            A = columns_of(client_rows(clients, c, target))
            for k in range(D):
                size += inner(A[k], A[k], n)
        for t, packed in shuffled_batches(clients, c):
            score_columns(z, Q, p, n)
            clients.losses[c] += batch_gradient(packed, z, g, batch)
            along, towards = 0.0, 0.0
            if weight != 0.0:
                along, towards = _cosine_gradient(Q, A, size, weight, u)
            # dL/dp = sum_i g_i q_i and dL/dq_i = g_i p, both at the values before the step.
            for k in range(D):
                gp[k] = inner(g, Q[k], n)
                old[k] = p[k]
            scale, unbias = corrections(t)
            adam_step(p, mp, vp, gp, 1.0, D, lr_user * scale, unbias)
            for k in range(D):
                slope, factor = g, old[k]
                if weight != 0.0:
                    _pulled_gradient(u, g, old[k], Q[k], along, A[k], towards)
                    slope, factor = u, np.float32(1.0)
                adam_step(Q[k], m[k], v[k], slope, factor, n, lr_rows * scale, unbias)
            g[:] = 0.0
        store_columns(Q, mine)


def no_pull(p: Float32) -> tuple[Float32, Float64]:
    """The target and weights for :func:`train_joint` that add nothing to the loss."""
    return np.empty((0, p.shape[1]), np.float32), np.zeros(len(p))


def touch_all_rows(samples: Samples, chosen: Bool, n_items: int) -> Samples:
    """The same samples with every item counted as touched by the ``chosen`` clients."""
    every = np.arange(n_items, dtype=np.int32)
    row = samples.row.copy()
    touched = [every[:0]]
    for c, all_rows in enumerate(chosen.tolist()):
        own = samples.touched.of(c)
        touched.append(every if all_rows else own)
        if all_rows:
            run = slice(samples.indptr[c], samples.indptr[c + 1])
            row[run] = own[row[run]]
    indptr = np.cumsum([len(part) for part in touched]).astype(np.int64)
    return samples._replace(row=row, touched=Ragged(indptr, np.concatenate(touched)))
