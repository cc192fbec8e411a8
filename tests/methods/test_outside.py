"""Methods that live outside the package: named by the user, and never chosen by a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unskew
from conftest import run_unskew
from unskew.methods import registry
from unskew.methods.fedmf import FedMF
from unskew.types import UnskewError

SOURCE = """
from unskew.methods.fedmf import FedMF

class Mine(FedMF):
    name = "mine"
"""
QUICK = ("--rounds", 1, "--set", "dim=4", "--set", "local_epochs=1")


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each command is a new process to the user: nothing admitted earlier counts."""
    monkeypatch.setattr(registry, "_admitted", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("outside_method", None)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the user's file."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "outside_method.py").write_text(SOURCE)
    return folder


@pytest.fixture(scope="module")
def saved(place: Path) -> Path:
    """A run of the user's method."""
    run_unskew("run", "--method", "outside_method:Mine", *QUICK, "--out", "run", cwd=place)
    return place / "run"


def forget(place: Path) -> None:
    registry._admitted.clear()
    sys.modules.pop("outside_method", None)
    if str(place) in sys.path:
        sys.path.remove(str(place))


def test_a_run_records_the_import_path(saved: Path) -> None:
    assert json.loads((saved / "run.json").read_text())["spec"]["method"] == "outside_method:Mine"


@pytest.mark.parametrize(
    "arguments",
    [
        ("resume", "run"),
        ("recommend", "run", "--user", "user-0633"),
        ("audit", "privacy", "run", "--noise", "0", "--users", 5),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_run_folder_does_not_choose_code(
    saved: Path, place: Path, arguments: tuple[Any, ...]
) -> None:
    forget(place)
    _, said = run_unskew(*arguments, cwd=place, expect=2)
    assert "outside_method:Mine is not announced" in said
    assert "--method outside_method:Mine" in said
    assert "outside_method" not in sys.modules
    run_unskew(*arguments, "--method", "outside_method:Mine", cwd=place)


def test_a_config_file_does_not_choose_code(saved: Path, place: Path) -> None:
    forget(place)
    (place / "run.toml").write_text('method = "outside_method:Mine"\nsettings = {rounds = 1}\n')
    _, said = run_unskew("run", "--config", "run.toml", cwd=place, expect=2)
    assert "name it yourself: --method outside_method:Mine" in said
    assert "outside_method" not in sys.modules


def test_compare_and_report_need_no_code(saved: Path, place: Path) -> None:
    forget(place)
    run_unskew("compare", "run", "run", cwd=place)
    run_unskew("report", "run", "--out", "page.html", cwd=place)
    assert "outside_method:Mine" in (place / "page.html").read_text()
    assert "outside_method" not in sys.modules


def test_a_run_is_not_opened_with_a_method_of_another_name(saved: Path, place: Path) -> None:
    said = run_unskew("recommend", "run", "--user", "x", "--method", "fedmf", cwd=place, expect=2)
    assert "The run is of outside_method:Mine, not of fedmf" in said[1]


def test_a_class_of_a_notebook(tmp_path: Path) -> None:
    class Mine(FedMF):
        name = "mine"

    settings = {"rounds": 1, "dim": 4, "local_epochs": 1}
    in_memory = unskew.fit(Mine, "demo", **settings)
    assert in_memory.recommend("user-0633", k=3)
    unskew.fit(Mine(Mine.Config(**settings)), "demo", out=tmp_path / "run")
    registry._admitted.clear()
    with pytest.raises(UnskewError, match=r"open_run\(path, method=Class\)"):
        unskew.open_run(tmp_path / "run")
    opened = unskew.open_run(tmp_path / "run", method=Mine)
    assert opened.recommend("user-0633", 3) == in_memory.recommend("user-0633", 3)


def test_classes_of_one_name_are_told_apart() -> None:
    def make() -> Any:
        return type("Made", (FedMF,), {"name": "made"})

    first, second = make(), make()
    names = [unskew.methods.admit_method(kind)[0] for kind in (first, second, first)]
    assert names == ["__main__:Made", "__main__:Made-2", "__main__:Made"]
    assert registry.find_method("__main__:Made-2") is second


class Incomplete(unskew.Method):
    name = "incomplete"
    config = FedMF.config

    def init(self, n_users: int, n_items: int, seed: int) -> Any: ...


class NoRounds(FedMF):
    name = "no-rounds"
    Config = unskew.types.Upload


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (Incomplete, r"it has no score, fold_in, local, aggregate; inherit from unskew.Method"),
        (NoRounds, r"Config needs rounds and participation"),
        (object, r"it has no init, .*name, Config, aggregation"),
        ("nowhere.at_all:Mine", r"cannot be imported \(No module named 'nowhere'\)"),
        ("unskew.methods.fedmf:Nobody", r"has no attribute 'Nobody'"),
        ("unskew.methods.fedmf:__doc__", r"is not a class"),
        ("nonsense", r'no method "nonsense".*or give package.module:Class'),
    ],
    ids=str,
)
def test_what_is_no_method_gets_one_sentence(method: Any, sentence: str) -> None:
    with pytest.raises(UnskewError, match=sentence) as caught:
        unskew.fit(method, "demo")
    assert "\n" not in str(caught.value)
