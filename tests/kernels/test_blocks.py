"""How clients run: every one of them exactly once, the heavy ones first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.kernels import for_each_block, get_threads, set_threads
from unskew.kernels.parallel import work_alone
from unskew.types import Int64

works = st.lists(st.one_of(st.integers(0, 5), st.integers(0, 10**9)), min_size=1, max_size=120)


@pytest.fixture(autouse=True)
def _threads(threads_restored: None) -> None:
    pass


def blocks_of(work: Int64, threads: int) -> list[Int64]:
    blocks: list[Int64] = []
    set_threads(threads)
    for_each_block(work, blocks.append)
    return blocks


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_client_runs_exactly_once(threads: int) -> None:
    @settings(max_examples=60, deadline=None)
    @given(works)
    def check(work: list[int]) -> None:
        blocks = blocks_of(np.array(work, np.int64), threads)
        assert all(len(block) for block in blocks)
        assert sorted(np.concatenate(blocks).tolist()) == list(range(len(work)))

    check()


@settings(max_examples=100, deadline=None)
@given(works)
def test_the_heavy_ones_start_first_and_blocks_are_alike(work: list[int]) -> None:
    blocks = blocks_of(np.array(work, np.int64), 1)
    in_turn = [work[client] for client in np.concatenate(blocks)]
    assert in_turn == sorted(work, reverse=True)
    share = sum(w + 1 for w in work) / min(len(work), 8)
    for block in blocks:
        all_but_the_last = sum(work[client] + 1 for client in block[:-1])
        assert all_but_the_last <= share + 1, "a block passes its share by one client at most"


def test_more_threads_make_more_blocks() -> None:
    work = np.ones(400, np.int64)
    assert len(blocks_of(work, 1)) < len(blocks_of(work, 4)) <= 400


def test_a_client_heavier_than_all_others_runs_alone() -> None:
    work = np.ones(50, np.int64)
    work[17] = 10_000
    assert blocks_of(work, 1)[0].tolist() == [17]


def test_nobody_to_run() -> None:
    assert blocks_of(np.zeros(0, np.int64), 2) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failure_in_a_block_reaches_the_caller(threads: int) -> None:
    def fail(block: Int64) -> None:
        if 7 in block:
            raise ZeroDivisionError("client 7")

    set_threads(threads)
    with pytest.raises(ZeroDivisionError, match="client 7"):
        for_each_block(np.ones(40, np.int64), fail)
    done: list[Int64] = []
    for_each_block(np.ones(40, np.int64), done.append)
    assert sum(map(len, done)) == 40, "and the pool still works"


def test_threads_can_be_set_and_asked_for() -> None:
    set_threads(3)
    assert get_threads() == 3
    set_threads(0)
    assert get_threads() >= 1


def test_a_thread_that_works_alone_runs_its_blocks_itself() -> None:
    set_threads(3)
    ran_in: list[int] = []
    blocks: list[Int64] = []

    def run(block: Int64) -> None:
        ran_in.append(threading.get_ident())
        blocks.append(block)

    with ThreadPoolExecutor(1, initializer=work_alone) as executor:
        executor.submit(for_each_block, np.arange(40), run).result()
        assert set(ran_in) == {executor.submit(threading.get_ident).result()}
    assert sorted(np.concatenate(blocks).tolist()) == list(range(40))
    ran_in.clear()
    for_each_block(np.arange(40), run)
    assert threading.get_ident() not in ran_in, "other threads still share the work"
