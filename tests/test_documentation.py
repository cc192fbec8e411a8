"""The README and the documentation show commands, names and links that exist."""

from __future__ import annotations

import io
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path

import pytest

import unskew
from unskew.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

GROUPS = {"audit", "data", "deploy", "device"}
"""Commands that have sub-commands."""


def commands_of(page: Path) -> Iterator[str]:
    """Lines of a page's code blocks that call `unskew`, with continued lines joined."""
    for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("unskew "):
                yield line


SHOWN = sorted({command for page in PAGES for command in commands_of(page)})


@cache
def options_of(*command: str) -> frozenset[str]:
    """Options that `unskew COMMAND --help` lists; empty if there is no such command."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(text), redirect_stderr(text):
        patch.setattr(sys, "argv", ["unskew", *command, "--help"])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stopped:
            main()
    if stopped.value.code:
        return frozenset()
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", text.getvalue()))


def unknown_parts(command: str) -> list[str]:
    """The sub-command or the options of a shown command that the command line does not have."""
    words = shlex.split(command, comments=True)[1:]
    name = words[: 2 if words[0] in GROUPS else 1]
    options = options_of(*name)
    if not options:
        return name
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)]
    return [option for option in given if option not in options]


def test_commands_are_found_in_the_pages() -> None:
    assert len(SHOWN) > 30


def test_every_command_shown_exists() -> None:
    wrong = {command: unknown_parts(command) for command in SHOWN}
    assert {command: parts for command, parts in wrong.items() if parts} == {}


def test_an_unknown_option_would_be_noticed() -> None:
    assert unknown_parts("unskew run --no-such-option 3  # comment") == ["--no-such-option"]
    assert unknown_parts("unskew nothing") == ["nothing"]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_outside_the_site_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_reference_has_every_public_name() -> None:
    documented = re.findall(
        r"^::: unskew\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE
    )
    assert sorted(documented) == sorted(unskew.__all__)
    assert all(getattr(unskew, name) for name in documented)


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{VERSION}] - " in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
