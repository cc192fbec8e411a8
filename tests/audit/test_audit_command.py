"""`unskew audit privacy` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import run_unskew


@pytest.mark.slow
def test_rows_are_kept_and_a_picture_is_made_of_them(tmp_path: Path) -> None:
    options = ("--method", "fedmf", "--rounds", 2, "--users", 12, "--set", "local_epochs=1")
    files = ("--rows", "rows.jsonl", "--picture", "privacy.svg")
    stdout, _ = run_unskew("audit", "privacy", *options, "--noise", "0,1", *files, cwd=tmp_path)
    assert "Popularity alone" in stdout
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["noise"] for row in rows] == [0.0, 1.0]
    assert "--noise 1" in rows[1]["command"]
    assert "local_epochs=1" in rows[1]["command"]
    assert (tmp_path / "privacy.svg").read_text().startswith("<svg")
    again = run_unskew("audit", "privacy", *options, "--noise", "0,1", *files, cwd=tmp_path)
    assert "round" not in again[1], "no row is made twice"
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_a_run_is_audited_with_its_own_noise(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    settings = ("--method", "fedmf", "--rounds", 2, "--set", "local_epochs=1")
    private = ("--ldp-epsilon", 8, "--ldp-clip", 1, "--ldp-norm", "l2")
    run_unskew("run", *settings, *private, "--out", "run", cwd=tmp_path)
    stdout, _ = run_unskew("audit", "privacy", "run", "--users", 10, "--json", cwd=tmp_path)
    (row,) = json.loads(stdout)["audits"]
    assert row["ldp"]["epsilon"] == 8
    assert row["privacy"]["local_guarantee"]["holds"]
    assert row["noise"] == row["privacy"]["noise"] > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("no-such-run",), "neither"),
        (("ease",), "not federated"),
        (("fedmf", "--noise", "much"), "--noise"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: Any, words: str, tmp_path: Path) -> None:
    _, stderr = run_unskew("audit", "privacy", *arguments, cwd=tmp_path, expect=2)
    assert words in stderr
    assert len(stderr.strip().splitlines()) == 1
