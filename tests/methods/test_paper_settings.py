"""Where the paper's methods begin: their settings and their initial values. The oracle in
``oracle.py`` takes these from the package, so they are looked at here."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import scipy.stats

from unskew.methods import METHODS, create

PAPER = {
    "rounds": 100,
    "participation": 0.6,
    "dim": 16,
    "local_epochs": 10,
    "batch": 256,
    "learning_rate": 0.01,
    "negatives": 4,
    "tolerance": 1e-4,
    "aggregate_from": 1,
}
OWN: dict[str, dict[str, Any]] = {
    "fedmf": {},
    "fedmf-af": {"buffer_rate": 0.1},
    "pfedclr": {"buffer": "low-rank", "rank": 2, "buffer_rate": 0.01},
}


@pytest.mark.parametrize("name", OWN)
def test_the_defaults_are_the_papers(name: str) -> None:
    assert dataclasses.asdict(METHODS[name].Config()) == {**PAPER, **OWN[name]}


@pytest.mark.parametrize("name", OWN)
def test_all_clients_start_as_copies_of_one_model(name: str) -> None:
    server, private = create(name).init(6, 400, 0)
    assert server.Q.shape == (400, 16)
    assert private.p.shape == (6, 16)
    assert (private.p == private.p[0]).all()
    assert len(private.Q.items) == 0, "nobody has items of its own"


def test_embeddings_start_from_a_standard_normal() -> None:
    server, _ = create("fedmf").init(1, 4000, 0)
    assert scipy.stats.kstest(server.Q.ravel(), "norm").pvalue > 1e-3
    users = [create("fedmf").init(1, 1, seed)[1].p for seed in range(500)]
    assert scipy.stats.kstest(np.concatenate(users).ravel(), "norm").pvalue > 1e-3


def test_the_buffer_starts_without_effect() -> None:
    """A at zero, B from a standard normal, the same on every device; a full W at zero."""
    method = create("pfedclr", rank=3)
    server, private = method.init(5, 50, 0)
    assert len(private.A.items) == 0
    assert private.A.values.shape == (0, 3)
    assert private.B.shape == (5, 3, 16)
    assert (private.B[0] == private.B).all()
    drawn = [create("pfedclr", rank=3).init(1, 1, seed)[1].B for seed in range(200)]
    assert scipy.stats.kstest(np.concatenate(drawn).ravel(), "norm").pvalue > 1e-3
    plain = create("fedmf").init(5, 50, 0)
    full = create("pfedclr", buffer="full")
    without = create("fedmf").score(*plain)
    np.testing.assert_array_equal(method.score(server, private), without)
    np.testing.assert_array_equal(full.score(*full.init(5, 50, 0)), without)


def test_vectors_items_and_buffer_are_drawn_apart() -> None:
    """Each from a stream of its own: no two of them share their numbers."""
    server, private = create("pfedclr").init(1, 1, 0)
    first = [server.Q[0, 0], private.p[0, 0], private.B[0, 0, 0]]
    assert len(set(first)) == 3
