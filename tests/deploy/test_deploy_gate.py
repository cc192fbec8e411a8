"""The gate: what it passes on, refuses and adds; and strangers at the gate of real processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deploy_samples import run_config, task_of, write_nodes

pytest.importorskip("flwr", reason="Flower is an extra: pip install 'unskew[flower]'")

import httpx
import yaml
from flwr.proto.fab_pb2 import Fab, GetFabResponse
from flwr.supercore.fab import Fab as NodeFab
from flwr.supercore.routers.runtime.router import router as runtime_router
from flwr.superlink.routers.control import router as control_router
from flwr.superlink.routers.fleet.router import router as fleet_router
from flwr.supernode.start_client_internal import _verify_fab

from unskew.deploy.doctor import examine
from unskew.deploy.gate import CALLS, MAX_BODY_BYTES, Gate
from unskew.deploy.keys import write_keys
from unskew.deploy.loopback import Loopback
from unskew.deploy.server import read_rows
from unskew.deploy.signing import is_signed, sign_app, verifications
from unskew.deploy.task import write_app
from unskew.files import read_json
from unskew.types import Split, UnskewError

LONG = 600.0
"""Seconds for what takes a few on an idle machine."""
AHEAD = """
import datetime
import flwr.supercore.date as date
now = date.now
date.now = lambda: now() + datetime.timedelta(seconds=20)
"""
"""A ``sitecustomize.py`` that makes a node sign its calls with a time 20 seconds ahead."""
ROUTERS = {"fleet": fleet_router, "control": control_router, "runtime": runtime_router}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    write_keys(folder, (), 1)
    return folder


@pytest.fixture
def gate(keys: Path, tmp_path: Path) -> Gate:
    """A gate whose SuperLink answers with what is in ``app.state.answers``, and notes the calls."""
    made = Gate("127.0.0.1:1", keys / "ca.crt", tmp_path / "signatures")
    made.app.state.calls, made.app.state.answer = [], httpx.Response(200)

    def superlink(request: httpx.Request) -> httpx.Response:
        made.app.state.calls.append(request)
        found: httpx.Response = made.app.state.answer
        return found

    made._superlink = httpx.AsyncClient(
        base_url="https://superlink/v1/fleet/", transport=httpx.MockTransport(superlink)
    )
    return made


def _post(gate: Gate, path: str, **options: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(gate.app)
        async with httpx.AsyncClient(transport=transport, base_url="https://gate") as client:
            return await client.post(path, **options)

    return asyncio.run(call())


def test_only_calls_of_nodes_pass(gate: Gate) -> None:
    paths = [route.path for router in ROUTERS.values() for route in router.routes]
    assert len(paths) > 50  # Flower's own lists of what it serves
    passed = {path for path in paths if _post(gate, path).status_code == 200}
    assert passed == {f"/v1/fleet/{call}" for call in CALLS}
    assert len(gate.app.state.calls) == len(CALLS)
    for path in ("/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs", "/docs"):
        assert _post(gate, path).status_code in (404, 405)
    assert len(gate.app.state.calls) == len(CALLS)


def test_a_call_passes_whole_but_for_foreign_headers(gate: Gate) -> None:
    now = datetime.now(UTC).isoformat()
    headers = {"flwr-timestamp": now, "content-type": "application/x-protobuf", "cookie": "a=b"}
    gate.app.state.answer = httpx.Response(200, content=b"answer")
    answer = _post(gate, "/v1/fleet/pull-messages", content=b"body", headers=headers)
    assert (answer.status_code, answer.content) == (200, b"answer")
    sent = gate.app.state.calls[0]
    assert (sent.url.path, sent.content) == ("/v1/fleet/pull-messages", b"body")
    assert sent.headers["flwr-timestamp"] == now
    assert "cookie" not in sent.headers
    answer = _post(gate, "/v1/fleet/push-object", content=b"0" * (MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert len(gate.app.state.calls) == 1


@pytest.mark.parametrize(
    ("seconds", "said"), [(20, "20 s ahead of"), (-400, "400 s behind"), (3, ""), (-200, "")]
)
def test_a_node_with_a_wrong_clock_is_told(gate: Gate, seconds: int, said: str) -> None:
    at = (datetime.now(UTC) + timedelta(seconds=seconds + 0.4)).isoformat()
    answer = _post(gate, "/v1/fleet/activate-node", headers={"flwr-timestamp": at})
    assert answer.status_code == (400 if said else 200)
    if said:
        assert said in answer.json()["detail"]
        assert isinstance(answer.json()["code"], int)  # Flower prints the detail only with a code


def test_a_failed_call_is_one_to_repeat(gate: Gate) -> None:
    gate.app.state.answer = httpx.Response(500)
    assert _post(gate, "/v1/fleet/push-messages").status_code == 503
    gate.app.state.answer = httpx.Response(401)
    assert _post(gate, "/v1/fleet/push-messages").status_code == 401


def test_the_signature_that_nodes_get_is_the_operators(
    gate: Gate, keys: Path, tmp_path: Path, tiny_split: Split
) -> None:
    app, signatures = tmp_path / "app", tmp_path / "signatures"
    write_app(app, run_config(task_of(tiny_split, "pfedclr"), tmp_path))
    digest = sign_app(app, keys / "operator.key", signatures)
    from flwr.cli.build import build_fab_from_disk

    fab = build_fab_from_disk(app)
    content = GetFabResponse(fab=Fab(hash_str=digest, content=fab)).SerializeToString()
    gate.app.state.answer = httpx.Response(200, content=content)
    got = GetFabResponse.FromString(_post(gate, "/v1/fleet/get-fab").content).fab
    trusted = yaml.safe_load((keys / "trusted.yaml").read_text())
    # Flower's own check, as on a node.
    assert _verify_fab(NodeFab(got.hash_str, got.content, dict(got.verifications)), trusted)
    assert not _verify_fab(NodeFab(digest, fab + b"x", dict(got.verifications)), trusted)
    assert is_signed(signatures / f"{digest}.json", trusted)
    write_keys(tmp_path / "other", (), 1)
    other = yaml.safe_load((tmp_path / "other" / "trusted.yaml").read_text())
    assert not is_signed(signatures / f"{digest}.json", other)
    assert not _verify_fab(NodeFab(digest, fab, dict(got.verifications)), other)
    (app / "unskew_app" / "client.py").write_text("import os\n")
    assert sign_app(app, keys / "operator.key", tmp_path / "more") != digest
    assert verifications(signatures, "0" * 64) == {}
    with pytest.raises(UnskewError, match="no Flower app"):
        sign_app(tmp_path, keys / "operator.key", signatures)
    with pytest.raises(UnskewError, match="cannot be read"):
        sign_app(app, keys / "ca.crt", signatures)


@pytest.mark.slow
def test_strangers_are_refused_and_nodes_run_signed_apps_only(
    tmp_path: Path, tiny_split: Split
) -> None:
    task = task_of(tiny_split, "pfedclr", "rounds=1 local_epochs=1 dim=8 participation=1")
    data = write_nodes(tmp_path, tiny_split, 2)
    rules = {"min_nodes": 2, "wait_for_nodes": LONG, "round_timeout": LONG}
    mark = tmp_path / "foreign code ran"
    for name in ("app", "foreign"):
        write_app(tmp_path / name, run_config(task, tmp_path / f"{name}-server", **rules))
    with (tmp_path / "foreign" / "unskew_app" / "client.py").open("a") as file:
        file.write(f"open({str(mark)!r}, 'w').close()\n")

    with Loopback(tmp_path, nodes=3) as network:
        network.start_superlink()
        for number in (1, 2):
            network.register(number)
            config = {"data": str(data[number - 1]), "state": str(tmp_path / f"state-{number}")}
            network.start_node(number, config)
        (tmp_path / "clock").mkdir()
        (tmp_path / "clock" / "sitecustomize.py").write_text(AHEAD)
        network.start_node(3, {}, PYTHONPATH=str(tmp_path / "clock"))
        run_id = network.start_run(tmp_path / "foreign", signed=False)

        # A stranger has ca.crt, the address, keys of its own, and Flower's command.
        stranger = _stranger(network, tmp_path / "stranger")
        own_key = str(tmp_path / "stranger" / "keys" / "node-1.auth.pub")
        nodes = json.loads(network.flwr("supernode", "list", "lo", "--format", "json"))["nodes"]
        for call in (
            ["list", "lo"],
            ["stop", run_id, "lo"],
            ["log", run_id, "lo", "--show"],
            ["run", str(tmp_path / "foreign"), "lo"],
            ["supernode", "list", "lo"],
            ["supernode", "register", own_key, "lo"],
            ["supernode", "unregister", str(nodes[0]["node-id"]), "lo"],
        ):
            with pytest.raises(UnskewError, match="failed"):
                stranger.flwr(*call)
        # The same with every call that Flower's server knows, nodes' unsigned ones included.
        tls = ssl.create_default_context(cafile=str(network.keys / "ca.crt"))
        with httpx.Client(verify=tls, trust_env=False, timeout=60) as client:
            for kind, router in ROUTERS.items():
                for route in router.routes:
                    answer = client.post(
                        f"https://127.0.0.1:{network.port}{route.path}",
                        headers={"content-type": "application/protobuf"},
                    )
                    refused = (401,) if route.path.removeprefix("/v1/fleet/") in CALLS else (404,)
                    assert answer.status_code in refused, (kind, route.path)

        # Nobody has signed the foreign app: the nodes answer with an error and do not run it.
        network.wait_for_run(run_id, tmp_path / "foreign-server", seconds=LONG)
        outcome = read_json(tmp_path / "foreign-server" / "outcome.json", "unskew-outcome", 1)
        assert "sent an upload that could be used" in outcome["reason"]
        assert "could not be verified" in network.log("node-1") + network.log("node-2")
        assert not mark.exists()

        # A node with a wrong clock has said so and failed; Flower's own refusal has no reason.
        network.wait_until(lambda: network.exit_code("node-3") is not None, "refusal", LONG)
        assert network.exit_code("node-3") != 0
        assert "clock is 20 s ahead of the server's" in " ".join(network.log("node-3").split())

        # The doctor finds a gate that serves nothing but nodes, and a SuperLink that is open.
        at_gate = list(examine(tmp_path, f"127.0.0.1:{network.port}"))
        assert [finding.text for finding in at_gate if not finding.ok] == []
        assert f"127.0.0.1:{network.port} serves nothing but nodes" in at_gate[-1].text
        at_superlink = list(examine(tmp_path, f"127.0.0.1:{network.control}"))
        assert "open to everybody" in at_superlink[-1].text

        # The operator's signed app trains, on the same nodes.
        network.wait_for_run(
            network.start_run(tmp_path / "app"), tmp_path / "app-server", seconds=LONG
        )
        assert read_rows(tmp_path / "app-server")[0]["accepted"] == 2
    kept = [*tmp_path.glob("superlink.db*"), tmp_path / "app-server"]
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)


def _stranger(network: Loopback, folder: Path) -> Loopback:
    """Someone else's Flower command, told of the federation's public address."""
    (folder / "keys").mkdir(parents=True)
    shutil.copy(network.keys / "ca.crt", folder)
    stranger = Loopback(folder, nodes=1)
    (folder / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "lo"\n\n[superlink.lo]\naddress = "127.0.0.1:{network.port}"\n'
        f'root-certificates = "{folder / "ca.crt"}"\n'
    )
    return stranger
