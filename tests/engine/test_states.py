"""Private states in blocks: what is put comes back, in memory and on disk, whatever is moved."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import unskew
from unskew.engine import Checkpoints, Devices, Federation, blocks, memory, model_checksum, states
from unskew.engine.blocks import Disk, StateFolder
from unskew.methods import create
from unskew.types import Float32, Int64, Rows, Split

N_USERS = 60


class Private(NamedTuple):
    p: Float32
    A: Rows
    user: Int64
    B: Rows


class Download(NamedTuple):
    Q: Float32


def random_rows(rng: np.random.Generator, n: int, width: int) -> Rows:
    counts = rng.integers(0, 9, n)
    indptr = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
    items = [np.sort(rng.permutation(30)[:count]) for count in counts]
    values = rng.random((indptr[-1], width), np.float32)
    return Rows(indptr, np.concatenate([[], *items]).astype(np.int32), values)


def random_states(rng: np.random.Generator, users: Int64) -> Private:
    n = len(users)
    vectors = rng.random((n, 3), np.float32)
    return Private(vectors, random_rows(rng, n, 2), users.copy(), random_rows(rng, n, 1))


def by_user(private: Private) -> list[tuple[Any, ...]]:
    """The states of single users, to be compared."""
    found = []
    for user in range(len(private.p)):
        leaves: list[Any] = [private.p[user].tolist(), int(private.user[user])]
        for rows in (private.A, private.B):
            run = slice(rows.indptr[user], rows.indptr[user + 1])
            leaves.append((rows.items[run].tolist(), rows.values[run].tolist()))
        found.append(tuple(leaves))
    return found


def download(version: int) -> Download:
    return Download(np.full((2, 2), version, np.float32))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a few puts fill one."""
    monkeypatch.setattr(states, "MIN_BLOCK_BYTES", 600)
    monkeypatch.setattr(states, "MAX_BLOCK_BYTES", 2400)
    monkeypatch.setattr(states, "MAX_SMALL_BLOCKS", 5)
    monkeypatch.setattr(states, "MAX_MAPPED_BYTES", 5000)


def sizes(devices: Devices) -> tuple[int, int]:
    """Bytes of all blocks, and of the states in use."""
    held = devices._states
    return sum(block.nbytes for block in held._blocks.values()), held._bytes_in_use


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("memory_bytes", [None, 0, 3000])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_put_comes_back(seed: int, memory_bytes: int | None, tmp_path: Path) -> None:
    """Puts, takes, snapshots and checkpoints in random order, compared with lists of states."""
    rng, folder, everyone = np.random.default_rng(seed), StateFolder(tmp_path), np.arange(N_USERS)
    disk = None if memory_bytes is None else Disk(folder, memory_bytes)
    first = random_states(rng, everyone)
    devices, wanted = Devices(first, download(0), disk), by_user(first)
    versions = np.zeros(N_USERS, np.int64)
    best, best_wanted, best_versions = devices.snapshot(), list(wanted), versions.copy()
    for round in range(1, 80):
        devices.remember(round, download(round))
        some = np.sort(rng.permutation(N_USERS)[: rng.integers(1, 12)])
        given = random_states(rng, some)
        devices.put(some, given, round)
        devices.forget()
        for user, state in zip(some, by_user(given), strict=True):
            wanted[user] = state
        versions[some] = round
        asked = rng.permutation(N_USERS)[: rng.integers(0, 20)]
        assert by_user(devices.take(asked)) == [wanted[user] for user in asked]
        if rng.random() < 0.1:
            del best
            best, best_wanted, best_versions = devices.snapshot(), list(wanted), versions.copy()
        if rng.random() < 0.3:
            saved, saved_best = devices.save(folder), best.save(folder)
            ours = Devices.load(saved, N_USERS, first, download(0))
            theirs = Devices.load(saved_best, N_USERS, first, download(0), like=ours)
            for loaded, states_, numbers in (
                (ours, wanted, versions),
                (theirs, best_wanted, best_versions),
            ):
                assert by_user(loaded.take(everyone)) == states_
                np.testing.assert_array_equal(loaded.version, numbers)
                for number in np.unique(numbers).tolist():
                    assert loaded.downloads[number].Q[0, 0] == number
            folder.remove_all_but(file.name for part in (saved, saved_best) for file in names(part))
            if rng.random() < 0.5:
                devices, best = ours, theirs
                devices.keep_within(disk)
        assert by_user(best.take(everyone)) == best_wanted
    arrays = devices.arrays()
    again = Devices.from_arrays(arrays, first, download(0))
    assert by_user(again.take(everyone)) == wanted
    for name, array in again.arrays().items():
        np.testing.assert_array_equal(array, arrays[name], name)


