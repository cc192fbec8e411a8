"""What a client trains on: every promise of ``draw_samples``, and its plain twin."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import scipy.stats
import twins
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.kernels import draw_samples, set_threads
from unskew.ragged import select
from unskew.types import Cohort, Float32, Int64, Samples


class Client(NamedTuple):
    """One client's samples, as items."""

    positives: list[int]
    negatives: list[list[int]]
    """Those of each positive."""
    touched: list[int]


def cohort_of(
    positives: list[list[int]],
    n_items: int,
    excluded: list[list[int]] | None = None,
    seed: int = 0,
    round: int = 1,
) -> Cohort:
    excluded = positives if excluded is None else excluded
    barred = [sorted(set(items)) for items in excluded]
    users = np.arange(len(positives), dtype=np.int64)
    return Cohort(users, twins.ragged(positives), twins.ragged(barred), n_items, seed, round)


def clients(samples: Samples) -> list[Client]:
    out = []
    for client in range(len(samples.indptr) - 1):
        mine = slice(samples.indptr[client], samples.indptr[client + 1])
        touched = samples.touched.of(client)
        items, labels = touched[samples.row[mine]].tolist(), samples.label[mine].tolist()
        positives: list[int] = []
        negatives: list[list[int]] = []
        for item, label in zip(items, labels, strict=True):
            if label == 1.0:
                positives.append(item)
                negatives.append([])
            else:
                assert label == 0.0
                negatives[-1].append(item)
        out.append(Client(positives, negatives, touched.tolist()))
    return out


@st.composite
def cohorts(draw: st.DrawFn) -> Cohort:
    n_items = draw(st.integers(1, 25))
    item = st.integers(0, n_items - 1)
    n_clients = draw(st.integers(1, 6))
    positives = [draw(st.lists(item, max_size=12)) for _ in range(n_clients)]
    barred = [draw(st.lists(item, max_size=5)) + mine for mine in positives]
    return cohort_of(positives, n_items, barred, draw(st.integers(0, 99)), draw(st.integers(1, 9)))


@settings(max_examples=150, deadline=None)
@given(cohorts(), st.integers(0, 5))
def test_samples_agree_with_the_plain_twin(cohort: Cohort, negatives: int) -> None:
    ours, twin = draw_samples(cohort, negatives), twins.draw_samples(cohort, negatives)
    assert_same(ours, twin)
    assert ours.row.dtype == ours.touched.items.dtype == np.int32
    assert ours.label.dtype == np.float32
    assert ours.indptr.dtype == np.int64


@settings(max_examples=100, deadline=None)
@given(cohorts(), st.integers(0, 5))
def test_every_positive_gets_distinct_negatives_none_of_them_excluded(
    cohort: Cohort, negatives: int
) -> None:
    for client, drawn in enumerate(clients(draw_samples(cohort, negatives))):
        barred = set(cohort.excluded.of(client).tolist())
        assert drawn.positives == cohort.positives.of(client).tolist(), "all of them, in order"
        for these in drawn.negatives:
            assert len(these) == min(negatives, cohort.n_items - len(barred))
            assert len(set(these)) == len(these)
            assert not barred & set(these)
        everything = {*drawn.positives, *(item for these in drawn.negatives for item in these)}
        assert drawn.touched == sorted(everything)


def test_an_empty_pool_leaves_the_positives_alone() -> None:
    (drawn,) = clients(draw_samples(cohort_of([[0, 1, 2, 1]], 3), 4))
    assert drawn == Client([0, 1, 2, 1], [[], [], [], []], [0, 1, 2])


def test_a_pool_smaller_than_asked_for_is_drawn_whole() -> None:
    (drawn,) = clients(draw_samples(cohort_of([[0, 3]], 5), 4))
    assert [sorted(these) for these in drawn.negatives] == [[1, 2, 4], [1, 2, 4]]


def test_a_client_without_positives_has_no_samples() -> None:
    empty, other = clients(draw_samples(cohort_of([[], [1]], 9), 4))
    assert empty == Client([], [], [])
    assert len(other.touched) == 5


def test_rounds_seeds_and_users_draw_differently() -> None:
    alike = [[0, 1, 2]] * 2
    first, second = clients(draw_samples(cohort_of(alike, 200), 4))
    assert first.negatives != second.negatives, "two users with the same items"
    assert clients(draw_samples(cohort_of(alike, 200, round=2), 4))[0] != first
    assert clients(draw_samples(cohort_of(alike, 200, seed=1), 4))[0] != first
    assert clients(draw_samples(cohort_of(alike, 200), 4))[0] == first


@pytest.mark.parametrize("slot", range(4))
def test_each_draw_is_uniform(slot: int) -> None:
    """Also the later ones, which must not repeat the earlier: a thousand clients, ten rounds."""
    n_items, barred = 23, [3, 7, 8]
    counts = np.zeros(n_items)
    for round in range(1, 11):
        cohort = cohort_of([[7]] * 1000, n_items, [barred] * 1000, round=round)
        samples = draw_samples(cohort, 4)
        items = samples.touched.items[
            samples.row + np.repeat(samples.touched.indptr[:-1], samples.counts())
        ]
        np.add.at(counts, items.reshape(1000, 5)[:, 1 + slot], 1)
    assert counts[barred].tolist() == [0, 0, 0]
    assert scipy.stats.chisquare(np.delete(counts, barred)).pvalue > 1e-3


def test_negatives_of_one_positive_are_independent_of_its_other_ones() -> None:
    """All ordered pairs of different items come equally often."""
    cohort = cohort_of([[0]] * 20_000, 7)
    samples = draw_samples(cohort, 2)
    items = samples.touched.items[
        samples.row + np.repeat(samples.touched.indptr[:-1], samples.counts())
    ].reshape(-1, 3)
    pairs = np.zeros((7, 7))
    np.add.at(pairs, (items[:, 1], items[:, 2]), 1)
    possible = pairs[1:, 1:][~np.eye(6, dtype=bool)]
    assert possible.sum() == 20_000
    assert scipy.stats.chisquare(possible).pvalue > 1e-3


def uneven_cohort() -> Cohort:
    generator = np.random.default_rng(1)
    positives = [generator.integers(0, 80, size).tolist() for size in (1, 70, 3, 0, 20, 5, 2, 9)]
    return cohort_of(positives, 90, seed=4)


def subset(cohort: Cohort, chosen: Int64) -> Cohort:
    return cohort._replace(
        users=cohort.users[chosen],
        positives=select(cohort.positives, chosen),
        excluded=select(cohort.excluded, chosen),
    )


def assert_same(ours: Samples, twin: Samples) -> None:
    for a, b in zip((*ours[:3], *ours.touched), (*twin[:3], *twin.touched), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("threads_restored")
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_nothing(threads: int) -> None:
    set_threads(threads)
    assert_same(draw_samples(uneven_cohort(), 4), twins.draw_samples(uneven_cohort(), 4))


@pytest.mark.parametrize("size", [1, 3, 8])
def test_chunks_and_order_change_nothing(size: int) -> None:
    cohort = uneven_cohort()
    whole = clients(draw_samples(cohort, 4))
    for order in (np.arange(8), np.random.default_rng(0).permutation(8)):
        for low in range(0, 8, size):
            chosen = order[low : low + size]
            part = clients(draw_samples(subset(cohort, chosen), 4))
            assert part == [whole[client] for client in chosen]


def test_labels_are_one_and_zero() -> None:
    label: Float32 = draw_samples(uneven_cohort(), 4).label
    assert label.reshape(-1, 5).tolist() == [[1, 0, 0, 0, 0]] * 110
