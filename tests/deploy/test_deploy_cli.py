"""The commands, and that nothing needs Flower unless it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy_samples import Twin, task_of
from safetensors import safe_open

from unskew.cli._deploy_up import _clear_folder, demo, up
from unskew.deploy.device import Device
from unskew.deploy.keys import write_keys
from unskew.deploy.task import Task
from unskew.types import Split, UnskewError

COMMAND = [sys.executable, "-m", "unskew"]
WITHOUT = """
import sys
class Nothing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("flwr", "cryptography"):
            raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, Nothing())
sys.argv = ["unskew", *sys.argv[1:]]
from unskew.cli import main
main()
"""


def _run(*arguments: str, fails: bool = False, without_flower: bool = False) -> str:
    command = [sys.executable, "-c", WITHOUT] if without_flower else COMMAND
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=300)
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if fails else done.stdout


@pytest.mark.slow
def test_a_device_without_server_or_flower(tmp_path: Path, tiny_split: Split) -> None:
    task = task_of(tiny_split, "pfedclr", "rounds=3 local_epochs=1 dim=8 participation=1")
    twin = Twin(tmp_path, tiny_split, task, 3)
    twin.play(1, [0, 1, 2])
    state = ["--state", str(tmp_path / "state-1")]
    about = json.loads(_run("device", "status", *state, "--json", without_flower=True))
    users = len(twin.device(0).data.users)
    assert (about["users"], about["last_round"], about["step2_due_for"]) == (users, 1, users)
    label = tiny_split.user_ids[3]
    asked = ["device", "recommend", *state, "-k", "4", "--user", label, "--json"]
    found = json.loads(_run(*asked, without_flower=True))["recommendations"]
    items = [tiny_split.item_ids.index(one["item"]) for one in found]
    assert len(items) == 4
    assert not set(items) & set(tiny_split.seen.of(3).tolist())
    device = twin.device(0)
    assert not len(device.progress.due)
    scores = device.recommender().scores(np.array([3]))[0]
    scores[tiny_split.seen.of(3)] = -np.inf
    assert set(items) == set(np.argsort(-scores)[:4].tolist())
    means = json.loads(_run("device", "evaluate", *state, "--json", without_flower=True))
    total, count = device.metric_sums("test")["ndcg@10"]
    assert means["test"]["ndcg@10"] == pytest.approx(total / count)
    assert "say which" in _run("device", "recommend", *state, fails=True)
    assert about["recommends_from_round"] == 1
    assert "no guarantee" in about["privacy"]["statement"]
    assert "no state folder" in _run("device", "status", "--state", str(tmp_path / "x"), fails=True)


def test_what_needs_flower_says_so(tmp_path: Path) -> None:
    said = _run("deploy", "keys", str(tmp_path / "k"), fails=True, without_flower=True)
    assert "pip install 'unskew[flower]'" in said
    said = _run("deploy", "demo", "--out", str(tmp_path / "d"), fails=True, without_flower=True)
    assert "pip install 'unskew[flower]'" in said
    _run("methods", without_flower=True)


def test_flower_is_not_imported_unless_asked_for() -> None:
    program = (
        "import sys, unskew, unskew.cli, unskew.deploy, unskew.deploy.device\n"
        "from unskew.cli import _deploy, _device, _run\n"
        "assert not {'flwr', 'grpc', 'cryptography'} & {n.split('.')[0] for n in sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
    bare = "import sys, unskew; assert 'numba' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", bare], check=True, timeout=300)


@pytest.mark.slow
def test_data_and_app_of_a_deployment(tmp_path: Path) -> None:
    said = _run("deploy", "data", str(tmp_path / "nodes"), "--data", "demo", "--nodes", "2")
    assert "users=1000 items=1500" in said
    task = Task("pfedclr", "local_epochs=1 participation=1", 0, 1000, 1500)
    method, weights = task.build(), []
    download = method.download(method.init(1000, 1500, 0)[0])
    for number in (1, 2):
        data = tmp_path / "nodes" / f"node-{number}"
        device = Device.join(tmp_path / f"state-{number}", data, task, shared_seed=False)
        weights.append(int(device.step1(1, download)["weight"][0]))
    assert f"so {max(weights)} with the usual 4" in said
    own = tmp_path / "mine.csv"
    catalogue = tmp_path / "nodes" / "catalogue.json"
    labels = json.loads(catalogue.read_text())["items"]
    rows = "".join(f"me,{labels[i]},{i}\n" for i in range(5, 11))
    own.write_text("user,item,timestamp\n" + rows)
    options = ["--data", str(own), "--catalogue", str(catalogue), "--first-user", "1000"]
    assert "numbers 1000 to 1000" in _run("deploy", "data", str(tmp_path / "me"), *options)
    app = ["deploy", "app", str(tmp_path / "app"), "--set", "users=1001", "--set", "items=1500"]
    _run(*app, "--set", "settings=dim=8 rounds=2", "--set", f"state={tmp_path}/server")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert (config["users"], config["settings"]) == (1001, "dim=8 rounds=2")
    assert config["secure"] is False
    refused = _run(*app, "--set", "method=gpfedrec", "--set", "secure=true", fails=True)
    assert "gpfedrec needs every upload by itself" in refused


def test_keys_are_an_authority_a_server_and_nodes(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="an extra: pip install 'unskew[flower]'")
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization

    folder = tmp_path / "keys"
    _run(
        "deploy", "keys", str(folder), "--nodes", "2", "--host", "fed.example", "--host", "10.1.2.3"
    )
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    for name in ("server", "node-1", "node-2"):
        certificate = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
        certificate.verify_directly_issued_by(authority)
        key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None)
        assert key.public_key() == certificate.public_key()
    hosts = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    names = hosts.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "fed.example"} <= set(names.get_values_for_type(x509.DNSName))
    assert "10.1.2.3" in map(str, names.get_values_for_type(x509.IPAddress))
    private = serialization.load_ssh_private_key((folder / "node-1.auth").read_bytes(), None)
    public = serialization.load_ssh_public_key((folder / "node-1.auth.pub").read_bytes())
    assert private.public_key() == public
    for path in folder.iterdir():
        secret = path.suffix in (".key", ".auth")
        assert (os.stat(path).st_mode & 0o077 == 0) == secret, path
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    _run("deploy", "keys", str(folder), "--nodes", "3")
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name: after[name] for name in before} == before
    for name in ("node-1.key", "node-1.crt"):  # renewed without a new registered key
        (folder / name).unlink()
    renewed = write_keys(folder, ["fed.example", "10.1.2.3"], 3)
    assert [path.name for path in renewed] == ["node-1.key", "node-1.crt"]
    assert set(after) - set(before) == {
        "node-3.key",
        "node-3.crt",
        "node-3.auth",
        "node-3.auth.pub",
    }


@pytest.mark.parametrize("host", ["", " ", "bücher.de", "a..b", "fed.example:8000", "x" * 64])
def test_a_wrong_host_is_one_sentence(tmp_path: Path, host: str) -> None:
    pytest.importorskip("cryptography", reason="an extra: pip install 'unskew[flower]'")
    with pytest.raises(UnskewError, match="--host"):
        write_keys(tmp_path / "keys", [host], 1)
    assert not (tmp_path / "keys").exists()


def test_keys_are_not_made_for_other_hosts_in_silence(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="an extra: pip install 'unskew[flower]'")
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o755)
    write_keys(folder, ["fed.example"], 1)
    assert folder.stat().st_mode & 0o777 == 0o755  # somebody else's folder stays as it is
    assert write_keys(folder, ["fed.example", "127.0.0.1"], 1) == []
    with pytest.raises(UnskewError, match=r"not for other\.example; delete"):
        write_keys(folder, ["other.example"], 1)
    (folder / "server.key").unlink()
    (folder / "server.crt").unlink()
    written = write_keys(folder, ["other.example"], 1)
    assert sorted(path.name for path in written) == ["server.crt", "server.key"]
    write_keys(tmp_path / "new", [], 1)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    with pytest.raises(UnskewError, match="cannot be a folder"):
        write_keys(folder / "ca.crt", [], 1)


def test_the_demo_deletes_nothing_but_its_own(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    for out, data, sentence in (
        (mine, "no-such-data", "no-such-data"),
        (mine, "demo", "holds something else"),
        (mine / "thesis.txt", "demo", "is a file"),
    ):
        with pytest.raises(UnskewError, match=sentence):
            demo(out=out, data=data, rounds=1, seed=0, data_dir=None, json=False)
    assert [path.name for path in mine.iterdir()] == ["thesis.txt"]
    own = tmp_path / "demo"
    _clear_folder(own)
    for name in ("keys", "pfedclr-3-users", "letters"):
        (own / name).mkdir()
        (own / name / "file").touch()
    (own / "superlink.db").touch()
    (own / "node-1.txt").touch()
    _clear_folder(own)
    left = sorted(path.name for path in own.iterdir())
    assert left == ["flower-demo.txt", "letters", "node-1.txt"]


@pytest.fixture
def direct(tmp_path: Path, small_split: Split, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The nodes are in this process in place of Flower's processes; the path of a data file."""
    pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")
    from deploy_grid import DirectNetwork

    monkeypatch.setattr("unskew.deploy.loopback.Loopback", DirectNetwork)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    rows = [
        f"{small_split.user_ids[user]},{small_split.item_ids[item]},{at}\n"
        for user in range(small_split.n_users)
        for at, item in enumerate([*small_split.seen.of(user), *small_split.test.of(user)])
    ]
    path = tmp_path / "data.csv"
    path.write_text("user,item,timestamp\n" + "".join(rows))
    return path


