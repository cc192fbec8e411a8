"""The command as a user meets it: real processes, real files, stdout and stderr as they are."""

import json
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path

import polars as pl
import pytest

from conftest import run_unskew

unskew = partial(run_unskew, columns=80)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def finished(place):
    """An undisturbed run of two seeds that several tests look at."""
    method = ("--method", "pfedclr", "--set", "local_epochs=2")
    arguments = ("run", *method, "--rounds", 6, "--seeds", "0,1")
    stdout, _ = unskew(*arguments, "--out", "run", "--json", cwd=place)
    return json.loads(stdout)


def test_the_command_says_its_version(place):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    stdout, stderr = unskew("--version", cwd=place)
    assert (stdout, stderr) == (f"unskew {project['project']['version']}\n", "")


def test_a_run_that_diverged_says_so(place):
    arguments = ("run", "--method", "gpfedrec", "--rounds", 2, "--out", "diverged", "--json")
    stdout, stderr = unskew(*arguments, "--set", "learning_rate=3", cwd=place)
    assert json.loads(stdout)["rounds"] == 2
    assert "diverged: with seed 0 the loss is not a number in round 2" in " ".join(stderr.split())
    refused = (*arguments[:-2], "never", "--set", "learning_rate=1e9")
    _, stderr = unskew(*refused, cwd=place, expect=2)
    assert "returned NaN or infinity" in stderr
    assert "rate that is too high" in stderr


def test_an_upload_too_large_to_be_added_exactly_is_one_sentence(place):
    arguments = ("run", "--method", "pfedrec", "--rounds", 2, "--out", "large")
    _, stderr = unskew(*arguments, "--set", "learning_rate=30", cwd=place, expect=2)
    assert "An upload has a value that times its weight is 2.68e+08 or more" in stderr


def test_run_prints_one_json_object_with_the_documented_keys(finished, place):
    wanted = {
        "method": "pfedclr",
        "data": "demo",
        "protocol": "leak-free",
        "seeds": [0, 1],
        "rounds": 6,
        "run_dir": "run",
    }
    assert {key: finished[key] for key in wanted} == wanted
    for part in ("metrics", "last_round", "sampled99"):
        for metric in ("hr@10", "ndcg@10"):
            figures = finished[part][metric]
            assert len(figures["values"]) == 2
            assert figures["mean"] == pytest.approx(sum(figures["values"]) / 2)
            assert figures["std"] == pytest.approx(
                abs(figures["values"][0] - figures["values"][1]) / 2**0.5
            )
    assert finished["peak_rss_mb"] > 50
    assert finished["seconds_per_round"] > 0
    # A client downloads the whole table of 1,500 items in 16 float32.
    assert finished["bytes_down"] == 1500 * 16 * 4
    assert 0 < finished["bytes_up"] < finished["bytes_down"]
    assert len(finished["model_sha256"]) == 64
    assert json.loads((place / "run" / "result.json").read_text())["metrics"] == finished["metrics"]


