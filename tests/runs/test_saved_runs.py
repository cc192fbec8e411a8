"""Run folders met again: with other data than they began with, or with files lost or damaged."""

import gc
import json

import pytest

from unskew.engine import State
from unskew.files import write_json
from unskew.runs import (
    RunSpec,
    open_recommender,
    read_result,
    read_rounds,
    read_spec,
    read_users,
    run,
)
from unskew.runs.folder import RunFiles
from unskew.types import UnskewError


def write_ratings(path, n_users=12, n_items=20):
    """Six items for each user, every user other ones."""
    rows = [(u, (u * 3 + k) % n_items, 1_600_000_000 + k) for u in range(n_users) for k in range(6)]
    lines = [f"u{user},i{item},{at}" for user, item, at in rows]
    path.write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")


def contents(folder):
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def saved(tmp_path):
    write_ratings(tmp_path / "own.csv")
    spec = RunSpec("fedmf", {"rounds": 2}, str(tmp_path / "own.csv"))
    run(spec, spec.load(), out=tmp_path / "run")
    return spec, tmp_path / "run"


def test_a_saved_run_has_one_seed_in_memory_and_recommends_with_all(tmp_path):
    write_ratings(tmp_path / "own.csv")
    spec = RunSpec("fedmf", {"rounds": 2}, str(tmp_path / "own.csv"), seeds=(0, 1, 2))
    in_memory = run(spec, spec.load())
    gc.collect()
    before = [id(o) for o in gc.get_objects() if type(o) is State]
    most = []

    def count(*_):
        there = [o for o in gc.get_objects() if type(o) is State and id(o) not in before]
        most.append(len(there))

    saved = run(spec, spec.load(), out=tmp_path / "run", on_round=count)
    assert most == [1] * 6
    for seed in spec.seeds:
        wanted = in_memory.recommender(seed).recommend_all(5)
        assert saved.recommender(seed).recommend_all(5).equals(wanted)
    assert not saved.recommender(0).recommend_all(5).equals(wanted)


def without_a_user(lines):
    return [line for line in lines if not line.startswith("u3,")]


def with_two_items_in_the_other_order(lines):
    """The same users, items and held-out rows: only the order of training differs."""
    first = [at for at, line in enumerate(lines) if line.startswith("u3,")][:2]
    a, b = (lines[at].rsplit(",", 1) for at in first)
    lines[first[0]], lines[first[1]] = f"{a[0]},{b[1]}", f"{b[0]},{a[1]}"
    return lines


@pytest.mark.parametrize("change", [without_a_user, with_two_items_in_the_other_order])
def test_other_data_is_refused_and_nothing_is_rewritten(saved, change):
    spec, folder = saved
    before = contents(folder)
    path = folder.parent / "own.csv"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    with pytest.raises(UnskewError, match=r"not what the run in .* was trained on"):
        run(spec, spec.load(), out=folder, resume=True)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("lost", "use"),
    [
        ("seed-0/rounds.jsonl", read_rounds),
        ("seed-0/users.parquet", read_users),
        ("users.parquet", open_recommender),
        ("items.parquet", open_recommender),
        ("run.json", read_spec),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut short", "another file"])
def test_a_file_that_cannot_be_used_is_named(saved, lost, use, damage):
    _, folder = saved
    path = folder / lost
    whole = path.read_bytes()
    path.unlink()
    if damage == "cut short":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "another file":
        path.write_bytes(b"\xff not what it was\n")
    with pytest.raises(UnskewError, match=path.name):
        use(folder)


@pytest.mark.parametrize("lost", ["metrics", "protocol"])
def test_a_result_of_other_fields_is_named(saved, lost):
    """As another version of the package might write it."""
    _, folder = saved
    path = folder / "result.json"
    result = json.loads(path.read_text())
    del result[lost], result["checksum"]
    write_json(path, result)
    RunFiles(folder).add("result.json")
    with pytest.raises(UnskewError, match=rf"result\.json is not a whole result .*'{lost}'"):
        read_result(folder)
