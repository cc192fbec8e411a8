"""Nodes stand for all dimensions: as accurate as said at every root, whatever the user vector."""

from __future__ import annotations

import numpy as np
import pytest

from unskew.kernels.adam import (
    TOLERANCE,
    add_moves,
    choose_nodes,
    frozen_user_rows,
    frozen_user_step,
)
from unskew.types import Float32, Float64

EPS = 1e-8
ROOTS = np.concatenate(([0.0], np.geomspace(1e-14, 10, 300)))


def nodes_of(p: Float32) -> tuple[Float32, Float32, Float32]:
    """Floors, weights and mixing of the chosen nodes."""
    floor, weight, mixing = choose_nodes(p)
    assert 1 <= len(floor) <= len(p)
    return floor, weight, mixing[:, : len(floor)]


def vector(kind: str, dim: int) -> Float32:
    p = np.random.default_rng(dim).standard_normal(dim).astype(np.float32)
    if kind == "wide":
        p *= np.geomspace(1e-6, 1e3, dim).astype(np.float32)
    elif kind == "equal":
        p[:] = 0.7
    elif kind == "nearly equal":
        p = (0.7 + 1e-5 * p).astype(np.float32)
    elif kind == "with zeros":
        p[::3] = 0.0
    return p


KINDS = ("plain", "wide", "equal", "nearly equal", "with zeros")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 2, 3, 16, 33, 64])
def test_every_dimension_moves_as_adam_says(kind: str, dim: int) -> None:
    p = vector(kind, dim)
    floor, weight, mixing = nodes_of(p)
    size = np.abs(p.astype(np.float64))
    moves = mixing.astype(np.float64) @ (1 / (ROOTS + floor[:, None].astype(np.float64)))
    there = size > 0
    exact = np.sign(p)[there, None] / (ROOTS + EPS / size[there, None])
    # float32 coefficients add a few roundings to what the nodes leave.
    assert (np.abs(moves[there] - exact) <= (TOLERANCE + 2e-6) * np.abs(exact)).all()
    assert not moves[~there].any()
    logit = weight.astype(np.float64) @ (1 / (ROOTS + floor[:, None].astype(np.float64)))
    along = size[there] @ np.abs(exact)
    assert (np.abs(logit - along) <= (TOLERANCE + 2e-6) * along).all()


def test_many_dimensions_need_few_nodes() -> None:
    assert len(nodes_of(vector("plain", 64))[0]) <= 20
    assert len(nodes_of(vector("equal", 64))[0]) == 1


def adam(rows: Float64, p: Float64, gradients: list[Float64], rate: float) -> Float64:
    m, v = np.zeros_like(rows), np.zeros_like(rows)
    rows = rows.copy()
    for t, g in enumerate(gradients, 1):
        m = 0.9 * m + 0.1 * np.outer(g, p)
        v = 0.999 * v + 0.001 * np.outer(g, p) ** 2
        rows -= rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + EPS)
    return rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-2, 1e-6, 1e-8, 1e-10])
def test_steps_with_gradients_down_to_epsilon(kind: str, scale: float) -> None:
    """Rows that fit already have gradients no larger than Adam's eps, where dimensions differ."""
    n, dim, rate = 75, 16, 0.01
    rng = np.random.default_rng(3)
    p = vector(kind, dim)
    rows = rng.standard_normal((n + 5, dim)).astype(np.float32)
    start = rows.copy()
    gradients = [
        (scale * rng.standard_normal(n) * (rng.random(n) < 0.3)).astype(np.float32)
        for _ in range(30)
    ]
    floor, weight, mixing = choose_nodes(p)
    state = frozen_user_rows(rows[5:], p, len(floor))
    for t, gradient in enumerate(gradients, 1):
        state.g[:n] = gradient
        frozen_user_step(state, weight, floor, rate, t)
        assert not state.g.any()
    add_moves(rows[5:], state.moved, mixing)
    expected = adam(start[5:].astype(np.float64), p.astype(np.float64), gradients, rate)
    np.testing.assert_array_equal(rows[:5], start[:5])
    np.testing.assert_allclose(rows[5:], expected, rtol=0, atol=2e-6)
    np.testing.assert_allclose(state.z[:n], expected @ p, rtol=1e-4, atol=1e-5 * np.abs(p).sum())
