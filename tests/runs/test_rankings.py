"""Ranked lists in the formats of other tools."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import unskew
from conftest import cut_down, run_unskew
from unskew.runs import write_recommendations
from unskew.types import Interactions


@pytest.fixture(scope="module", params=["leak-free", "sequential"])
def finished(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    demo_data: Interactions,
) -> unskew.Run:
    """Under ``sequential`` the order of a user's items and the validation item matter."""
    folder = tmp_path_factory.mktemp("ranked") / "run"
    method, rounds = ("fedmf", 2) if request.param == "leak-free" else ("fedrefit", 8)
    data = cut_down(demo_data, 60, 60)
    return unskew.fit(method, data, protocol=request.param, rounds=rounds, out=folder)


def test_a_trec_run_scores_as_the_evaluation_did(tmp_path: Path, finished: unskew.Run) -> None:
    arguments = ["recommend", finished.folder, "--all", "-k", 10, "--format", "trec"]
    run_unskew(*arguments, "--out", "r.trec", cwd=tmp_path)
    wanted = {}
    for line in (tmp_path / "r.trec.qrels").read_text().splitlines():
        user, _, item, relevant = line.split()
        wanted[user] = item
        assert relevant == "1"
    gains: dict[str, float] = defaultdict(float)
    for line in (tmp_path / "r.trec").read_text().splitlines():
        user, q0, item, rank, _, tag = line.split()
        assert (q0, tag) == ("Q0", "unskew")
        if wanted[user] == item:
            gains[user] = 1 / math.log2(1 + int(rank))
    assert len(wanted) == finished.split.n_users
    ours = finished.metrics["ndcg@10"]
    assert sum(gains.values()) / len(wanted) == pytest.approx(ours, abs=1e-9)


def test_recommendations_are_written_part_by_part(
    tmp_path: Path, finished: unskew.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has all parts, although no more than one of them is there at a time."""
    recommender, alive = finished.recommender(), list[weakref.ref[object]]()
    wanted = recommender.recommend_all(4)

    class Part(pl.DataFrame):
        pass

    def tables(k: int) -> Iterator[pl.DataFrame]:
        for low in range(0, len(wanted), 40):
            gc.collect()
            assert sum(part() is not None for part in alive) <= 1
            part = Part(wanted[low : low + 40])
            alive.append(weakref.ref(part))
            yield part
            del part

    monkeypatch.setattr(recommender, "tables", tables)
    for name in ("all.csv", "all.parquet"):
        alive.clear()
        assert write_recommendations(recommender, tmp_path / name, 4) == len(wanted)
        assert len(alive) > 3
    assert pl.read_parquet(tmp_path / "all.parquet").equals(wanted)
    assert pl.read_csv(tmp_path / "all.csv", schema_overrides=wanted.schema).equals(wanted)


def test_a_ranx_run_holds_the_same_lists(tmp_path: Path, finished: unskew.Run) -> None:
    arguments = ["recommend", finished.folder, "--all", "-k", 5, "--format", "ranx"]
    run_unskew(*arguments, "--out", "r.json", cwd=tmp_path)
    lists = json.loads((tmp_path / "r.json").read_text())
    held = json.loads((tmp_path / "r.json.qrels").read_text())
    assert lists.keys() == held.keys() == set(finished.split.user_ids)
    assert {len(items) for items in lists.values()} == {5}
    assert all(list(items.values()) == [1] for items in held.values())


def test_what_cannot_be_written_gets_a_sentence(tmp_path: Path, finished: unskew.Run) -> None:
    _, said = run_unskew(
        "recommend", finished.folder, "--user", "x", "--format", "trec", cwd=tmp_path, expect=2
    )
    assert "--format needs --all" in said
    rows = [(f"user {u}", i) for u in range(4) for i in range(5 + u)]
    unskew.fit("popularity", rows, out=tmp_path / "spaces")
    out = ["--all", "--format", "trec", "--out", "x"]
    _, said = run_unskew("recommend", "spaces", *out, cwd=tmp_path, expect=2)
    assert 'The label "user 0" contains white space' in said