def test_versions_that_are_set_are_saved(tmp_path: Path) -> None:
    rng, everyone = np.random.default_rng(0), np.arange(N_USERS)
    first = random_states(rng, everyone)
    devices = Devices(first, download(0))
    devices.downloads = {n: download(n) for n in (3, 4)}
    devices.version = 3 + everyone % 2
    loaded = Devices.load(devices.save(StateFolder(tmp_path)), N_USERS, first, download(0))
    np.testing.assert_array_equal(loaded.version, 3 + everyone % 2)
    assert by_user(loaded.take(everyone)) == by_user(first)


def names(saved: Any) -> list[blocks.StateFile]:
    return [*saved.blocks, *saved.downloads.values()]


@pytest.mark.usefixtures("small_blocks")
def test_replaced_states_take_up_little() -> None:
    """Without snapshots, within a quarter of the size in use and two blocks; few small blocks."""
    rng, everyone = np.random.default_rng(0), np.arange(N_USERS)
    devices = Devices(random_states(rng, everyone), download(0))
    for round in range(300):
        some = rng.permutation(N_USERS)[: 1 + round % 7]
        devices.put(some, random_states(rng, some), round)
        held, in_use = sizes(devices)
        assert held < 1.25 * in_use + 2 * 2400
        if round % 3 == 0:
            devices.snapshot()
        assert len(devices._states._blocks) < 80


@pytest.mark.usefixtures("small_blocks")
def test_states_are_taken_while_others_are_put() -> None:
    """As the workers of a round do: each takes its own users while the round's results are put."""
    rng, everyone = np.random.default_rng(0), np.arange(N_USERS)
    first = random_states(rng, everyone)
    devices, wanted = Devices(first, download(0)), by_user(first)
    still, moving = everyone[::2], everyone[1::2]
    failures, done = list[str](), threading.Event()

    def take() -> None:
        own = np.random.default_rng(1)
        while not done.is_set():
            users = own.permutation(still)[:5]
            if by_user(devices.take(users)) != [wanted[user] for user in users]:
                failures.append(f"{users}")

    workers = [threading.Thread(target=take) for _ in range(3)]
    for worker in workers:
        worker.start()
    for round in range(400):
        some = rng.permutation(moving)[:6]
        devices.put(some, random_states(rng, some), round)
    done.set()
    for worker in workers:
        worker.join()
    assert not failures


QUICK = {"dim": 4, "local_epochs": 1, "participation": 0.4, "rounds": 4}


def test_state_on_disk_changes_no_bit(small_split: Split, tmp_path: Path) -> None:
    """Nor does resuming, in either direction."""

    def train(on_disk: bool, rounds: int, folder: Path | None = None) -> str:
        method = create("pfedclr", **QUICK)
        federation = Federation(method, small_split, 3, state_on_disk=on_disk)
        checkpoints = None if folder is None else Checkpoints(folder)
        state = federation.run(rounds, checkpoints=checkpoints)
        if on_disk:
            assert state.devices.bytes_on_disk > 0
        return model_checksum(state)

    wanted = train(False, 4)
    assert train(True, 4) == wanted
    for number, first in enumerate((True, False)):
        folder = tmp_path / str(number)
        train(first, 2, folder)
        assert train(not first, 4, folder) == wanted


def test_state_goes_to_the_disk_by_itself(
    tiny_split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    for available, on_disk in ((10 * 2**20, False), (2**12, True)):
        monkeypatch.setattr(memory, "available_memory", lambda size=available: size)
        monkeypatch.setattr(memory, "check_memory", lambda *_, **__: None)
        monkeypatch.setattr("unskew.engine.federation.check_memory", lambda *_, **__: None)
        result = unskew.fit("fedmf", tiny_split, **QUICK).result()
        told = [note for note in result.notes if "private state" in note]
        assert len(told) == on_disk
        assert all("50% of the available memory was kept on disk" in note for note in told)
    asked = unskew.fit("fedmf", tiny_split, state_on_disk=True, **QUICK).result()
    assert not [note for note in asked.notes if "private state" in note]
