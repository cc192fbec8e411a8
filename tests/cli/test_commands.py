"""The list of commands, and what is loaded and compiled for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from conftest import run_unskew, unskew_command
from unskew.cli._commands import COMMANDS, load


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_begins_its_help(name: str, tmp_path: Path) -> None:
    command, line = load(name), COMMANDS[name][1]
    own = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    assert " ".join(own.split()).startswith(line)
    shown, _ = run_unskew("--help", cwd=tmp_path)
    assert line[:40] in shown
    called, _ = run_unskew(name, "--help", cwd=tmp_path)
    assert f"unskew {name} " in called
    assert line[:40] in called


def test_the_list_of_commands_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlib, io; from unskew.cli import main\n"
        "sys.argv = ['unskew', '--help']\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main()\n"
        "print([m for m in ('numba', 'polars', 'scipy', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_compiling_is_announced_once_and_only_the_first_time(tmp_path: Path) -> None:
    sizes = ("--users", 20, "--items", 10, "--rows", 50)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    said = []
    for _ in range(2):
        done = subprocess.run(
            unskew_command("data", "make", *sizes, "--out", tmp_path / "x.csv"),
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stderr.count("Compiling kernels"))
    assert said == [1, 0]
