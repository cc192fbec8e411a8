"""``unskew export``: what it writes, and one sentence where it cannot."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from conftest import run_unskew


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs: ``run`` of EASE, and ``mf``, which trains newcomers."""
    folder = tmp_path_factory.mktemp("export")
    run_unskew("run", "--method", "ease", "--data", "demo", "--out", "run", cwd=folder)
    run_unskew("run", "--method", "mf", "--rounds", 1, "--out", "mf", cwd=folder)
    return folder


def refusal(place: Path, *arguments: str, format: str = "web") -> str:
    """The one sentence with which the command ends."""
    stdout, stderr = run_unskew("export", *arguments, "--format", format, cwd=place, expect=2)
    assert stdout == ""
    assert stderr.startswith("unskew: ")
    assert stderr.count("\n") == 1
    return stderr


def test_both_formats_are_written_and_said(place: Path) -> None:
    pytest.importorskip("onnx")
    told, _ = run_unskew("export", "run", "app", "--format", "onnx", "--float16", cwd=place)
    assert "float16" in told
    assert "app/model.onnx: 4.5 MB" in told
    told, _ = run_unskew(
        *("export", "run", "app", "--format", "web", "--neighbours", 30, "--json"), cwd=place
    )
    said = json.loads(told)
    assert said["format"] == "web"
    assert {Path(name).name for name in said["files"]} == {"index.html", "model_card.md"}
    assert said["ndcg@10"]["file"] == pytest.approx(said["ndcg@10"]["trained"], abs=0.02)
    card = (place / "app" / "model_card.md").read_text()
    assert "30 weights per item; NDCG@10" in card
    assert f"{said['files']['app/index.html']:,} bytes" in card
    assert "unskew export run app" in card


def test_the_same_run_gives_the_same_page(place: Path) -> None:
    for name in ("one", "two"):
        run_unskew("export", "run", name, "--format", "web", cwd=place)
    one, two = ((place / name / "index.html").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_missing_or_foreign_run_is_one_sentence(place: Path, tmp_path: Path) -> None:
    assert "There is no nowhere/run.json" in refusal(place, "nowhere", "x")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "run.json").write_text('{"format": "something else"}')
    assert "is not a unskew-run file" in refusal(place, str(foreign), "x")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "run.json").write_bytes((place / "run" / "run.json").read_bytes())
    assert "manifest.json is missing" in refusal(place, str(damaged), "x")
    shutil.copytree(place / "run", damaged, dirs_exist_ok=True)
    (damaged / "items.parquet").unlink()
    assert "items.parquet is missing" in refusal(place, str(damaged), "x")
    shutil.copy(place / "run" / "items.parquet", damaged)
    shutil.rmtree(damaged / "seed-0")
    assert "seed-0" in refusal(place, str(damaged), "x")
    assert not (place / "x").exists()


@pytest.mark.parametrize("format", ["web", "onnx"])
def test_a_method_that_trains_newcomers_is_refused_by_name(place: Path, format: str) -> None:
    said = refusal(place, "mf", "x", format=format)
    assert "mf cannot be exported: scoring a newcomer takes Python" in said
    assert not (place / "x").exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(place: Path) -> None:
    (place / "file").write_text("in the way")
    assert "file: " in refusal(place, "run", "file")
    assert "file/below" in refusal(place, "run", "file/below")
    assert "check the path and its permissions" in refusal(place, "run", "/proc/unskew")
    assert (place / "file").read_text() == "in the way"


def test_without_the_extra_the_sentence_says_how_to_get_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert "pip install 'unskew[onnx]'" in refusal(place, "run", "x", format="onnx")
    run_unskew("export", "run", "page", "--format", "web", cwd=place)  # needs no extra


def test_a_seed_and_a_size_that_are_not_there(place: Path) -> None:
    assert "has seeds [0], not 3" in refusal(place, "run", "x", "--seed", "3")
    assert "more than --max-mb 0.05" in refusal(place, "run", "x", "--max-mb", "0.05")
