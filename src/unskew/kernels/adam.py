"""Adam as torch.optim.Adam computes it, and a cheaper form for item rows with a frozen user vector.

With a frozen user vector p, the gradient by item row i is g_i p, g_i being the gradient by the
item's logit. So Adam's first moment is mu_i p and its second nu_i p^2: two scalars per row instead
of two vectors. In dimension k, a step with learning rate lr moves the row by

    lr mu p_k / (|p_k| sqrt(nu) + eps) = sign(p_k) pull / (root + f_k),    f_k = eps / |p_k|,

with pull = lr mu and root = sqrt(nu) the same for all k. Only eps makes the dimensions differ, so
all steps can be interpolated from those of a few dimensions, the nodes. With F_n = f_k of node n,

    1 / (x + f) = sum_n c_n(f) / (x + F_n)    for x = F_1 ... F_N,
    c_n(f) = 2 F_n / (f + F_n) prod_{j != n} (F_n + F_j) (f - F_j) / ((f + F_j) (F_n - F_j)),

has a relative error below prod_n |f - F_n| / (f + F_n) at *every* x >= 0. The dimension with the
largest error becomes the next node until all errors are below :data:`TOLERANCE`, about the rounding
error of a float32 gradient. Sixteen dimensions need about eight nodes, 64 about a dozen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from unskew.jit import jit
from unskew.kernels.arithmetic import fma, score_columns, sqrt32
from unskew.kernels.vectors import PADDING, inner, move_rows
from unskew.types import Float32

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
"""torch.optim.Adam's defaults."""

TOLERANCE = 5e-6
"""Maximum relative error of an approximate Adam step (user vector frozen) in any dimension."""

_b1, _b2, _eps = np.float32(BETA_1), np.float32(BETA_2), np.float32(EPSILON)
_c1, _c2 = np.float32(1 - BETA_1), np.float32(1 - BETA_2)
_MAX_FLOOR = np.float32(1e8)
"""Value of eps / |p_k| for a user vector's entry p_k = 0: it makes Adam's step nearly zero."""
_ROWS_PER_PASS = 1024
"""Item rows that a step of Adam processes at a time: few enough to stay in the L1 cache."""
_ROWS_PER_TILE = 64
"""Item rows that :func:`add_moves` processes at a time: few enough to stay in the L1 cache."""


@jit
def corrections(t: int) -> tuple[float, float]:
    """Bias corrections of Adam's moments at step t: 1 / (1 - beta_1^t), 1 / sqrt(1 - beta_2^t)."""
    return 1.0 / (1.0 - BETA_1**t), 1.0 / np.sqrt(1.0 - BETA_2**t)


@jit
def adam_step(
    x: Float32, m: Float32, v: Float32, g: Float32, gk: float, n: int, rate: float, unbias: float
) -> None:
    """One step of Adam on the first ``n`` entries of ``x``, with gradient ``g`` times ``gk``.

    ``m`` and ``v`` are Adam's moments. ``rate`` is the learning rate times the first of the
    :func:`corrections`; ``unbias`` is the second.
    """
    factor, step, unbiased = np.float32(gk), np.float32(rate), np.float32(unbias)
    for i in range(n):
        gi = g[i] * factor
        mi = fma(_b1, m[i], _c1 * gi)
        vi = fma(_b2, v[i], _c2 * gi * gi)
        m[i] = mi
        v[i] = vi
        x[i] -= step * mi / fma(sqrt32(vi), unbiased, _eps)


