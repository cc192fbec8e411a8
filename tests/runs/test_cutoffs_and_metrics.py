"""Cut-offs and metrics of one's own, and the ranks that a run keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import unskew
from conftest import cut_down, run_unskew
from unskew.evaluation import per_user
from unskew.types import Interactions, UnskewError


def first(ranks: Any, items: Any) -> float:
    assert len(ranks) == len(items)
    return float(ranks.min() == 1)


@pytest.fixture(scope="module")
def small(demo_data: Interactions) -> Interactions:
    return cut_down(demo_data, 60, 60)


def test_free_cutoffs_and_own_metrics(tmp_path: Path, small: Interactions) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    options: dict[str, Any] = {"k": (1, 30), "metrics": {"first": first}, "rounds": 2}
    result = unskew.fit("fedmf", small, out=folders[0], **options)
    assert {name.partition("@")[2] for name in result.metrics} == {"1", "10", "30", ""}
    assert result.metrics["first"] == result.metrics["hr@1"]
    plain = unskew.fit("fedmf", small, rounds=2)
    assert plain.metrics["ndcg@10"] == result.metrics["ndcg@10"]
    unskew.fit("fedmf", small, out=folders[1], dim=4, **options)
    assert len(unskew.compare(*folders, metric="first").to_frame()) == 2
    # The ranks that are kept give the metrics again.
    ranks = pl.read_parquet(folders[0] / "seed-0/ranks.parquet")
    best = ranks.filter((pl.col("round") == "best") & (pl.col("ranking") == "all"))
    assert best["user"].to_list() == list(result.split.user_ids)
    again = per_user(best["rank"].to_numpy(), np.arange(len(best) + 1), (30,))
    assert again["ndcg@30"].mean() == pytest.approx(result.metrics["ndcg@30"])


def test_a_metric_that_fails_is_named(small: Interactions) -> None:
    with pytest.raises(UnskewError, match=r"The metric broken fails for ranks .*IndexError"):
        unskew.fit("fedmf", small, rounds=1, metrics={"broken": lambda ranks, items: items[99]})


def test_cutoffs_on_the_command_line(tmp_path: Path) -> None:
    rows = "".join(f"{u},{(u * i + i) % 11}\n" for u in range(12) for i in range(1, 6))
    (tmp_path / "f.csv").write_text("user,item\n" + rows)
    run = ["run", "--data", "f.csv", "--method", "fedmf", "--rounds", 1, "--out", "r"]
    run_unskew(*run, "--k", "1,3", cwd=tmp_path)
    columns = pl.read_parquet(tmp_path / "r/seed-0/users.parquet").columns
    assert {"hr@1", "ndcg@3", "map@10"} <= set(columns)
    assert "hr@5" not in columns
    run_unskew("resume", "r", cwd=tmp_path)
    for wrong in ("0", "a,b", str(2**63)):
        run_unskew("run", "--k", wrong, cwd=tmp_path, expect=2)
