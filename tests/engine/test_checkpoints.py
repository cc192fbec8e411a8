"""A run's state on disk: resumed to the same bits, never lost, whenever the process ends."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from unskew.engine import Checkpoints, Devices, Federation, State, model_checksum
from unskew.methods import create
from unskew.types import Split, UnskewError

ROUNDS = 5
UNTIMED = ("round", "clients", "loss", "bytes_up", "bytes_down", "validation", "test")


def federation_of(split: Split, **settings: Any) -> Federation:
    """Rates this high make validation worse after a round or two: the best is not the last."""
    quick = {"dim": 4, "local_epochs": 2, "participation": 0.5, "learning_rate": 1.0}
    return Federation(create("fedmf", **(quick | settings)), split, seed=1)


def contents(state: State) -> dict[str, Any]:
    """All that a state holds, but for seconds."""
    named = {
        "round": state.round,
        "best_round": state.best_round,
        "model": model_checksum(state),
        "rows": [{name: row[name] for name in UNTIMED} for row in state.rows],
    }
    for part in ("devices", "scoreboard", "best_devices", "best_scoreboard"):
        arrays = getattr(state, part).arrays()
        named |= {f"{part}.{name}": array.tobytes() for name, array in arrays.items()}
    return named


@pytest.fixture(scope="module")
def uninterrupted(tiny_split: Split) -> list[dict[str, Any]]:
    """What a run without a stop holds after each round."""
    federation = federation_of(tiny_split)
    state = federation.start()
    after = [contents(state)]
    for _ in range(ROUNDS):
        federation.step(state)
        after.append(contents(state))
    assert 0 < state.best_round < ROUNDS, "else a best round of its own is never loaded"
    return after


@pytest.mark.parametrize("stop", range(1, ROUNDS))
def test_a_resumed_run_is_the_uninterrupted_one(
    stop: int, tmp_path: Path, tiny_split: Split, uninterrupted: list[dict[str, Any]]
) -> None:
    federation = federation_of(tiny_split)
    state = federation.start()
    for _ in range(stop):
        federation.step(state)
        Checkpoints(tmp_path).save(state)
    resumed = Checkpoints(tmp_path).load(federation)
    assert resumed is not None
    assert contents(resumed) == uninterrupted[stop]
    while resumed.round < ROUNDS:
        federation.step(resumed)
    assert contents(resumed) == uninterrupted[ROUNDS]


def listed(manifest: Path) -> set[str]:
    """The files that a checkpoint consists of."""
    return {manifest.name, *json.loads(manifest.read_text())["files"]}


def test_only_the_last_two_checkpoints_are_kept(tmp_path: Path, tiny_split: Split) -> None:
    federation = federation_of(tiny_split)
    assert Checkpoints(tmp_path).load(federation) is None
    state = federation.start()
    for _ in range(ROUNDS):
        federation.step(state)
        Checkpoints(tmp_path).save(state)
    files = listed(tmp_path / "current.json") | listed(tmp_path / "previous.json")
    assert {path.name for path in tmp_path.iterdir()} == files


def test_a_checkpoint_costs_what_has_changed(tmp_path: Path, small_split: Split) -> None:
    """With a hundredth of the users in a round, hardly anything is written anew; what is written
    again when old blocks are merged stays within a few times of what has changed."""
    federation = federation_of(small_split, participation=0.01)
    state, written, sizes = federation.start(), list[int](), dict[str, int]()
    for _ in range(60):
        federation.step(state)
        Checkpoints(tmp_path).save(state)
        now = {path.name: path.stat().st_size for path in tmp_path.glob("*.safetensors")}
        written.append(sum(now[name] for name in now.keys() - sizes.keys() if "server" not in name))
        sizes = now
    table = federation.split.n_items * 4 * 4
    assert max(written[1:]) < written[0] + 2 * table
    assert sum(written[1:]) / 59 < 0.5 * written[0] + 2 * table
    loaded = Checkpoints(tmp_path).load(federation)
    assert loaded is not None
    assert contents(loaded) == contents(state)


class Crash(BaseException):
    """The process ends here."""


def crash_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Make the n-th call that reaches the disk (sync, rename) end the process before it."""
    left = iter(range(number))

    def crashing(call: Any) -> Any:
        def wrapped(*words: Any, **named: Any) -> Any:
            if next(left, None) is None:
                raise Crash
            return call(*words, **named)

        return wrapped

    for name in ("fsync", "rename", "replace"):
        patch.setattr(os, name, crashing(getattr(os, name)))


def test_a_crash_at_any_moment_of_a_save_loses_one_round_at_most(
    tmp_path: Path, tiny_split: Split, uninterrupted: list[dict[str, Any]]
) -> None:
    """The next process finds the old state or the new one, whole, and goes on to the same bits."""
    federation, crashes = federation_of(tiny_split), 0
    for number in range(100):
        folder = tmp_path / str(number)
        state = federation.start()
        federation.step(state)
        Checkpoints(folder).save(state)
        federation.step(state)
        with pytest.MonkeyPatch.context() as patch:
            crash_at(patch, number)
            try:
                Checkpoints(folder).save(state)
                break
            except Crash:
                crashes += 1
        found = Checkpoints(folder).load(federation)
        assert found is not None
        assert contents(found) == uninterrupted[found.round], f"after crash {number}"
        while found.round < 3:
            federation.step(found)
            Checkpoints(folder).save(found)
        again = Checkpoints(folder).load(federation)
        assert again is not None
        assert contents(again) == uninterrupted[3], f"after crash {number}"
    assert crashes >= 8, "three or more files and their folder, the index and its folder"


