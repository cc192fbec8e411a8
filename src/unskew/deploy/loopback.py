"""A whole federation on one machine, with the processes, certificates and keys of a real one.

One SuperLink (Flower's server process), the gate in front of it and several SuperNodes (Flower's
node processes) run on loopback with TLS, node authentication and signed apps, for ``unskew deploy
up`` and ``demo`` and for the tests. Each process writes a log file. All files are readable by their
owner only.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from unskew.deploy.keys import write_keys
from unskew.deploy.node_data import owner_only
from unskew.deploy.signing import OPERATOR_KEY, TRUSTED, sign_app
from unskew.types import UnskewError

_TIMEOUT_SECONDS = 180.0
"""Maximum seconds to wait for a process to start, to answer or to end."""
_STATUS_INTERVAL_SECONDS = 15.0
"""Seconds between two queries of a run's status; each query starts a process."""


class Loopback:
    """Flower processes on this machine; leaving the ``with`` block kills those that still run.

    ``port`` is the gate's, which nodes use, ``control`` the SuperLink's own, which the operator
    uses. ``say`` gets every command before it is run.
    """

    def __init__(
        self, folder: Path, nodes: int, say: Callable[[str], None] = lambda command: None
    ) -> None:
        self.folder, self.keys = folder.resolve(), folder.resolve() / "keys"
        self.signatures = self.folder / "signatures"
        self.port, self.control = _free_port(), _free_port()
        self._say = say
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        variables = {
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        say("export " + " ".join(f"{name}={shlex.quote(to)}" for name, to in variables.items()))
        # Flower starts its helper programs by name; they are in the folder of this Python.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._environment = dict(os.environ) | variables | {"PATH": path}
        say(f"unskew deploy keys {shlex.quote(str(self.keys))} --nodes {nodes}")
        write_keys(self.keys, (), nodes)
        with owner_only():
            (self.folder / "flwr").mkdir(parents=True, exist_ok=True)
            self.signatures.mkdir(exist_ok=True)

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._processes):
            self.kill(name)

    def start_superlink(self) -> None:
        """Start Flower's server process (SuperLink) and, if it does not run, the gate; wait until
        they accept connections."""
        config = (
            f'[superlink]\ndefault = "lo"\n\n[superlink.lo]\naddress = "127.0.0.1:{self.control}"\n'
            f'root-certificates = "{self.keys / "ca.crt"}"\n'
        )
        (self.folder / "flwr" / "config.toml").write_text(config)
        self._start(
            "superlink",
            _program("flower-superlink"),
            *self._tls("server"),
            "--enable-supernode-auth",
            *("--host", "127.0.0.1", "--port", str(self.control)),
            *("--database", str(self.folder / "superlink.db")),
            "--disable-runtime-dependency-installation",
        )
        self._wait_for_port("superlink", self.control)
        if "gate" not in self._processes:
            self._start(
                "gate",
                sys.executable,
                *("-m", "unskew", "deploy", "gate", str(self.keys), "--host", "127.0.0.1"),
                *("--port", str(self.port), "--superlink", f"127.0.0.1:{self.control}"),
                *("--signatures", str(self.signatures)),
            )
            self._wait_for_port("gate", self.port)

    def register(self, number: int) -> int:
        """Register a node's public key with the SuperLink, so that the node may connect. Returns
        Flower's id of the node."""
        key = str(self.keys / f"node-{number}.auth.pub")
        printed = self.flwr("supernode", "register", key, "lo", "--format", "json")
        return int(json.loads(printed)["node-id"])

    def start_node(self, number: int, config: Mapping[str, Any], **variables: str) -> None:
        """Start a node with its node-config ``config`` and extra environment ``variables``."""
        pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        self._start(
            f"node-{number}",
            _program("flower-supernode"),
            *("--root-certificates", str(self.keys / "ca.crt")),
            *("--superlink", f"127.0.0.1:{self.port}", "--port", str(_free_port())),
            *("--auth-supernode-private-key", str(self.keys / f"node-{number}.auth")),
            *("--trusted-entities", str(self.keys / TRUSTED)),
            *self._tls(f"node-{number}"),
            *("--node-config", pairs),
            **variables,
        )

    def start_run(self, app: Path, signed: bool = True) -> str:
        """Sign a Flower app and send it to the SuperLink, which starts to run it; returns the run's
        id. Without ``signed``, nodes refuse it."""
        if signed:
            self._sign(app)
        answer = json.loads(self.flwr("run", str(app), "lo", "--format", "json"))
        if not answer.get("success"):
            raise UnskewError(f"Flower did not take the app: {answer}")
        return str(answer["run-id"])

    def wait_for_run(
        self,
        run_id: str,
        server: Path,
        meanwhile: Callable[[], None] = lambda: None,
        seconds: float = 1800.0,
    ) -> None:
        """Wait until a run has ended; ``server`` is the server's state folder."""
        outcome, asked = server / "outcome.json", time.monotonic()

        def ended() -> bool:
            nonlocal asked
            meanwhile()
            if not outcome.exists() and time.monotonic() - asked > _STATUS_INTERVAL_SECONDS:
                asked = time.monotonic()
                runs = self.flwr("list", "lo", "--run-id", run_id, "--format", "json")
                status = json.loads(runs)["runs"][0]["status"]  # such as finished:completed
                if status.startswith("finished") and not outcome.exists():
                    log = self.run_log(run_id)[-300:]
                    raise UnskewError(f"The run ended as {status}; its log ends with: {log}")
            return outcome.exists()

        self.wait_until(ended, "the run's end", seconds)

    def run_log(self, run_id: str) -> str:
        """Log of the ServerApp (the server's part of the Flower app) in a run."""
        return self.flwr("log", run_id, "lo", "--show")

    def wait_until(self, happens: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
        ends = time.monotonic() + seconds
        while not happens():
            if time.monotonic() > ends:
                raise UnskewError(
                    f"After {seconds:.0f} s: {what} did not happen; see {self.folder}."
                )
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process and its children, like a crash or a power cut."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """End a process with SIGTERM, as a service manager does, and if needed with SIGKILL."""
        process = self._processes[name]
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TIMEOUT_SECONDS)
        self.kill(name)

    def exit_code(self, name: str) -> int | None:
        return self._processes[name].poll()

    def log(self, name: str) -> str:
        """Everything a process has printed since its last start."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command ``flwr`` with these arguments and return what it prints."""
        if arguments[0] not in ("list", "log"):
            self._say(shlex.join(["flwr", *arguments]))
        done = subprocess.run(
            [_program("flwr"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise UnskewError(f"flwr {arguments[0]} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def _sign(self, app: Path) -> None:
        key = self.keys / OPERATOR_KEY
        shown = ["unskew", "deploy", "sign", str(app), "--key", str(key)]
        self._say(shlex.join([*shown, "--signatures", str(self.signatures)]))
        sign_app(app, key, self.signatures)

    def _start(self, name: str, program: str, *arguments: str, **variables: str) -> None:
        shown = shlex.join([Path(program).name, *arguments])
        self._say(shown.replace(f"{Path(sys.executable).name} -m unskew", "unskew") + " &")
        with owner_only(), (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [program, *arguments],
                env=self._environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for_port(self, name: str, port: int) -> None:
        """Wait until a process listens on a port of this machine; an error if it ends instead."""

        def listens() -> bool:
            if self.exit_code(name) is not None:
                tail = self.log(name)[-2000:]
                raise UnskewError(f"{name} did not start; its log ends with: {tail}")
            with socket.socket() as probe:
                probe.settimeout(1.0)
                return probe.connect_ex(("127.0.0.1", port)) == 0

        self.wait_until(listens, f"the start of {name}", _TIMEOUT_SECONDS)

    def _tls(self, name: str) -> tuple[str, ...]:
        return (
            *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
            *("--ssl-certfile", str(self.keys / f"{name}.crt")),
            *("--ssl-keyfile", str(self.keys / f"{name}.key")),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _program(name: str) -> str:
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise UnskewError("Flower is not installed here; pip install 'unskew[flower]'.")
    return str(path)