@jit
def choose_nodes(p: Float32) -> tuple[Float32, Float32, Float32]:
    """Choose the dimensions of a frozen user vector ``p`` that serve as nodes: all dimensions' Adam
    steps are interpolated from the nodes' steps (see the module).

    Returns eps / |p_k| of each node, the change of an item's logit per step of each node, and the
    matrix [dimension, node] of interpolation weights (columns beyond the nodes are unused).
    """
    D, n = len(p), 0
    apart = np.empty((D, D))  # (f_k - F_n) / (f_k + F_n)
    gap = np.ones(D)
    floor, weight = np.empty(D, np.float32), np.empty(D, np.float32)
    mixing = np.empty((D, D), np.float32)
    worst = np.argmin(np.abs(p))
    while gap[worst] > TOLERANCE or (n % 2 == 1 and gap[worst] > 0.0):  # an even number of nodes
        F = float(_floor(p[worst]))
        for k in range(D):
            f = float(_floor(p[k]))
            apart[k, n] = (f - F) / (f + F)
            gap[k] *= abs(apart[k, n])
        floor[n] = F
        n += 1
        worst = np.argmax(gap)
    for i in range(n):
        F, scale, total = float(floor[i]), 2.0, 0.0
        for j in range(n):
            if j != i:
                scale *= (F + floor[j]) / (F - floor[j])
        for k in range(D):
            c = scale * F / (_floor(p[k]) + F)
            for j in range(n):
                if j != i:
                    c *= apart[k, j]
            total += abs(p[k]) * c
            mixing[k, i] = np.sign(p[k]) * c
        weight[i] = total
    return floor[:n], weight[:n], mixing


@jit
def _floor(pk: np.float32) -> np.float32:
    return min(_eps / abs(pk), _MAX_FLOOR)


class FrozenUserRows(NamedTuple):
    """Adam's state for a client's item rows while its user vector is frozen. Arrays have one entry
    or column per item row, zero-padded to a multiple of :data:`PADDING`."""

    z: Float32
    """Logits p.q."""
    g: Float32
    """Gradients by the logits, set to zero by each step."""
    mu: Float32
    nu: Float32
    """Adam's moments."""
    pull: Float32
    """Scratch: learning rate × first moment of each row in this step."""
    moved: Float32
    """Sum of all steps so far: a row per node (see the module), a column per item row."""


@jit
def frozen_user_rows(rows: Float32, p: Float32, n_nodes: int) -> FrozenUserRows:
    """State before the first step on a client's item ``rows``, while its user vector ``p`` is
    frozen: zero Adam moments, and the logits of the rows."""
    n = len(rows)
    width = n + (-n) % PADDING
    z, g = np.zeros(width, np.float32), np.zeros(width, np.float32)
    mu, nu = np.zeros(width, np.float32), np.zeros(width, np.float32)
    for i in range(n):
        z[i] = inner(rows[i], p, len(p))
    moved = np.zeros((n_nodes, width), np.float32)
    return FrozenUserRows(z, g, mu, nu, np.empty(width, np.float32), moved)


@jit
def frozen_user_step(
    state: FrozenUserRows, weight: Float32, floor: Float32, lr: float, t: int
) -> None:
    """One step of Adam on all item rows of a client whose user vector is frozen. Updates the
    moments, the accumulated steps (``moved``) and, without new inner products, the logits."""
    z, g, mu, nu, pull, moved = state
    scale, unbias_64 = corrections(t)
    step, unbias = np.float32(lr * scale), np.float32(unbias_64)
    n = len(z)
    for i in range(n):
        mu[i] = fma(_b1, mu[i], _c1 * g[i])
        nu[i] = fma(_b2, nu[i], _c2 * g[i] * g[i])
        pull[i] = step * mu[i]
        g[i] = sqrt32(nu[i]) * unbias
    for first in range(0, n, _ROWS_PER_PASS):
        move_rows(moved, z, pull, g, weight, floor, first, min(_ROWS_PER_PASS, n - first))
    g[:] = np.float32(0.0)


@jit
def add_moves(rows: Float32, moved: Float32, mixing: Float32) -> None:
    """Add the accumulated Adam steps to item ``rows``; ``mixing`` is from :func:`choose_nodes`."""
    along = np.empty(_ROWS_PER_TILE, np.float32)
    for low in range(0, len(rows), _ROWS_PER_TILE):
        some = min(_ROWS_PER_TILE, len(rows) - low)
        for k in range(rows.shape[1]):
            score_columns(along, moved, mixing[k], some, low)
            for i in range(some):
                rows[low + i, k] += along[i]
