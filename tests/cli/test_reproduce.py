"""Tables made of cells: rows are kept, not made twice, and a failed cell does not stop the rest."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from unskew.paper import EXHIBITS, read_rows


def reproduce(place, *arguments, table="main"):
    return subprocess.run(
        [sys.executable, "-m", "unskew", "reproduce", table, "--seeds", "0", *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        env={**os.environ, "UNSKEW_DATA": str(place)},
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_cells_become_rows_once_and_failures_are_reported(tmp_path):
    cells = ("--methods", "popularity", "--protocol", "paper,leak-free")
    done = reproduce(tmp_path, *cells, "--data", "filmtrust,demo")
    assert done.returncode == 1, done.stderr
    assert "filmtrust" in done.stderr
    assert "failed" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results/main.jsonl").read_text().splitlines()]
    assert [(row["data"], row["protocol"]) for row in rows] == [
        ("demo", "paper"),
        ("demo", "leak-free"),
    ]
    document = (tmp_path / "docs/results.md").read_text()
    for row in rows:
        assert f"{row['metrics']['ndcg@10']['mean']:.3f}" in document
    commands = (tmp_path / "results/commands.txt").read_text().splitlines()
    assert commands == [row["command"] for row in rows]

    assert done.stderr.splitlines()[-3].startswith("2 of 4 failed"), "told again at the end"
    for option in ((), ("--no-run", "--seeds", "3")):
        again = reproduce(tmp_path, *cells, "--data", "demo", *option)
        assert again.returncode == 0
        assert "1/" not in again.stderr
    assert len((tmp_path / "results/main.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_one_method_against_the_others(tmp_path):
    cells = ("--methods", "item-knn,popularity", "--protocol", "leak-free", "--data", "demo")
    reproduce(tmp_path, "--methods", "popularity", *cells[2:])
    done = reproduce(tmp_path, *cells, table="against")
    assert done.returncode == 0, done.stderr
    assert "1/2 item-knn" in done.stderr
    assert "2/2 reproduce against" in done.stderr, "the main table's run serves the comparison"
    row = json.loads((tmp_path / "results/against.jsonl").read_text())
    figures = {
        one["method"]: one["metrics"]["ndcg@10"]["mean"]
        for one in map(json.loads, (tmp_path / "results/main.jsonl").read_text().splitlines())
    }
    assert (row["method"], row["against"], row["seeds_against"]) == ("item-knn", "popularity", [0])
    assert abs(row["ours"] - figures["item-knn"]) < 1e-9
    assert abs(row["theirs"] - figures["popularity"]) < 1e-9
    assert abs(row["difference"] - (row["ours"] - row["theirs"])) < 1e-9
    assert row["interval"][0] <= row["difference"] <= row["interval"][1]
    document = (tmp_path / "docs/results.md").read_text()
    assert f"{row['difference']:+.4f}" in document

    shutil.rmtree(tmp_path / "runs")  # as on a fresh clone: rows, but no per-user values
    reproduce(tmp_path, *cells, table="against")
    assert len((tmp_path / "results/main.jsonl").read_text().splitlines()) == 2, "nothing ran again"


@pytest.mark.slow
def test_every_name_leaves_its_output_quickly_and_apart(tmp_path):
    pytest.importorskip("sklearn")
    cells = ("--quick", "--data", "demo", "--protocol", "leak-free")
    cells += ("--methods", "pfedclr,fedmf")
    done = reproduce(tmp_path, *cells, table="all")
    assert done.returncode == 0, done.stderr
    assert "quick 1/" in done.stderr
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "docs").exists()
    folder = tmp_path / "runs/quick"
    page = (folder / "docs/results.md").read_text()
    assert page.startswith("# Results of a quick run")
    made = [one for one in EXHIBITS.values() if one.name != "speed"]  # `make bench` makes that
    assert [one.title for one in made if f"## {one.title} (quick)" not in page] == []
    charts = {path.stem.partition("-")[0] for path in (folder / "docs/figures").iterdir()}
    assert charts == {
        *("skew", "motivation", "trajectory", "embedding", "uploads"),
        *("convergence", "budget", "efficiency", "rank", "beta"),
    }
    rows = [
        json.loads(line)
        for path in (folder / "results").glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    assert all(row["quick"] for row in rows)
    curves = [row for row in rows if "curves" in row]
    assert {len(row["curves"]["test"]["hr@10"]) for row in curves} == {4, 8}

    again = reproduce(tmp_path, *cells, table="all")
    assert again.returncode == 0
    assert "1/" not in again.stderr, "nothing ran again"


@pytest.mark.slow
def test_a_kill_loses_at_most_the_cell_being_run(tmp_path):
    words = "reproduce main --quick --data demo --methods popularity,item-knn,fedmf,pfedclr"
    command = [sys.executable, "-m", "unskew", *words.split(), "--results", "rows"]
    how = {"cwd": tmp_path, "env": {**os.environ, "UNSKEW_DATA": str(tmp_path)}, "text": True}
    rows = tmp_path / "rows/main.jsonl"
    killed = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, **how)
    deadline = time.monotonic() + 240
    while not (rows.exists() and len(rows.read_bytes()) > 0) and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    told = killed.communicate()[1]
    kept = rows.read_text().splitlines()
    assert killed.returncode == -signal.SIGKILL
    assert len(kept) < 8, "killed before it was through"
    assert len(kept) >= told.count(" min left"), "whatever was reported as done is kept"

    done = subprocess.run(command, capture_output=True, timeout=300, check=False, **how)
    assert done.returncode == 0, done.stderr
    whole = sum(line.endswith("}") for line in kept)
    assert done.stderr.count(" min left") == 8 - whole, "only what has no row is run"
    assert len({row["command"] for row in read_rows(rows, quick=True)}) == 8
