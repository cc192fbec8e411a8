"""Machine code from the cache is always that of the sources as they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unskew

_CALLED = "from unskew.jit import jit\n\n@jit\ndef called():\n    return {value}\n"
_CALLER = (
    "from unskew.jit import jit\nfrom unskew.kernels.probe_called import called\n\n"
    "@jit\ndef caller():\n    return called() + 1\n"
)
_SHOW = (
    "from unskew.jit import cache_folder\nfrom unskew.kernels.probe_caller import caller\n"
    "print(caller(), sum(caller.stats.cache_hits.values()), cache_folder())"
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with two kernels in it, one of which calls the other."""
    source = Path(unskew.__file__).parent
    package = tmp_path / "copy" / "unskew"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "kernels" / "probe_called.py").write_text(_CALLED.format(value=1))
    (package / "kernels" / "probe_caller.py").write_text(_CALLER)
    return package


def run(package: Path, show: str = _SHOW, **environment: str) -> tuple[int, int, Path]:
    """The kernel's result, how often it came from the cache, and where the cache is."""
    settings = {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    settings["NUMBA_CACHE_DIR"] = ""
    command = [sys.executable, "-c", show]
    done = subprocess.run(
        command,
        env={**os.environ, **settings, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result, hits, folder = done.stdout.split()
    return int(result), int(hits), Path(folder)


def test_an_edit_of_an_imported_file_is_noticed(copy: Path) -> None:
    result, hits, folder = run(copy)
    assert (result, hits) == (2, 0)
    assert folder.parent == copy / "__pycache__"
    assert run(copy) == (2, 1, folder)
    called = copy / "kernels" / "probe_called.py"
    before = called.stat()
    called.write_text(_CALLED.format(value=5))
    os.utime(called, ns=(before.st_atime_ns, before.st_mtime_ns))
    result, hits, other = run(copy)
    assert (result, hits) == (6, 0)
    assert other != folder
    called.write_text(_CALLED.format(value=1))
    assert run(copy) == (2, 1, folder)


def test_the_cache_moves_to_where_it_can_be_written(copy: Path, tmp_path: Path) -> None:
    (copy / "__pycache__").write_text("a file, so that no folder can be made here")
    place = tmp_path / "home"
    result, _, folder = run(copy, XDG_CACHE_HOME=str(place))
    assert result == 2
    assert folder.parent == place / "unskew"
    chosen = tmp_path / "chosen"
    assert run(copy, NUMBA_CACHE_DIR=str(chosen))[2].parent == chosen
    assert run(copy, NUMBA_CACHE_DIR=str(copy / "__pycache__"))[0] == 2


def test_only_the_folders_used_last_are_kept(copy: Path) -> None:
    place = copy / "__pycache__"
    for age in range(18):
        old = place / f"kernels-{age}"
        old.mkdir(parents=True)
        os.utime(old, (1000 - age, 1000 - age))
    folder = run(copy)[2]
    kept = {path.name for path in place.glob("kernels-*")}
    assert kept == {folder.name, *(f"kernels-{age}" for age in range(15))}


def test_a_user_without_a_home_is_no_error(copy: Path) -> None:
    homeless = "from pathlib import Path\ndef home():\n    raise RuntimeError\nPath.home = home\n"
    assert run(copy, homeless + _SHOW)[2].parent.name == "__pycache__"


def test_a_cache_that_vanishes_while_in_use_is_no_error(copy: Path) -> None:
    show = _SHOW.replace("print(", "import shutil; shutil.rmtree(cache_folder())\nprint(", 1)
    show = show.replace("print(", "cache_folder().write_text('in the way')\nprint(", 1)
    assert run(copy, show)[0] == 2
