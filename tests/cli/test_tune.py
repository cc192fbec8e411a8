"""Searching settings: the space, the search as a user meets it, stopped and gone on with."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conftest import cut_down, run_unskew, unskew_command
from unskew.methods import METHODS, create
from unskew.runs.tuning import Dimension, default_space, parse_space
from unskew.types import Interactions, UnskewError

SPACE = "rank=1:4,learning_rate=0.001:0.1,dim=4|8"


unskew = partial(run_unskew, columns=120)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, demo_data: Interactions) -> Path:
    """A folder with the demo cut small, as a file."""
    folder = tmp_path_factory.mktemp("tune")
    small = cut_down(demo_data, 60, 60)
    assert small.timestamps is not None
    with (folder / "small.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "timestamp"])
        writer.writerows(zip(small.users, small.items, small.timestamps, strict=True))
    return folder


def options(out: str, trials: int, *more: Any) -> tuple[Any, ...]:
    few = ("--skip-bad-rows", "--rounds", 2, "--set", "local_epochs=1", "--space", SPACE)
    return (
        "tune",
        "--method",
        "pfedclr",
        "--data",
        "small.csv",
        *few,
        "--trials",
        trials,
        "--out",
        out,
        *more,
    )


def trials_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "trials.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["format"] == "unskew-tune"
    return [json.loads(line) for line in lines[1:]]


def found(folder: Path) -> list[tuple[Any, Any]]:
    return [(trial["settings"], trial["value"]) for trial in trials_of(folder)]


@pytest.fixture(scope="module")
def finished(place: Path) -> dict[str, Any]:
    """An undisturbed search."""
    pytest.importorskip("optuna")
    stdout, stderr = unskew(*options("whole", 3, "--json"), cwd=place)
    assert "trial 2" in stderr
    assert "best so far" in stderr
    return json.loads(stdout)


def test_the_best_settings_run(finished: dict[str, Any], place: Path) -> None:
    values = [trial["value"] for trial in finished["trials"]]
    assert len(values) == 3
    assert finished["best"]["value"] == max(values)
    config = tomllib.loads((place / "whole/best.toml").read_text())
    assert config["settings"] == {"local_epochs": 1, "rounds": 2, **finished["best"]["settings"]}
    stdout, _ = unskew("run", "--config", "whole/best.toml", "--out", "run", "--json", cwd=place)
    rounds = (place / "run/seed-0/rounds.jsonl").read_text().splitlines()
    validation = [json.loads(line)["validation"]["ndcg@10"] for line in rounds]
    assert max(validation) == pytest.approx(finished["best"]["value"])
    assert json.loads(stdout)["settings"] == config["settings"]


def test_the_picture_has_the_order_and_every_setting(finished: dict[str, Any], place: Path) -> None:
    picture = ElementTree.parse(place / "whole/search.svg").getroot()
    text = " ".join(node.text or "" for node in picture.iter())
    for name in ("trial", "best so far", *finished["space"]):
        assert name in text


def test_no_test_figure_is_kept(finished: dict[str, Any], place: Path) -> None:
    names = {key for trial in trials_of(place / "whole") for key in trial}
    assert names == {"number", "settings", "value", "best_rounds", "seconds", "problem"}


@pytest.mark.slow
def test_a_search_killed_in_a_trial_goes_on_as_if_it_had_not_been(
    finished: dict[str, Any], place: Path
) -> None:
    process = subprocess.Popen(
        unskew_command(*options("killed", 3)),
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(b"trial 0"):
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    before = trials_of(place / "killed")
    assert 1 <= len(before) <= 3
    with (place / "killed/trials.jsonl").open("a") as file:
        file.write('{"number": 1, "settings": {"ra')  # cut off in the middle of a line
    stdout, stderr = unskew(*options("killed", 3), cwd=place)
    assert "trial 0:" not in stderr, "no trial is made twice"
    assert "best.toml" in stdout
    assert found(place / "killed") == found(place / "whole")
    seconds = [trial["seconds"] for trial in trials_of(place / "killed")]
    assert seconds[: len(before)] == [trial["seconds"] for trial in before]


def test_an_interrupt_says_how_to_go_on(finished: dict[str, Any], place: Path) -> None:
    process = subprocess.Popen(
        unskew_command(*options("stopped", 50)),
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 200
    log = place / "stopped/best.toml"
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 130
    assert b"the same command goes on" in stderr
    assert b"Traceback" not in stderr


def test_a_folder_of_another_search_is_left_alone(finished: dict[str, Any], place: Path) -> None:
    before = (place / "whole/trials.jsonl").read_bytes()
    _, stderr = unskew(*options("whole", 3, "--seed", 5), cwd=place, expect=2)
    assert "another search" in stderr
    assert (place / "whole/trials.jsonl").read_bytes() == before


def test_without_optuna_there_is_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # as if it were not installed
    _, stderr = unskew("tune", cwd=tmp_path, expect=2)
    assert "pip install 'unskew[tune]'" in stderr
    assert len(stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", METHODS)
def test_the_default_space_is_one_the_method_accepts(name: str) -> None:
    config = create(name).config
    for field, one in default_space(name).items():
        assert one.contains(getattr(config, field)), (field, one)
        for value in one.choices or (one.low, one.high):
            create(name, **{field: int(value) if one.whole else value})


def test_the_default_space_follows_the_config() -> None:
    space = default_space("pfedclr")
    assert {"rank", "learning_rate", "buffer_rate", "dim", "negatives"} <= set(space)
    assert not {"rounds", "participation", "buffer"} & set(space)
    assert space["learning_rate"].log
    assert space["learning_rate"].low == pytest.approx(0.001)
    assert space["dim"].choices == (8, 16, 32, 64)


def test_a_space_is_read_by_the_fields_types() -> None:
    space = parse_space("pfedclr", "rank=2:16, learning_rate=0.001:0.1,buffer=low-rank|full")
    assert space["rank"] == Dimension(2, 16, False, True)
    assert space["learning_rate"] == Dimension(0.001, 0.1, True, False)
    assert space["buffer"].choices == ("low-rank", "full")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank=16:2", "low below high"),
        ("rank", "must look like"),
        ("depth=1:2", "no setting"),
        ("rank=1.5:2", "whole number"),
        ("buffer=full:low-rank", "low below high"),
    ],
)
def test_a_bad_space_gets_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UnskewError, match=words):
        parse_space("pfedclr", text)
