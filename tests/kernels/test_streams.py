"""The counter-based streams: SplitMix64 as published, and named by four coordinates alone."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
import pytest
import scipy.stats
import twins
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from unskew import rng
from unskew.kernels.batches import shuffle

PUBLISHED = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
"""The first outputs of SplitMix64 from seed 0."""
GOLDEN = np.uint64(twins.GOLDEN)

coordinate = st.integers(0, 2**31 - 1)
name = st.tuples(coordinate, coordinate, coordinate, st.integers(1, 20))


def test_mix_gives_the_published_outputs_of_splitmix64() -> None:
    with np.errstate(over="ignore"):
        for n, expected in enumerate(PUBLISHED):
            state = np.uint64(n + 1) * GOLDEN
            assert int(rng.mix(state)) == expected, "compiled"
            assert int(rng.mix.py_func(state)) == expected, "interpreted"
            assert twins.mix(int(state)) == expected, "the integer twin"
            assert int(rng.value(np.uint64(0), n)) == expected, "as the stream of state 0"


@given(name, st.integers(0, 2**40), st.integers(1, 2**31 - 1))
@settings(max_examples=200, deadline=None)
def test_streams_agree_with_integer_arithmetic(
    coordinates: tuple[int, int, int, int], counter: int, n: int
) -> None:
    state = np.uint64(rng.stream(*coordinates))
    assert int(state) == twins.stream(*coordinates)
    bits = np.uint64(rng.value(state, counter))
    assert int(bits) == twins.value(int(state), counter)
    assert 0 <= rng.below(bits, n) < n
    assert rng.below(bits, n) == twins.below(int(bits), n)


def test_below_reaches_both_ends() -> None:
    assert rng.below(np.uint64(0), 7) == 0
    assert rng.below(np.uint64(2**64 - 1), 7) == 6


def test_a_stream_is_its_four_coordinates_and_nothing_else() -> None:
    """Asked for in any order, from any thread, again and again: the same. One coordinate changed,
    or two exchanged: another."""
    names = [
        (s, r, u, p) for s in range(3) for r in range(3) for u in range(3) for p in range(1, 4)
    ]
    first = {key: int(rng.stream(*key)) for key in names}
    with ThreadPoolExecutor(4) as pool:
        again = dict(zip(names, pool.map(lambda key: int(rng.stream(*key)), names), strict=True))
    assert again == first
    assert {key: int(rng.stream(*key)) for key in reversed(names)} == first
    assert len(set(first.values())) == len(names)


def test_streams_of_neighbouring_names_share_no_value() -> None:
    values = {
        int(rng.value(np.uint64(rng.stream(0, 1, user, purpose)), counter))
        for user in range(20)
        for purpose in (5, 6)
        for counter in range(200)
    }
    assert len(values) == 20 * 2 * 200


def test_the_purposes_keep_their_numbers() -> None:
    """They are part of every saved result."""
    names = "INIT_ITEMS INIT_USER INIT_BUFFER COHORT NEGATIVES SHUFFLE_LOCAL SHUFFLE_PERSONAL "
    names += "CANDIDATES NOISE DEMO_DATA AUDIT_DATA INIT_DENSE BOOTSTRAP"
    assert [rng.Purpose[purpose].value for purpose in names.split()] == list(range(1, 14))
    assert len({int(purpose) for purpose in rng.Purpose}) == len(rng.Purpose.__members__)


@pytest.mark.parametrize("n", [0, 1, 2, 17, 300])
def test_shuffle_agrees_with_fisher_yates_and_carries_the_counter_on(n: int) -> None:
    key = np.uint64(rng.stream(1, 2, 3, 6))
    order: NDArray[np.int32] = np.arange(n + 2, dtype=np.int32)
    expected, counter, at = list(range(n)), 0, 0
    for _ in range(3):
        counter = shuffle(order, n, key, counter)
        expected, at = twins.shuffled(expected, int(key), at)
        assert order[:n].tolist() == expected
        assert counter == at
    assert order[n:].tolist() == [n, n + 1], "what lies behind the first n stays"
    assert sorted(order.tolist()) == list(range(n + 2))


def test_shuffle_makes_every_order_equally_often() -> None:
    counts: Counter[str] = Counter()
    for user in range(6000):
        order = np.arange(3, dtype=np.int32)
        shuffle(order, 3, np.uint64(rng.stream(0, 1, user, 6)), 0)
        counts[str(order)] += 1
    assert len(counts) == 6
    assert scipy.stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_generators_have_names_too() -> None:
    def first(*coordinates: int, purpose: rng.Purpose = rng.Purpose.COHORT) -> int:
        return int(rng.generator(coordinates[0], purpose, *coordinates[1:]).integers(2**62))

    assert first(0, 1) == first(0, 1)
    others = [first(0, 2), first(1, 1), first(0, 1, purpose=rng.Purpose.CANDIDATES)]
    assert len({first(0, 1), *others}) == 4


def test_streams_can_be_used_inside_kernels() -> None:
    """Inlined into another compiled function they give what they give from Python."""
    inlined = numba.njit(lambda s, r, u, p, n: rng.value(rng.stream(s, r, u, p), n))
    expected = rng.value(np.uint64(rng.stream(4, 5, 6, 7)), 8)
    assert int(inlined(4, 5, 6, 7, 8)) == int(expected)
