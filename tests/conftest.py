"""Shared by several test folders: small federations, the command as a process, a relative error,
and a fixture that restores the number of threads."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Browser, chromium
from unskew import data
from unskew.evaluation import prepare
from unskew.kernels import get_threads, set_threads
from unskew.types import Interactions, Split


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say when the tests that compare with PyTorch were skipped, and how to run them."""
    if find_spec("torch") is None:
        terminalreporter.write_line(
            "PyTorch is not installed: tests that compare with it were skipped. To run them, "
            "`.venv/bin/pip install torch==2.13.0` and test again."
        )


def cut_down(interactions: Interactions, n_users: int, n_items: int) -> Interactions:
    """The rows of the first users with the items that most users have."""
    popularity = np.bincount(interactions.items, minlength=len(interactions.item_ids))
    popular = np.argsort(-popularity, kind="stable")[:n_items]
    keep = (interactions.users < n_users) & np.isin(interactions.items, popular)
    timestamps = interactions.timestamps
    assert timestamps is not None
    return replace(
        interactions,
        users=interactions.users[keep],
        items=interactions.items[keep],
        ratings=None if interactions.ratings is None else interactions.ratings[keep],
        timestamps=timestamps[keep],
        min_user_rows=5,
    )


def unskew_command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "unskew", *map(str, arguments)]


def run_unskew(*arguments: Any, cwd: Path, expect: int = 0, columns: int = 200) -> tuple[str, str]:
    """Run the command in this process, in the folder ``cwd`` and on a screen of so many columns,
    and check its exit code; returns its stdout and stderr. Tests that kill it start a process."""
    from unskew.cli import _output, main

    out, err, threads = io.StringIO(), io.StringIO(), get_threads()
    widths = {console: console.width for console in (_output.stdout, _output.stderr)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["unskew", *map(str, arguments)])
        patch.setenv("COLUMNS", str(columns))
        patch.chdir(cwd)
        for console in widths:
            console.width = columns
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
            code: Any = 0
        except SystemExit as end:
            code = end.code or 0
        finally:
            set_threads(threads)
            for console, width in widths.items():
                console.width = width
    assert code == expect, (code, out.getvalue(), err.getvalue())
    return out.getvalue(), err.getvalue()


def relative_error(ours: Any, theirs: Any) -> float:
    """The norm of the difference, relative to the norm of ``theirs``."""
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert a.shape == b.shape
    assert np.isfinite(a).all()
    return float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0))


@pytest.fixture(scope="session")
def demo_data() -> Interactions:
    return data.load("demo")


@pytest.fixture(scope="session")
def tiny_interactions(demo_data: Interactions) -> Interactions:
    """Some thirty users, sixty items."""
    return cut_down(demo_data, 60, 60)


@pytest.fixture(scope="session")
def tiny_split(tiny_interactions: Interactions) -> Split:
    return prepare(tiny_interactions)


@pytest.fixture(scope="session")
def small_split(demo_data: Interactions) -> Split:
    """Large enough to learn from: some hundred users, two hundred items."""
    return prepare(cut_down(demo_data, 150, 200))


@pytest.fixture
def threads_restored() -> Iterator[None]:
    before = get_threads()
    yield
    set_threads(before)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A page in headless Chromium; without Chromium, the test is skipped."""
    program = chromium()
    if program is None:
        pytest.skip("chromium is not installed")
    opened = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()