def test_a_save_that_fails_midway_is_not_a_checkpoint(
    tmp_path: Path, tiny_split: Split, uninterrupted: list[dict[str, Any]]
) -> None:
    """No file of a round has its final place before all of them are written."""
    federation = federation_of(tiny_split)
    state = federation.start()
    federation.step(state)
    with pytest.MonkeyPatch.context() as patch:
        crash_at(patch, 4)  # after the first file, before the last
        with pytest.raises(Crash):
            Checkpoints(tmp_path).save(state)
    assert not list(tmp_path.glob("round-*"))
    assert Checkpoints(tmp_path).load(federation) is None
    Checkpoints(tmp_path).save(state)
    found = Checkpoints(tmp_path).load(federation)
    assert found is not None
    assert contents(found) == uninterrupted[1]


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr(time, "monotonic", lambda: self.now)


def rounds_saved(
    tmp_path: Path,
    split: Split,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    n: int = 25,
) -> list[int]:
    """The rounds that are saved when training a round takes 1 second and saving ``seconds``."""
    clock, saved = Clock(monkeypatch), list[int]()

    class Timed(Checkpoints):
        def save(self, state: State) -> None:
            clock.now += seconds
            saved.append(state.round)

    checkpoints, state = Timed(tmp_path), federation_of(split).start()
    for state.round in range(1, n + 1):
        clock.now += 1
        checkpoints.after_round(state, final=state.round == n)
    return saved


def test_saving_takes_a_tenth_of_the_time_at_most(
    tmp_path: Path, tiny_split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One second each: affordable again 10 seconds after the first began, 20 after the second."""
    assert rounds_saved(tmp_path, tiny_split, monkeypatch, 1.0) == [1, 9, 18, 25]
    assert rounds_saved(tmp_path, tiny_split, monkeypatch, 0.05, 5) == [1, 2, 3, 4, 5]


def test_a_whole_run_calls_saves_and_resumes(
    tmp_path: Path, tiny_split: Split, uninterrupted: list[dict[str, Any]]
) -> None:
    """Stopped after round 2, continued from the checkpoint, then from a state in memory."""
    federation, calls = federation_of(tiny_split, rounds=ROUNDS), list[tuple[str, int]]()

    def before(state: State) -> None:
        calls.append(("before", state.round))

    def after(state: State, row: Any) -> None:
        assert row is state.rows[-1]
        row["note"] = state.round
        calls.append(("after", state.round))

    def run(rounds: int | None, state: State | None = None) -> State:
        calls.clear()
        checkpoints = Checkpoints(tmp_path) if state is None else None
        return federation.run(
            rounds, state=state, checkpoints=checkpoints, before_round=before, on_round=after
        )

    assert contents(run(2)) == uninterrupted[2]
    assert calls == [("before", 0), ("after", 1), ("before", 1), ("after", 2)]
    resumed = run(3)
    assert calls == [("before", 2), ("after", 3)]
    assert [row["note"] for row in resumed.rows] == [1, 2, 3], "notes are saved with their round"
    saved = Checkpoints(tmp_path).load(federation)
    assert saved is not None
    assert contents(saved) == uninterrupted[3]
    assert contents(run(None, saved)) == uninterrupted[ROUNDS], "by default the method's rounds"
    assert [call for call in calls if call[0] == "after"] == [("after", 4), ("after", 5)]
    assert run(1).round == 3, "a run that is further already is left as it is"
    assert not calls


class OldServer(NamedTuple):
    """State of pFedGraph's server in an older version."""

    Q: Any
    users: Any
    entries: Any


def test_a_checkpoint_of_an_older_version_says_so(tmp_path: Path, tiny_split: Split) -> None:
    """pFedGraph's server had ``entries`` where it now has ``aggregates``."""
    federation = Federation(create("pfedgraph", dim=4, local_epochs=1), tiny_split, seed=0)
    state = federation.run(1)
    state.server = OldServer(*state.server)
    Checkpoints(tmp_path).save(state)
    words = r"older version of unskew, before pfedgraph had 'server.aggregates'; train again"
    with pytest.raises(UnskewError, match=words):
        Checkpoints(tmp_path).load(federation)


class OlderPrivate(NamedTuple):
    """State of FedMF's clients, as if an older version had kept less of it."""

    Q: Any


def test_private_state_of_an_older_version_says_so_at_once(
    tmp_path: Path, tiny_split: Split
) -> None:
    federation = Federation(create("fedmf", dim=4, local_epochs=1), tiny_split, seed=0)
    state = federation.run(1)
    everyone = np.arange(tiny_split.n_users)
    older = OlderPrivate(state.devices.take(everyone).Q)
    held = state.devices.downloads[max(state.devices.downloads)]
    state.devices = state.best_devices = Devices(older, held)
    Checkpoints(tmp_path).save(state)
    with pytest.raises(UnskewError, match="older version of unskew, before fedmf had 'p'"):
        Checkpoints(tmp_path).load(federation)
