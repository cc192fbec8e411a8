"""How a SuperLink copes with many nodes: ``python -m benchmarks.many_nodes --nodes 50``.

The server is real: SuperLink with its SQLite file, gate and ServerApp. A node here is a thread
that talks through Flower's own client, with its own key, and runs Unskew's ClientApp itself. A real
SuperNode holds some 260 MB and starts a process per message, so that 50 do not fit one machine.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import Context, Message, RecordDict
from flwr.proto.control_pb2 import RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_object_contents_from_iterable,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response

from unskew import data
from unskew.deploy.client import app as client_app
from unskew.deploy.loopback import Loopback
from unskew.deploy.node_data import divide_users, take_users, write_node_data
from unskew.deploy.server import read_rows
from unskew.deploy.task import read_run_config, write_app
from unskew.evaluation import prepare

POLL_SECONDS = 3.0
"""Seconds between a node's questions for messages, as in Flower's SuperNode."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--direct", action="store_true", help="past the gate, to the SuperLink")
    options = parser.parse_args()
    everyone = prepare(data.load("demo"))
    split = take_users(everyone, np.arange(options.nodes)).split
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(Path(name), split, options.rounds, options.direct)))


def measure(folder: Path, split: Any, rounds: int, direct: bool) -> dict[str, Any]:
    """Seconds and accepted nodes of each round with one user per node."""
    n = split.n_users
    config = {"settings": f"rounds={rounds} participation=1", "users": n, "items": split.n_items}
    config |= {"state": str(folder / "server"), "min-nodes": n, "evaluate-every": -1}
    write_app(folder / "app", config)
    with Loopback(folder, n) as network:
        network.start_superlink()
        ca, nodes = network.keys / "ca.crt", []
        control = f"127.0.0.1:{network.control}"
        with ControlHttpClient.from_server_address(control, False, str(ca), []) as client:
            for number in range(1, n + 1):
                public = load_ssh_public_key(
                    (network.keys / f"node-{number}.auth.pub").read_bytes()
                )
                client.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(public)))
        address = control if direct else f"127.0.0.1:{network.port}"
        for number, users in enumerate(divide_users(n, n), 1):
            write_node_data(folder / f"data-{number}", take_users(split, users))
            places = {key: str(folder / f"{key}-{number}") for key in ("data", "state")}
            places |= {"step2-at-once": False}
            key = network.keys / f"node-{number}.auth"
            run_config = vars(read_run_config(config))
            target = partial(run_node, address, ca, key, places, run_config)
            nodes.append(threading.Thread(target=target, daemon=True))
            nodes[-1].start()
        run_id = network.start_run(folder / "app")
        network.wait_for_run(run_id, folder / "server")
        reasons = re.findall(r"node \d+ (could not .*|did not .*)", network.run_log(run_id))
        alive = sum(node.is_alive() for node in nodes)
        rows = read_rows(folder / "server")
        return {
            "nodes": n,
            "direct": direct,
            "seconds": [round(row["seconds"], 1) for row in rows],
            "accepted": [row["accepted"] for row in rows],
            "alive_at_the_end": alive,
            "not_accepted": Counter(reasons),
            "database_locked": network.log("superlink").count("database is locked"),
            "calls_repeated": network.log("gate").count("will repeat"),
        }


def run_node(
    address: str, ca: Path, key: Path, node_config: dict[str, Any], run_config: dict[str, Any]
) -> None:
    """Answer a server's messages for ever; an error ends this node."""
    private: Any = load_ssh_private_key(key.read_bytes(), None)
    connect = http_request_response(address, False, str(ca), (private, private.public_key()))
    with connect as (node, receive, send, get_run, _, pull_object, push_object, confirm):
        context = Context(0, node, node_config, RecordDict(), run_config)
        while True:
            received = receive()
            if received is None:
                time.sleep(POLL_SECONDS)
                continue
            head, tree = received
            run = head.metadata.run_id
            get_run(run)
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, node, 1
            names = [one.object_id for one in iterate_object_tree(tree)]
            contents = pull_objects(names, pull_object_fn=partial(pull_object, run))
            confirm(run, head.metadata.message_id)
            message: Message = inflate_object_from_contents(head.metadata.message_id, contents)
            message.metadata.__dict__["_message_id"] = head.metadata.message_id
            reply = client_app(message, context)
            objects = get_all_nested_objects(reply)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            missing, session = send(reply, get_object_tree(reply), 1.0)
            push_object_contents_from_iterable(
                ((name, objects[name].deflate()) for name in objects if name in missing),
                push_object_fn=partial(push_object, run, session),
            )


if __name__ == "__main__":
    main()
