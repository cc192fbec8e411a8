"""Train user vectors and item rows together by Adam, optionally keeping the rows near a target.

FedMF, and PFedCLR's variant with a full private matrix added to the items, train without a target.
pFedGraph adds the term -weight cos(A, Q) to the loss, Q being a client's item table and A its table
at the start of the round. This term has a gradient on every row, so clients with a target train all
rows; clients without one, in the same call, train only the rows of the items in their samples.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels.adam import adam_step, corrections
from unskew.kernels.arithmetic import batch_arrays, columns_of, score_columns, store_columns
from unskew.kernels.batches import (
    ENDLESS,
    Clients,
    batch_gradient,
    client_rows,
    next_batch,
    packed_samples,
)
from unskew.kernels.vectors import inner
from unskew.types import Bool, Float32, Float64, Ragged, Samples


@jit
def _pulled_gradient(
    u: Float32, g: Float32, gk: float, q: Float32, along: float, a: Float32, towards: float
) -> None:
    """Write to ``u`` the gradient of the loss, gk g, plus that of the cosine term, along q +
    towards (a - q), for one dimension q of the item rows and a of the target."""
    f, h = np.float32(along), np.float32(towards)
    for i in range(len(u)):
        u[i] = g[i] * gk + (f * q[i] + h * (a[i] - q[i]))


@jit
def _cosine_gradient(
    Q: Float32, A: Float32, size: float, weight: float, u: Float32
) -> tuple[float, float]:
    """(along, towards) such that along Q + towards (A - Q) is the gradient of -weight cos(A, Q) by
    the item table Q. A is the target table, ``size`` its squared norm, ``u`` scratch space.

    The gradient is -weight (A / (|A| |Q|) - cos(A, Q) Q / |Q|^2), whose two terms almost cancel
    while Q is near A; written in Q and A - Q they do not.
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
    """Train in place user vectors ``P`` and the ``rows`` of the items in each client's samples.

    For clients with a weight other than 0, -weight cos(target, rows) is added to the loss, but not
    to the reported losses. :func:`no_pull` gives arguments without this term.
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
        order = packed_samples(clients, c)
        for t in range(1, ENDLESS):
            packed = next_batch(clients, c, order, t)
            if not len(packed):
                break
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
    """Arguments ``target`` and ``weights`` of :func:`train_joint` without the cosine term."""
    return np.empty((0, p.shape[1]), np.float32), np.zeros(len(p))


def touch_all_rows(samples: Samples, chosen: Bool, n_items: int) -> Samples:
    """The same samples, but with all items listed as touched by the ``chosen`` clients."""
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
