"""The generated data set: the same bits everywhere, and something to learn in it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from unskew import data, rng
from unskew.data import _films

SHA256 = "60f74602ef99fbc27ecc5d230344f9c2228aac938ddd80229fd9177243d937a2"


@pytest.fixture(scope="module")
def demo() -> Any:
    return data.load("demo")


def digest(interactions: Any) -> str:
    total = hashlib.sha256()
    total.update(interactions.users.astype("<i4").tobytes())
    total.update(interactions.items.astype("<i4").tobytes())
    total.update(interactions.timestamps.astype("<i8").tobytes())
    for labels in (interactions.user_ids, interactions.item_ids, interactions.titles):
        total.update("\n".join(labels).encode())
    return total.hexdigest()


def test_every_bit_is_pinned(demo: Any) -> None:
    assert digest(demo) == SHA256


def test_the_bits_are_those_of_the_shared_streams() -> None:
    state = rng.stream(0, 3, 17, int(rng.Purpose.DEMO_DATA))
    expected = [int(rng.value(state, counter)) for counter in range(5)]
    assert _films.bits(0, 3, 17, 5).tolist() == expected


def test_shape_of_the_data(demo: Any) -> None:
    counts: Any = data.info(demo)
    assert counts.n_users == 1_000
    assert 1_450 <= counts.n_items <= 1_500
    assert 60_000 <= counts.n_rows <= 80_000
    assert counts.n_pairs == counts.n_rows == counts.n_rows_read
    assert counts.rows_per_user_min >= 20
    assert (counts.clock, counts.first_time[:4], counts.last_time[:4]) == ("time", "2022", "2023")
    assert (np.diff(demo.timestamps) >= 0).all()
    assert len(set(demo.titles)) == len(demo.item_ids)
    popularity = np.sort(np.bincount(demo.items))[::-1]
    assert popularity[:150].sum() > 0.25 * popularity.sum()


def test_numbers_follow_first_appearance(demo: Any) -> None:
    for numbers in (demo.users, demo.items):
        _, first = np.unique(numbers, return_index=True)
        assert (np.diff(first) > 0).all()


def test_neighbours_predict_the_last_film_better_than_popularity(demo: Any) -> None:
    """A plain ridge regression between items, leave-last-out, all unseen films ranked."""
    order = np.lexsort((demo.timestamps, demo.users))
    users, items = demo.users[order], demo.items[order]
    last = np.append(users[1:] != users[:-1], True)
    seen = np.zeros((len(demo.user_ids), len(demo.item_ids)))
    seen[users[~last], items[~last]] = 1.0
    inverse = np.linalg.inv(seen.T @ seen + 1000.0 * np.eye(seen.shape[1]))
    ridge = -inverse / np.diag(inverse)
    np.fill_diagonal(ridge, 0.0)

    def hit_rate(scores: Any) -> float:
        scores = np.where(seen > 0, -np.inf, scores)
        held_out = scores[users[last], items[last]]
        return float(((scores > held_out[:, None]).sum(axis=1) < 10).mean())

    learned, popular = hit_rate(seen @ ridge), hit_rate(seen.sum(axis=0))
    assert learned > 2 * popular
    assert learned < 0.4, "a held-out film should not be easy"


def test_the_number_of_rows_a_user_needs_can_be_changed(demo: Any) -> None:
    assert demo.min_user_rows == 10
    assert data.info(data.load("demo", min_user_rows=100)).n_users < 400
