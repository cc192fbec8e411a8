"""The wheel works outside the repository: build, install into a new environment, run the demo.

Dependencies are not downloaded again. The new environment sees the packages of the current one, but
not this repository: Python does not follow the `.pth` files of a folder that a `.pth` file names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def output_of(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed, without this repository on the path."""
    done = subprocess.run(command, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel installed; returns its folder of commands."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    python = sys.executable
    build = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    output_of(python, *build, cwd=folder)
    (wheel,) = folder.glob("unskew-*.whl")
    output_of(python, "-m", "venv", folder / "venv", cwd=folder)
    bin_folder = folder / "venv" / "bin"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    output_of(bin_folder / "python", *install, cwd=folder)
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(output_of(bin_folder / "python", "-c", purelib, cwd=folder).strip())
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n")
    return bin_folder


@pytest.mark.slow
def test_the_wheel_runs_the_demo_outside_the_repository(fresh: Path, tmp_path: Path) -> None:
    where = output_of(
        fresh / "python", "-c", "import unskew; print(unskew.__file__)", cwd=tmp_path
    ).strip()
    assert Path(where).is_relative_to(fresh.parent)
    printed = output_of(fresh / "unskew", "demo", "--rounds", "1", "--json", cwd=tmp_path)
    assert json.loads(printed)
    assert (tmp_path / "runs" / "demo").is_dir()
    assert list((tmp_path / "runs" / "demo").rglob("*.html"))