def test_the_run_folder_holds_rows_per_round_and_values_per_user(finished, place):
    rows = [json.loads(x) for x in (place / "run/seed-1/rounds.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5, 6]
    users = pl.read_parquet(place / "run/seed-1/users.parquet")
    best = users.filter((pl.col("round") == "best") & (pl.col("ranking") == "all"))
    assert best["ndcg@10"].mean() == pytest.approx(finished["metrics"]["ndcg@10"]["values"][1])
    listed = json.loads((place / "run/manifest.json").read_text())["files"]
    everything = [path for path in (place / "run").rglob("*") if path.is_file()]
    files = {str(path.relative_to(place / "run")) for path in everything}
    kept = {name for name in files if "/state/" not in name and not name.startswith("track")}
    assert {*listed, "manifest.json"} == kept | {f"seed-{n}/state/current.json" for n in (0, 1)}
    checkpoints = [
        json.loads(path.read_text()) for path in (place / "run/seed-1/state").glob("*.json")
    ]
    held = {name for checkpoint in checkpoints for name in checkpoint["files"]}
    assert held == {path.name for path in (place / "run/seed-1/state").glob("*.safetensors")}


def test_a_config_file_says_the_same_as_options(finished, place):
    (place / "same.toml").write_text(
        'method = "pfedclr"\ndata = "demo"\nseeds = [0, 1]\n'
        "[settings]\nrounds = 6\nlocal_epochs = 2\n"
    )
    stdout, _ = unskew("run", "--config", "same.toml", "--out", "again", "--json", cwd=place)
    assert json.loads(stdout)["model_sha256"] == finished["model_sha256"]


def test_threads_do_not_change_the_model(finished, place):
    stdout, _ = unskew(
        "run", "--config", "same.toml", "--threads", 1, "--out", "one", "--json", cwd=place
    )
    assert json.loads(stdout)["model_sha256"] == finished["model_sha256"]


def _kill_after_round(folder: Path, round: int, process: subprocess.Popen) -> None:
    current = folder / "seed-0" / "state" / "current.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if current.exists() and json.loads(current.read_text())["last"] >= round:
            break
        time.sleep(0.01)
    assert process.poll() is None, "the run ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.slow
def test_killed_three_times_and_resumed_ends_with_the_same_bits(place):
    spec = ("--rounds", "60", "--set", "local_epochs=2", "--method", "fedmf")
    whole, _ = unskew("run", *spec, "--out", "whole", "--json", cwd=place)
    command = [sys.executable, "-m", "unskew"]
    quiet = {"cwd": place, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, "run", *spec, "--out", "killed"], **quiet)
    _kill_after_round(place / "killed", 5, process)
    for round in (15, 25):
        process = subprocess.Popen([*command, "resume", "killed"], **quiet)
        _kill_after_round(place / "killed", round, process)
    _, message = unskew("recommend", "killed", "--user", "nobody", cwd=place, expect=2)
    assert "no user" in message
    _, message = unskew("compare", "killed", cwd=place, expect=2)
    assert "unskew resume killed" in message
    resumed, _ = unskew("resume", "killed", "--json", cwd=place)
    for key in ("model_sha256", "metrics", "last_round", "best_rounds"):
        assert json.loads(resumed)[key] == json.loads(whole)[key]


def test_interrupting_says_how_to_go_on(place):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "unskew",
            "run",
            "--method",
            "fedmf",
            "--rounds",
            "500",
            "--out",
            "stopped",
        ],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    current = place / "stopped/seed-0/state/current.json"
    deadline = time.monotonic() + 120
    while not current.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "unskew resume stopped" in stderr
    assert "Traceback" not in stderr


def test_compare_pairs_users_with_the_first_run(finished, place):
    unskew("run", "--method", "fedmf", "--rounds", 6, "--out", "fedmf", cwd=place)
    shutil.copytree(place / "run", place / "twin")
    stdout, _ = unskew("compare", "run", "fedmf", "twin", "--json", cwd=place)
    first, fedmf, again = json.loads(stdout)["runs"]
    assert "p_value" not in first
    gap = fedmf["ndcg@10"]["mean"] - first["ndcg@10"]["mean"]
    assert fedmf["difference"] == pytest.approx(gap, abs=1e-9)
    assert fedmf["interval"][0] <= gap <= fedmf["interval"][1]
    assert again["difference"] == 0
    assert again["p_value"] == 1
    unskew("run", "--protocol", "paper", "--rounds", 1, "--out", "paper", cwd=place)
    _, message = unskew("compare", "run", "paper", cwd=place, expect=2)
    assert "same footing" in message


def test_recommendations_have_titles_and_leave_out_what_the_user_had(finished, place):
    had = pl.read_parquet(place / "run/users.parquet").row(0, named=True)
    items = pl.read_parquet(place / "run/items.parquet")
    stdout, _ = unskew("recommend", "run", "--user", had["user"], "-k", 5, "--json", cwd=place)
    found = json.loads(stdout)["recommendations"]
    labels = items["item"].to_list()
    assert len(found) == 5
    assert not {r["item"] for r in found} & {labels[i] for i in had["seen"]}
    assert found[0]["title"] == items["title"][labels.index(found[0]["item"])]
    assert [r["score"] for r in found] == sorted((r["score"] for r in found), reverse=True)

    unskew("recommend", "run", "--all", "-k", 5, "--out", "all.parquet", cwd=place)
    everyone = pl.read_parquet(place / "all.parquet")
    assert len(everyone) == 5 * 1000
    assert everyone.filter(pl.col("user") == had["user"])["item"].to_list() == [
        r["item"] for r in found
    ]


def test_a_newcomer_is_folded_in_on_the_spot(finished, place):
    items = pl.read_parquet(place / "run/items.parquet")["item"].to_list()[:3]
    stdout, _ = unskew("recommend", "run", "--items", ",".join(items), "--json", cwd=place)
    found = [r["item"] for r in json.loads(stdout)["recommendations"]]
    assert len(found) == 10
    assert not set(found) & set(items)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--method", "fedx"), "There is no method"),
        (("run", "--protocol", "honest"), "There is no protocol"),
        (("run", "--set", "dims=3"), 'has no setting "dims"'),
        (("run", "--set", "dim=three"), "must be a whole number"),
        (("run", "--set", "dim"), "must look like key=value"),
        (("run", "--rounds", "0"), "rounds = 0 must be"),
        (("run", "--seeds", "a"), "must look like 0,1,2"),
        (("run", "--config", "none.toml"), "There is no config file"),
        (("run", "--method", "fedmf", "--preset", "ml-100k"), "fedmf has no preset"),
        (("run", "--data", "nowhere.csv"), "nowhere.csv"),
        (("run", "--out", "run"), "already holds a run"),
        (("resume", "nowhere"), "There is no"),
        (("recommend", "run"), "Give one of"),
        (("recommend", "run", "--items", "x"), 'no item "x"'),
        (("recommend", "run", "--all"), "needs --out"),
        (("compare", "run", "--metric", "luck"), "There is no metric"),
        (("audit", "leak", "--method", "fedx"), "There is no method"),
    ],
)
def test_bad_input_gets_one_sentence(finished, place, arguments, sentence):
    stdout, stderr = unskew(*arguments, cwd=place, expect=2)
    assert stdout == ""
    assert sentence in stderr
    assert "Traceback" not in stderr
    assert stderr.count("\n") == 1


