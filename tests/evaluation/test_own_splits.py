"""Splits of one's own: tables, files and folders; exported splits come back the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import unskew
from conftest import cut_down, run_unskew
from unskew.data import load_split, write_split
from unskew.evaluation import PROTOCOLS, prepare, split_frames
from unskew.types import Interactions, Split, UnskewError

TRAIN = [("a", 1), ("a", 2), ("b", 2), ("b", 3), ("c", 1)]
VALIDATION = [("a", 3), ("b", 1)]
TEST = [("a", 4), ("b", 4)]


def arrays(split: Split) -> list[Any]:
    lists = (split.train, split.seen, split.excluded, split.validation, split.test)
    flat = [array.tolist() for ragged in lists for array in ragged]
    return [list(split.user_ids), list(split.item_ids), *flat, split.sampled.tolist()]


def test_three_tables_are_a_split() -> None:
    split = Split.from_frames(TRAIN, VALIDATION, TEST, items=[3, 4, 1, 2])
    assert list(split.item_ids) == ["3", "4", "1", "2"]
    assert list(split.user_ids) == ["a", "b", "c"]
    assert split.train.counts().tolist() == [2, 2, 1]
    assert split.test.items.tolist() == [1, 1]
    assert split.validation.items.tolist() == [0, 2]
    assert any("2 validation and 2 test rows" in note for note in split.notes)
    result = unskew.fit("fedmf", split, rounds=2)
    assert result.metrics["hr@50"] == 1.0
    assert len(result.recommend("c", 3)) == 3


def test_without_validation_the_last_round_counts() -> None:
    split = unskew.split_from_frames(TRAIN, None, [("a", 3), ("b", 1)])
    assert unskew.fit("fedmf", split, rounds=3).outcomes[0].best_round == 3


def test_overlap_and_unknown_items_get_a_sentence() -> None:
    with pytest.raises(UnskewError, match=r"User a and item 1 .* train and in test: remove"):
        unskew.split_from_frames(TRAIN, VALIDATION, [("a", 1)])
    with pytest.raises(UnskewError, match="Item '4' of the test rows is not in training"):
        unskew.split_from_frames(TRAIN, VALIDATION, TEST)
    split = unskew.split_from_frames(TRAIN, VALIDATION, TEST, skip_bad_rows=True)
    assert any("dropped 2 held-out rows" in note for note in split.notes)
    with pytest.raises(UnskewError, match="needs test or validation"):
        unskew.split_from_frames(TRAIN)
    with pytest.raises(UnskewError, match="already split"):
        unskew.split_from_frames(TRAIN, VALIDATION, protocol="time")
    alone = unskew.split_from_frames(TRAIN, VALIDATION, [("z", 1)])
    assert "1 users without a training row left out" in alone.notes


@pytest.mark.parametrize(
    ("protocol", "format"),
    [
        ("leak-free", "parquet"),
        *((protocol, format) for protocol in PROTOCOLS for format in ("csv", "recbole")),
    ],
)
def test_an_exported_split_comes_back(
    tmp_path: Path, demo_data: Interactions, protocol: str, format: Any
) -> None:
    small = cut_down(demo_data, 60, 200)
    original = prepare(small, protocol)
    write_split(split_frames(small, protocol), tmp_path, format, "demo")
    again = unskew.load(tmp_path)
    kept = protocol if protocol == "paper" else "leak-free"
    assert arrays(prepare(again, kept)) == arrays(original)
    assert again.titles == list(original.titles or ())


def test_the_ratio_holds_out_the_latest_tenths(demo_data: Interactions) -> None:
    split = prepare(cut_down(demo_data, 60, 200), "ratio")
    rows = sum(part.counts() for part in (split.train, split.validation, split.test))
    expected = np.maximum(np.floor(rows * 0.1 + 0.5), 1)
    assert split.test.counts().tolist() == split.validation.counts().tolist() == expected.tolist()
    one = prepare(unskew.load([("a", item, 1.0, item) for item in range(10, 23)]), "ratio")
    assert [one.item_ids[item] for item in one.test.items] == ["22"]
    assert [one.item_ids[item] for item in one.validation.items] == ["21"]


def test_a_protocol_object(tmp_path: Path, demo_data: Interactions) -> None:
    rules = unskew.EvaluationProtocol(
        "halves", True, "ratio", "training", True, candidates=20, test_share=0.5
    )
    small = cut_down(demo_data, 40, 60)
    result = unskew.fit("fedmf", small, protocol=rules, rounds=2, out=tmp_path / "run")
    assert result.split.test.counts().sum() > 0.4 * len(result.split.train.items)
    assert result.split.sampled.shape[1] == 20
    assert len(unskew.open_run(tmp_path / "run").recommend(result.split.user_ids[0])) == 10
    with pytest.raises(UnskewError, match="name yours otherwise"):
        unskew.fit(
            "fedmf",
            small,
            protocol=unskew.EvaluationProtocol("paper", True, "ratio", "training", True),
        )
    with pytest.raises(UnskewError, match="together below 1"):
        unskew.EvaluationProtocol("none", True, "ratio", "training", True, test_share=0.95)


def test_own_files_on_the_command_line(tmp_path: Path, demo_data: Interactions) -> None:
    small = cut_down(demo_data, 40, 60)
    frames = split_frames(small)
    frames["train"].write_csv(tmp_path / "a.csv")
    frames["validation"].write_csv(tmp_path / "b.csv")
    frames["test"].write_csv(tmp_path / "c.csv")
    files = ["--train", "a.csv", "--validation", "b.csv", "--test", "c.csv"]
    run_unskew("run", *files, "--method", "fedmf", "--rounds", 2, "--out", "run", cwd=tmp_path)
    spec = json.loads((tmp_path / "run/run.json").read_text())["spec"]
    assert (spec["train"], spec["data"]) == ("a.csv", "a.csv")
    run_unskew("resume", "run", cwd=tmp_path)
    out, _ = run_unskew("data", "export", *files, "--out", "copy", "--json", cwd=tmp_path)
    assert json.loads(out)["rows"]["train"] == frames["train"].height
    back = pl.read_csv(tmp_path / "copy/test.csv", infer_schema=False)
    assert back["item"].to_list() == frames["test"]["item"].to_list()
    _, said = run_unskew("run", "--test", "c.csv", cwd=tmp_path, expect=2)
    assert "--train FILE" in said
    _, said = run_unskew("run", *files, "--data", "demo2", cwd=tmp_path, expect=2)
    assert "not both" in said
    (tmp_path / "empty").mkdir()
    _, said = run_unskew("run", "--data", "empty", cwd=tmp_path, expect=2)
    assert "folder without train and test files" in said


def test_a_folder_with_two_training_files_is_refused(tmp_path: Path) -> None:
    for name in ("x.train.inter", "y.train.inter", "x.test.inter"):
        (tmp_path / name).write_text("user_id:token\titem_id:token\na\t1\n")
    with pytest.raises(UnskewError, match=r"both x\.train\.inter and y\.train\.inter"):
        unskew.load(tmp_path)


def test_files_and_frames_may_be_mixed(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "user,item,rating\n" + "".join(f"{u},{i},5\n" for u, i in TRAIN)
    )
    mixed = load_split(tmp_path / "t.csv", test=pl.DataFrame({"user": ["a"], "item": [3]}))
    assert (mixed.ratings, mixed.parts.tolist()) == (None, [0] * 5 + [2])
