"""A short look with seeded wrong input of every kind; `make fuzz` plays many more cases."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

from benchmarks.fuzz import __main__ as fuzz

from unskew.types import UnskewError

CASES = {
    "run-settings": 20,
    "deploy-settings": 40,
    "data-files": 80,
    "run-folders": 12,
    "device-folders": 20,
    "messages": 60,
}


@pytest.fixture(autouse=True)
def here() -> Any:
    before = os.getcwd()
    yield
    os.chdir(before)


@pytest.mark.parametrize("name", fuzz.KINDS)
def test_wrong_input_gets_a_sentence_and_nothing_differs(
    tmp_path: Path, threads_restored: None, name: str
) -> None:
    tally = fuzz.play(fuzz.KINDS[name], tmp_path, 0, CASES[name], 600.0)
    assert not tally.failures
    assert min(tally.counts["accepted"], tally.counts["refused"]) > 0


def test_a_failure_is_counted_and_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(fuzz.Kind):
        name, share = "messages", 1.0

        def play(self, rng: Any) -> str | None:
            number = rng.randrange(4)
            self.about = [f"drew {number}"]
            if number == 0:
                raise KeyError("lost")
            if number == 1:
                raise UnskewError("this should have been caught")
            return "refused" if number == 2 else None

    tally = fuzz.play(Broken, tmp_path, 7, 40, 600.0)
    assert tally.counts["failed"] == sum(tally.failures.values()) > 0
    assert {name.split()[0] for name in tally.failures} == {"KeyError", "UnskewError"}
    assert tally.counts["accepted"] > 0
    assert tally.counts["refused"] > 0
    lines = capsys.readouterr().out.splitlines()
    replays = [line.split()[-1] for line in lines if "--replay" in line]
    again = Broken(tmp_path / "again")
    for replay in replays:
        with pytest.raises((KeyError, UnskewError)):
            again.case(7, int(replay.rpartition(":")[2].rstrip("'")))
