"""Lay over, merge and score, each against its plain twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import twins
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.kernels import (
    add_scores,
    merge,
    overlay,
    replace_scores,
    score_table,
    set_threads,
)
from unskew.types import Float32, Ragged, Rows


class World(NamedTuple):
    n_items: int
    table: Float32
    vectors: Float32
    touched: Ragged
    held: Rows
    new: Rows
    weight: list[float]


def some_rows(rng: np.random.Generator, n_clients: int, n_items: int, width: int) -> Rows:
    lists = [
        sorted(rng.permutation(n_items)[: rng.integers(0, n_items + 1)].tolist())
        for _ in range(n_clients)
    ]
    indptr, items = twins.ragged(lists)
    return Rows(indptr, items, rng.standard_normal((len(items), width), np.float32))


def make_world(seed: int, n_clients: int, n_items: int, width: int) -> World:
    rng = np.random.default_rng(seed)
    touched = some_rows(rng, n_clients, n_items, 1)
    return World(
        n_items,
        rng.standard_normal((n_items, width), np.float32),
        rng.standard_normal((n_clients, width), np.float32),
        Ragged(touched.indptr, touched.items),
        some_rows(rng, n_clients, n_items, width),
        some_rows(rng, n_clients, n_items, width),
        rng.integers(0, 200, n_clients).astype(float).tolist(),
    )


worlds = st.builds(
    make_world, st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(1, 15), st.integers(1, 40)
)
many = settings(max_examples=80, deadline=None)


@many
@given(worlds)
def test_overlay(world: World) -> None:
    base = world.table[world.touched.items]
    expected = twins.overlay(base, world.touched, world.held)
    held = [part.copy() for part in world.held]
    assert overlay(base, world.touched, world.held) is base
    np.testing.assert_array_equal(base, expected)
    for before, after in zip(held, world.held, strict=True):
        np.testing.assert_array_equal(before, after)


@many
@given(worlds)
def test_merge(world: World) -> None:
    merged, expected = merge(world.held, world.new), twins.merge(world.held, world.new)
    for part in Rows._fields:
        ours, theirs = getattr(merged, part), getattr(expected, part)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_merge_with_nothing_is_the_same_again() -> None:
    world = make_world(1, 4, 9, 3)
    nothing = Rows.empty(4, 3)
    for merged in (merge(world.held, nothing), merge(nothing, world.held)):
        for ours, theirs in zip(merged, world.held, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@many
@given(worlds)
def test_score_table(world: World) -> None:
    scores = score_table(world.vectors, world.table)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, twins.score_table(world.vectors, world.table), atol=3e-5)


@pytest.mark.parametrize("change", [replace_scores, add_scores])
@many
@given(world=worlds)
def test_scores_of_held_rows(change: Callable[..., None], world: World) -> None:
    scores = score_table(world.vectors, world.table)
    expected = getattr(twins, change.__name__)(scores, world.vectors, world.held)
    untouched = np.isnan(twins.as_tables(world.held, world.n_items)[:, :, 0])
    before = scores.copy()
    change(scores, world.vectors, world.held)
    np.testing.assert_allclose(scores, expected, atol=3e-5)
    np.testing.assert_array_equal(scores[untouched], before[untouched])


def all_results(world: World) -> list[Float32]:
    scores = score_table(world.vectors, world.table)
    replace_scores(scores, world.vectors, world.held)
    added = scores.copy()
    add_scores(added, world.vectors, world.new)
    base = overlay(world.table[world.touched.items], world.touched, world.held)
    return [scores, added, base, merge(world.held, world.new).values]


@pytest.mark.usefixtures("threads_restored")
def test_threads_change_nothing() -> None:
    world = make_world(8, 40, 30, 16)
    set_threads(1)
    alone = all_results(world)
    for threads in (2, 5):
        set_threads(threads)
        for ours, theirs in zip(all_results(world), alone, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_score_does_not_depend_on_who_else_is_scored() -> None:
    world = make_world(9, 12, 30, 16)
    whole = score_table(world.vectors, world.table)
    for client in range(12):
        alone = score_table(world.vectors[client : client + 1], world.table)
        np.testing.assert_array_equal(alone[0], whole[client])
