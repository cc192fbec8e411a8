"""Adam on item rows against a frozen user vector: two moments per row, few columns per dimension.

A row's gradient is g_i p with p constant, so Adam's first moment is mu_i p and its second nu_i p^2:
two scalars per row instead of two vectors. In a step the row moves, in dimension k, by

    lr mu p_k / (|p_k| sqrt(nu) + eps) = sign(p_k) pull / (root + f_k),    f_k = eps / |p_k|,

with pull = lr mu and root = sqrt(nu) the same for all k. Only Adam's eps keeps the dimensions from
moving alike, and a few of them tell what the others do: with some of the f_k as nodes F_n,

    1 / (x + f) = sum_n c_n(f) / (x + F_n)    for x = F_1 ... F_N,
    c_n(f) = 2 F_n / (f + F_n) prod_{j != n} (F_n + F_j) (f - F_j) / ((f + F_j) (F_n - F_j)),

is off by less than prod_n |f - F_n| / (f + F_n) of its value at *every* x >= 0. Nodes are added,
the dimension that is furthest off next, until all are within :data:`TOLERANCE`, which is what
float32 leaves of a gradient anyway. Sixteen dimensions need about eight nodes, 64 about a dozen.
"""

from __future__ import annotations

import numpy as np

from unskew.jit import jit
from unskew.kernels._arithmetic import sqrt32
from unskew.kernels._steps import BETA_1, BETA_2, EPS, corrections, score_columns
from unskew.kernels._vectors import fused, move_rows
from unskew.types import Float32, Float64

TOLERANCE = 5e-6
"""By which share a dimension's step may differ from Adam's."""

_b1, _b2 = np.float32(BETA_1), np.float32(BETA_2)
_c1, _c2 = np.float32(1 - BETA_1), np.float32(1 - BETA_2)
_HIGHEST_FLOOR = np.float32(1e8)
"""Stands for eps / 0: large enough that the row does not move, small enough to be squared."""
_NEAR = 1024
"""Columns worked on together: what every node needs of them stays in the nearest cache."""

_TILE = 64
"""Rows that are moved together: they stay in the nearest cache from dimension to dimension."""


@jit
def choose_nodes(
    p: Float32, apart: Float64, gap: Float64, floor: Float32, weight: Float32, mixing: Float32
) -> int:
    """Choose dimensions as nodes and return how many. ``floor`` becomes their F_n; ``mixing[k, n]``
    what node n's movement means for dimension k, sign and all; ``weight`` what it means for p.q.

    ``apart`` (made (f_k - F_n) / (f_k + F_n)) and ``gap`` are scratch. All arrays have room for
    every dimension to be a node.
    """
    D, n = len(p), 0
    for k in range(D):
        gap[k] = 1.0
    worst = np.argmin(np.abs(p))
    while gap[worst] > TOLERANCE or (n % 2 == 1 and gap[worst] > 0.0):  # nodes go in pairs
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
    return n


@jit
def _floor(pk: np.float32) -> np.float32:
    return min(EPS / abs(pk), _HIGHEST_FLOOR)


@jit
def frozen_user_step(
    moved: Float32,
    z: Float32,
    g: Float32,
    mu: Float32,
    nu: Float32,
    pull: Float32,
    weight: Float32,
    floor: Float32,
    n: int,
    lr: float,
    t: int,
) -> None:
    """One step: the nodes' movement is added to ``moved``, and the logits z_i = p.q_i follow
    without a new product. ``g`` is consumed (left at zero)."""
    scale, unbias_64 = corrections(t)
    step, unbias = np.float32(lr * scale), np.float32(unbias_64)
    for i in range(n):
        mu[i] = fused(_b1, mu[i], _c1 * g[i])
        nu[i] = fused(_b2, nu[i], _c2 * g[i] * g[i])
        pull[i] = step * mu[i]
        g[i] = sqrt32(nu[i]) * unbias
    for first in range(0, n, _NEAR):
        move_rows(moved, z, pull, g, weight, floor, first, min(_NEAR, n - first))
    for i in range(n):
        g[i] = np.float32(0.0)


@jit
def add_movement(
    rows: Float32, first: int, n: int, moved: Float32, mixing: Float32, along: Float32
) -> None:
    """Move the client's ``n`` rows by what the nodes have moved; ``along`` is scratch."""
    for low in range(0, n, _TILE):
        some = min(_TILE, n - low)
        for k in range(rows.shape[1]):
            score_columns(along, moved, mixing[k], some, low)
            for i in range(some):
                rows[first + low + i, k] += along[i]
