"""A package outside the repository, installed with pip, whose methods go through every command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew
from conftest import run_unskew, unskew_command
from unskew.evaluation import prepare
from unskew.methods import create, describe_methods
from unskew.types import Interactions

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[1] / "docs" / "new_method.md"
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "shop-methods"
version = "1.0"

[project.entry-points."unskew.methods"]
shop-mf = "shop_methods.numpy_method:ShopMF"
shop-torch = "shop_methods.torch_method:ShopTorch"
"""
TORCH_METHOD = """
import torch
from unskew.torch import TorchMethod

class Dot(torch.nn.Module):
    def __init__(self, n_items, dim):
        super().__init__()
        self.user = torch.nn.Parameter(torch.randn(dim))
        self.items = torch.nn.Embedding(n_items, dim)

    def forward(self, items):
        return self.items(items) @ self.user

class ShopTorch(TorchMethod):
    name = "shop-torch"
    shared = ("items.weight",)

    def build(self, n_items):
        return Dot(n_items, self.config.dim)
"""
NO_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
METHODS = ["shop-mf", pytest.param("shop-torch", marks=NO_TORCH)]
QUICK = ("--set", "dim=4", "--set", "local_epochs=1", "--set", "participation=0.1")


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package, installed into a folder that is on the path of this and of started processes."""
    source = tmp_path_factory.mktemp("source")
    (source / "shop_methods").mkdir()
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "shop_methods" / "__init__.py").write_text("")
    example = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[0]
    (source / "shop_methods" / "numpy_method.py").write_text(example)
    (source / "shop_methods" / "torch_method.py").write_text(TORCH_METHOD)
    target = tmp_path_factory.mktemp("installed")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    subprocess.run([sys.executable, "-m", "pip", *install, target, source], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(target)
        path = f"{target}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        patch.setenv("PYTHONPATH", path)
        yield target


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def test_the_methods_are_listed_with_their_package() -> None:
    packages = {row["name"]: row["package"] for row in describe_methods()}
    assert packages["shop-mf"] == packages["shop-torch"] == "shop-methods"
    assert packages["fedmf"] == "unskew"


def answer(place: Path, *arguments: Any) -> Any:
    """What a command prints with --json."""
    return json.loads(run_unskew(*arguments, "--json", cwd=place)[0])


def kill_after_round(folder: Path, round: int, process: subprocess.Popen[bytes]) -> None:
    current = folder / "seed-0" / "state" / "current.json"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if current.exists() and json.loads(current.read_text())["last"] >= round:
            break
        time.sleep(0.01)
    assert process.poll() is None, "the run ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("method", METHODS)
def test_every_command(method: str, place: Path) -> None:
    # fit, and run as a process that is killed and resumed by another one.
    settings = {"rounds": 8, "dim": 4, "local_epochs": 1, "participation": 0.1}
    fitted = unskew.fit(method, "demo", **settings)
    folder = f"{method}-run"
    quiet = {"cwd": place, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    start = unskew_command("run", "--method", method, "--rounds", 8, *QUICK, "--out", folder)
    process = subprocess.Popen(start, **quiet)  # type: ignore[call-overload]
    kill_after_round(place / folder, 2, process)
    subprocess.run(unskew_command("resume", folder), **quiet, check=True)  # type: ignore[call-overload]
    resumed = json.loads((place / folder / "result.json").read_text())
    if create(method).exact:
        assert resumed["model_sha256"] == fitted.summary()["model_sha256"]
    figures = {name: one["mean"] for name, one in resumed["metrics"].items()}
    assert figures == pytest.approx(fitted.metrics, abs=0.01)

    found = answer(place, "recommend", folder, "--user", "user-0633")
    assert len(found["recommendations"]) == 10
    run_unskew("recommend", folder, "--items", "film-0001,film-0002", cwd=place)

    base = f"{method}-base"
    run_unskew("run", "--method", "popularity", "--out", base, cwd=place)
    compared = answer(place, "compare", base, folder)
    assert [run["method"] for run in compared["runs"]] == ["popularity", method]
    run_unskew("report", base, folder, "--out", "page.html", cwd=place)
    assert method in (place / "page.html").read_text()

    two_rounds = ("--set", "rounds=2", *QUICK)
    leak = answer(place, "audit", "leak", "--method", method, "--protocol=leak-free", *two_rounds)
    assert not leak["audits"][0]["leaks"]
    attack = ("--noise", "0", "--users", 5)
    (row,) = answer(place, "audit", "privacy", method, *two_rounds, *attack)["audits"]
    assert row["method"] == method
    assert row["single_uploads"]


@pytest.mark.parametrize("method", METHODS)
def test_tune(method: str, place: Path) -> None:
    pytest.importorskip("optuna", reason="Optuna is an extra: pip install 'unskew[tune]'")
    out = f"{method}-tune"
    search = ("--space", "learning_rate=0.01:0.1", "--trials", 2, "--rounds", 2, "--out", out)
    run_unskew("tune", "--method", method, *QUICK, *search, cwd=place)
    run_unskew("run", "--config", f"{out}/best.toml", "--out", f"{out}/best", cwd=place)


def test_two_rounds_on_flower(tmp_path: Path, demo_data: Interactions) -> None:
    """Real processes on loopback; the nodes find the methods among what is installed."""
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")
    from unskew.deploy.loopback import Loopback
    from unskew.deploy.node_data import divide_users, take_users, write_node_data
    from unskew.deploy.server import read_model, read_rows
    from unskew.deploy.task import write_app
    from unskew.engine import Federation

    everyone = prepare(demo_data)
    split = take_users(everyone, np.arange(30)).split
    settings: dict[str, Any] = {"rounds": 2, "dim": 4, "local_epochs": 1}
    methods = ["shop-mf"] if find_spec("torch") is None else ["shop-mf", "shop-torch"]
    with Loopback(tmp_path, nodes=2) as network:
        network.start_superlink()
        for number in (1, 2):
            network.register(number)
        for method in methods:
            folder = tmp_path / method
            config: dict[str, Any] = {"method": method, "users": split.n_users, "seed": 0}
            config["settings"] = " ".join(f"{key}={value}" for key, value in settings.items())
            config |= {"items": split.n_items, "state": str(folder / "server"), "min-nodes": 2}
            write_app(folder / "app", config)
            for number, users in enumerate(divide_users(split.n_users, 2), 1):
                write_node_data(folder / f"data-{number}", take_users(split, users))
                places = {key: str(folder / f"{key}-{number}") for key in ("data", "state")}
                network.start_node(number, {**places, "shared-seed": True})
            network.wait_for_run(network.start_run(folder / "app"), folder / "server")
            for number in (1, 2):
                network.stop(f"node-{number}")
            ours = Federation(create(method, **settings), split, 0).run(2).server
            last, server = read_model(folder / "server", ours)
            assert last == 2
            assert [row["accepted"] for row in read_rows(folder / "server")] == [2, 2]
            for one, other in zip(server, ours, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