def test_a_damaged_checkpoint_is_named(finished, place):
    unskew("run", "--rounds", 2, "--out", "hurt", cwd=place)
    state = place / "hurt/seed-0/state"
    name = json.loads((state / "current.json").read_text())["best_files"]["blocks"][-1]
    (state / name).write_bytes((state / name).read_bytes()[:-1])
    _, stderr = unskew("recommend", "hurt", "--all", "--out", "x.csv", cwd=place, expect=2)
    assert f"{name} has changed since it was written" in stderr
    assert "`unskew resume hurt` goes on from the last whole checkpoint" in stderr
    assert not (place / "x.csv").exists()


def test_your_own_file_with_mapped_columns(place):
    demo = __import__("unskew").load("demo")
    pl.DataFrame(
        {
            "who": [demo.user_ids[u] for u in demo.users],
            "what": [demo.item_ids[i] for i in demo.items],
            "when": demo.timestamps,
        }
    ).write_csv(place / "own.csv")
    mapped = ("--columns", "user=who,item=what,timestamp=when")
    stdout, _ = unskew("data", "info", "own.csv", *mapped, "--json", cwd=place)
    assert json.loads(stdout)["n_users"] == 1000
    own, _ = unskew("run", "--data", "own.csv", *mapped, "--rounds", 2, "--json", cwd=place)
    named, _ = unskew("run", "--data", "demo", "--rounds", 2, "--json", cwd=place)
    assert json.loads(own)["metrics"] == json.loads(named)["metrics"]


def test_tables_fit_eighty_columns(finished, place):
    for arguments in (("methods",), ("data", "list"), ("data", "info", "demo"), ("compare", "run")):
        stdout, _ = unskew(*arguments, cwd=place)
        assert max(map(len, stdout.splitlines())) <= 80, arguments


@pytest.mark.slow
def test_the_leak_audit_flags_paper_and_passes_leak_free(place):
    stdout, _ = unskew("audit", "leak", "--method", "pfedclr", "--json", cwd=place)
    verdicts = {audit["protocol"]: audit for audit in json.loads(stdout)["audits"]}
    assert verdicts["paper"]["leaks"]
    assert verdicts["paper"]["last_round"]["hr@10"] > 0.9
    assert not verdicts["leak-free"]["leaks"]
    assert verdicts["leak-free"]["last_round"]["low"] <= 0.1
    unskew("audit", "leak", "--protocol", "paper", "--set", "rounds=60", cwd=place, expect=1)


def test_a_preset_gives_settings_that_set_overrides(place):
    run = ("run", "--method", "fedrap", "--preset", "ml-100k", "--rounds", 1, "--json")
    stdout, _ = unskew(*run, cwd=place)
    assert json.loads(stdout)["settings"]["learning_rate"] == 2000
    stdout, _ = unskew(*run, "--set", "learning_rate=1000", cwd=place)
    assert json.loads(stdout)["settings"]["learning_rate"] == 1000


@pytest.mark.slow
def test_the_demo_ends_with_a_table_and_a_report(place):
    stdout, _ = unskew("demo", "--rounds", 2, "--out", "demo", cwd=place)
    for name in ("pfedclr", "fedmf", "fedrefit", "fednext", "popularity"):
        assert name in stdout
    page = (place / "demo" / "report.html").read_text()
    assert str(place / "demo" / "report.html") in stdout.replace("\n", "")
    assert "popularity" in page
    assert '<a href="recommend.html">' in page
    assert "openModel" in (place / "demo" / "recommend.html").read_text()
    again, _ = unskew("demo", "--rounds", 2, "--out", "demo", "--json", cwd=place)
    runs = json.loads(again)["runs"]
    assert [run["protocol"] for run in runs] == ["paper", *["leak-free"] * 5]


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, unskew; "
        "print([m for m in ('numba', 'polars', 'scipy', 'typer', 'flwr') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
