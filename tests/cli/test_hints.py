"""Hints name commands that work as they are printed, also in a clone that is not on the PATH."""

import shlex
import shutil
import subprocess
import sys

import pytest

from unskew.cli import _output


@pytest.mark.parametrize(
    ("started", "wanted"),
    [
        ("unskew", "unskew"),
        (".venv/bin/unskew", ".venv/bin/unskew"),
        ("my env/bin/unskew", "'my env/bin/unskew'"),
    ],
)
def test_a_hint_names_the_program_as_it_was_started(monkeypatch, tmp_path, started, wanted):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [started, "run"])
    assert _output.program() == wanted


def test_on_the_path_the_name_is_enough(monkeypatch, tmp_path):
    script = tmp_path / "unskew"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [str(script)])
    assert _output.program() == "unskew"


def test_only_commands_are_renamed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bin/unskew"])
    _output.stdout.print("unskew: see `unskew methods`, src/unskew run, unskew runs")
    assert capsys.readouterr().out == (
        "unskew: see `bin/unskew methods`, src/unskew run, unskew runs\n"
    )


def test_the_hint_of_a_module_names_its_python(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    asked = [sys.executable, "-m", "unskew", "run", "--method", "popularity", "--out", "run"]
    said = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    (hint,) = [part for part in said.stderr.split("`") if "resume" in part]
    python, *words = shlex.split(hint)
    assert words == ["-m", "unskew", "resume", "run"]
    assert shutil.which(python) is not None