def test_the_demo_as_json_is_one_object(tmp_path: Path, direct: Path, capsys: Any) -> None:
    options = {"out": tmp_path / "out", "data": str(direct), "rounds": 1}
    demo(**options, seed=0, data_dir=None, json=True)
    found = json.loads(capsys.readouterr().out)
    assert [run["method"] for run in found["runs"]] == ["pfedclr", "fedrefit"] * 2
    assert all(run["relative_difference"] < 1e-6 for run in found["runs"])
    # FedRefit has played to its last fit: without it, devices would score with nothing.
    with safe_open(
        tmp_path / "out" / "fedrefit-3-users" / "server-state" / "server.safetensors", "numpy"
    ) as server:
        assert np.any(server.get_tensor("V"))


def test_up_trains_with_the_run_config_asked_for(tmp_path: Path, direct: Path, capsys: Any) -> None:
    out, pairs = tmp_path / "out", ["settings=dim=8", "evaluate-every=-1"]
    up(out, str(direct), nodes=3, method="fedmf", rounds=2, set_=pairs, data_dir=None, json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["round"], found["outcome"]) == (2, "all rounds played")
    config = tomllib.loads((out / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert config["config"]["settings"] == "rounds=2 dim=8"
    assert config["config"]["min-nodes"] == 3
    assert (out / "nodes" / "catalogue.json").exists()
    for path in (out / "server-state").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
