"""Generated data of any size: the sizes that were asked for, the same bytes, something to learn."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from unskew import data
from unskew.cli import main
from unskew.data import _generate
from unskew.evaluation import prepare
from unskew.types import UnskewError

SHA256 = "c9aa2ce3d16328f80328a82b48d611e6decaec2b82284437b1a786066a4a79f8"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data.generate(tmp_path_factory.mktemp("made") / "made.csv", 2_500, 800, 90_000, seed=3)


def test_the_bytes_are_pinned(made: Path) -> None:
    assert hashlib.sha256(made.read_bytes()).hexdigest() == SHA256


def test_sizes_are_those_asked_for_and_pairs_differ(made: Path) -> None:
    frame = pl.read_csv(made)
    assert frame.columns == ["user", "item", "timestamp"]
    assert frame.height == 90_000
    assert frame["user"].unique().sort().to_list() == list(range(2_500))
    assert frame["item"].is_between(0, 799).all()
    assert frame.n_unique(["user", "item"]) == frame.height
    assert frame.sort("user", "timestamp", maintain_order=True).equals(frame)
    counts = np.sort(frame["user"].value_counts()["count"].to_numpy())
    assert counts[-1] > 10 * counts[0], "a heavy tail"


def test_parts_and_formats_change_nothing(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_generate, "_PART_ROWS", 7_000)
    rows: list[tuple[int, int | None]] = []
    path = data.generate(
        tmp_path / "made.parquet", 2_500, 800, 90_000, 3, lambda *at: rows.append(at)
    )
    assert pl.read_parquet(path).cast(pl.Int64).equals(pl.read_csv(made))
    assert len(rows) > 10
    assert rows[-1] == (90_000, 90_000)


def test_another_seed_gives_other_rows(made: Path, tmp_path: Path) -> None:
    other = pl.read_csv(data.generate(tmp_path / "other.csv", 2_500, 800, 90_000, seed=4))
    assert (other["item"] == pl.read_csv(made)["item"]).mean() < 0.1


@pytest.mark.parametrize("sizes", [(5, 4, 20), (7, 1, 7), (3, 50, 3), (2, 40, 79)])
def test_extreme_sizes(tmp_path: Path, sizes: tuple[int, int, int]) -> None:
    users, items, rows = sizes
    frame = pl.read_csv(data.generate(tmp_path / "few.csv", users, items, rows))
    assert frame.n_unique(["user", "item"]) == frame.height == rows
    assert frame["user"].n_unique() == users


def test_neighbours_predict_better_than_popularity(made: Path) -> None:
    split = prepare(data.load(made))
    seen = np.zeros((split.n_users, split.n_items))
    for user in range(split.n_users):
        seen[user, split.train.of(user)] = 1.0
    inverse = np.linalg.inv(seen.T @ seen + 300.0 * np.eye(split.n_items))
    ridge = -inverse / np.diag(inverse)
    np.fill_diagonal(ridge, 0.0)

    def hit_rate(scores: Any) -> float:
        scores = np.where(seen > 0, -np.inf, scores)
        held_out = scores[np.arange(split.n_users), split.test.items]
        return float(((scores > held_out[:, None]).sum(axis=1) < 10).mean())

    assert hit_rate(seen @ ridge) > 1.5 * hit_rate(seen.sum(axis=0) + np.zeros_like(seen))


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--users", "40", "--items", "30", "--rows", "500"]
    out = tmp_path / "folder" / "made.parquet"
    monkeypatch.setattr("sys.argv", ["unskew", "data", "make", *sizes, "--out", str(out), "--json"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["rows"] == 500
    assert shown["bytes"] == out.stat().st_size


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("x.csv", (0, 5, 5), "0 users"),
        ("x.csv", (5, 0, 5), "0 items"),
        ("x.csv", (5, 5, 4), "too few"),
        ("x.csv", (5, 5, 26), "25 different pairs"),
        ("x.txt", (5, 5, 9), "must end in .csv or .parquet"),
        ("nowhere.txt/x.csv", (5, 5, 9), "cannot be written"),
    ],
)
def test_what_cannot_be_made(
    tmp_path: Path, name: str, sizes: tuple[int, int, int], said: str
) -> None:
    (tmp_path / "nowhere.txt").touch()
    with pytest.raises(UnskewError) as refused:
        data.generate(tmp_path / name, *sizes)
    assert said in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nowhere.txt"]


def test_a_seed_that_is_too_large(tmp_path: Path) -> None:
    with pytest.raises(UnskewError, match="The seed"):
        data.generate(tmp_path / "x.csv", 5, 5, 9, seed=2**63)
