"""``unskew deploy up``: a whole federation on this machine, as a deployment sets it up; and
``unskew deploy demo``: the same for two methods, compared with the simulator."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from typer import Argument, Option

from unskew.cli import _options as opt
from unskew.cli._output import load_data, print_json, stderr, stdout
from unskew.deploy import node_data
from unskew.deploy.owners import write_owners
from unskew.deploy.task import Task, write_app
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.files import read_json
from unskew.methods import admit_method, create
from unskew.runs import RunSpec
from unskew.types import Method, Split, UnskewError

if TYPE_CHECKING:
    from unskew.deploy.loopback import Loopback

MAX_RELATIVE_DIFFERENCE = 1e-4
"""Maximum relative difference allowed between the server models of Flower and the simulator."""
_METHODS = ("pfedclr", "fedrefit")
"""Methods that the demo trains on Flower and in the simulator."""
_MARKER = "flower-demo.txt"
"""Name of a file that marks a folder as written by ``up`` or the demo."""
_OUTPUTS = (
    *("keys", "signatures", "flwr", "superlink.*", "gate.log", "node-*.log"),
    *("app", "nodes", "device-*", "server-state", *(f"{name}-*-users" for name in _METHODS)),
)
"""Patterns of the files that ``up`` and the demo write. The next one deletes them first."""


def up(
    out: Annotated[Path, Argument(metavar="DIR")],
    data: opt.Data = None,
    nodes: Annotated[int, Option(help="Number of nodes.", min=1)] = 3,
    method: opt.Method = None,
    rounds: Annotated[int, Option(help="Global rounds.", min=1)] = 3,
    set_: Annotated[
        list[str] | None, Option("--set", help="A key of the run-config: key=value; may repeat.")
    ] = None,
    data_dir: opt.DataDir = None,
    json: opt.Json = False,
) -> None:
    """Train on nodes on this machine, set up as a deployment is; prints every command it runs."""
    from unskew.deploy.loopback import Loopback

    config: dict[str, Any] = {"method": method or "pfedclr", "min-nodes": nodes}
    config |= opt.parse_pairs(set_ or [], "--set")
    config["settings"] = f"rounds={rounds} {config.get('settings', '')}".strip()
    admit_method(config["method"])
    source = data or RunSpec.data
    split = prepare(load_data(RunSpec(data=source), data_dir))
    _clear_folder(out)
    # Compile the kernels here, once: the nodes would all do it at the same time.
    few = node_data.take_users(split, np.arange(min(3, split.n_users))).split
    Federation(_method(config), few, 0).run(1)
    folder, console = out.resolve(), stderr if json else stdout

    def say(command: str) -> None:
        console.print(f"$ {command}")

    _end_with_processes()
    with Loopback(folder, nodes, say) as network:
        divided = ["--data", source, "--nodes", str(nodes)]
        say(shlex.join(["unskew", "deploy", "data", str(folder / "nodes"), *divided]))
        node_data.write_catalogue(folder / "nodes" / "catalogue.json", split)
        network.start_superlink()
        config["catalogue"] = str(folder / "nodes" / "catalogue.json")
        ids = [network.register(number) for number in range(1, nodes + 1)]
        _train(network, folder, config, split, ids, f"{nodes} nodes", console, say)
    outcome = read_json(folder / "server-state" / "outcome.json", "unskew-outcome", 1)
    if json:
        print_json({"round": outcome["round"], "outcome": outcome["reason"], "folder": str(out)})
    else:
        stdout.print(f"The run ended after round {outcome['round']}: {outcome['reason']}.")
        shown = shlex.quote(str(out))
        stdout.print(f"Check the set-up: unskew deploy doctor {shown}")
        stdout.print(
            f"Recommend on a node: unskew device recommend --state {shown}/device-1 --user "
            f"{shlex.quote(str(split.user_ids[0]))}"
        )
    if outcome["round"] != rounds:
        raise UnskewError(f"The run ended after round {outcome['round']} of {rounds}; see {out}.")


def demo(
    out: Annotated[Path, Option(help="Where everything goes.")] = Path("runs/flower-demo"),
    data: opt.Data = None,
    rounds: Annotated[int, Option(help="Global rounds.", min=1)] = 3,
    seed: opt.Seed = 0,
    data_dir: opt.DataDir = None,
    json: opt.Json = False,
) -> None:
    """Train two methods on three nodes on this machine; compare them with the simulator."""
    from unskew.deploy.loopback import Loopback

    split = prepare(load_data(RunSpec(data=data or RunSpec.data), data_dir))
    three = node_data.take_users(split, node_data.divide_users(split.n_users, 1)[0][:3]).split
    runs = [(name, federation) for federation in (split, three) for name in _METHODS]
    _clear_folder(out)
    _end_with_processes()
    compared, console = [], stderr if json else stdout
    with Loopback(out, nodes=3) as network:
        stderr.print("Starting a SuperLink and its gate, with TLS, node keys and a signed app ...")
        network.start_superlink()
        ids = [network.register(number) for number in (1, 2, 3)]
        for method, federation in runs:
            folder = out.resolve() / f"{method}-{federation.n_users}-users"
            compared.append(
                _compare(network, folder, method, federation, ids, rounds, seed, console)
            )
    if json:
        print_json({"runs": compared, "tolerance": MAX_RELATIVE_DIFFERENCE})
    far = [run for run in compared if not run["relative_difference"] < MAX_RELATIVE_DIFFERENCE]
    if far:
        raise UnskewError(
            f"{far[0]['method']} differs from the simulator by {far[0]['relative_difference']:.2g};"
            f" the limit is {MAX_RELATIVE_DIFFERENCE:g}; the logs are in {out}."
        )


def _method(config: dict[str, Any]) -> Method:
    """The method of a run-config, as nodes and server build it."""
    return Task(config["method"], config["settings"], 0, 1, 1).build()


def _end_with_processes() -> None:
    """Turn SIGTERM into an exit, so that the processes of a federation end too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def _clear_folder(out: Path) -> None:
    """Delete the files of an earlier federation; a folder with other files is an error."""
    if out.exists() and not out.is_dir():
        raise UnskewError(f"{out} is a file; name a folder.")
    if out.exists() and any(out.iterdir()) and not (out / _MARKER).exists():
        raise UnskewError(f"{out} holds something else than a trial; name another folder.")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARKER).write_text(
        "unskew deploy up and demo delete their own files here when run again.\n"
    )
    for path in [path for pattern in _OUTPUTS for path in out.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _train(
    network: Loopback,
    folder: Path,
    config: dict[str, Any],
    split: Split,
    ids: list[int],
    title: str,
    console: Console,
    say: Callable[[str], None] = lambda command: None,
    shared_seed: bool = False,
) -> None:
    """Write the nodes' data, the list of whose users are whose, and the app; start the nodes, run
    the app, and stop the nodes. ``ids`` are Flower's ids of the nodes."""
    config = config | {"users": split.n_users, "items": split.n_items}
    config["state"] = str(folder / "server-state")
    pairs = [f"--set={key}={value}" for key, value in config.items()]
    say(shlex.join(["unskew", "deploy", "app", str(folder / "app"), *pairs]))
    write_app(folder / "app", config)
    divided = node_data.divide_users(split.n_users, len(ids))
    say(f"# whose users are whose: {config['state']}/nodes.json")
    write_owners(Path(config["state"]), dict(zip(ids, divided, strict=True)))
    for number, users in enumerate(divided, 1):
        data, state = folder / "nodes" / f"node-{number}", folder / f"device-{number}"
        node_data.write_node_data(data, node_data.take_users(split, users))
        places: dict[str, Any] = {"data": str(data), "state": str(state)}
        network.start_node(number, places | ({"shared-seed": True} if shared_seed else {}))
    _watch(network, network.start_run(folder / "app"), folder / "server-state", title, console)
    for number in range(1, len(ids) + 1):
        network.stop(f"node-{number}")


def _compare(
    network: Loopback,
    folder: Path,
    method: str,
    split: Split,
    ids: list[int],
    rounds: int,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """Train a method on Flower and in the simulator. Returns a dict with the relative difference
    of the two server models."""
    from unskew.deploy.server import read_model

    settings: dict[str, Any] = {"rounds": rounds}
    if method == "fedrefit":  # so that the last round has the fit that devices use afterwards
        rounds = max(rounds, 3)
        settings = {"rounds": rounds, "space_rounds": rounds - 2, "order": "forward"}
    if split.n_users == 3:
        settings["participation"] = 1.0  # so that all three users train
    pairs = " ".join(f"{key}={value}" for key, value in settings.items())
    config: dict[str, Any] = {"method": method, "settings": pairs, "seed": seed}
    config |= {"min-nodes": 3, "evaluate-every": 1}
    title = f"{method}, {split.n_users:,} users on 3 nodes"
    _train(network, folder, config, split, ids, title, console, shared_seed=True)
    ours = Federation(create(method, **settings), split, seed).run(rounds).server
    last, server = read_model(folder / "server-state", ours)
    if last != rounds:
        raise UnskewError(f"Flower ended after round {last} of {rounds}; see {folder.parent}.")
    differences = [
        np.linalg.norm(a.astype(np.float64) - b) / (np.linalg.norm(b) or 1.0)
        for a, b in zip(server, ours, strict=True)
    ]
    difference = float(np.max(differences))
    verdict = "less" if difference < MAX_RELATIVE_DIFFERENCE else "NOT less"
    console.print(
        f"{title}: the global items of Flower and simulator differ by {difference:.1e} relative "
        f"after {rounds} rounds, {verdict} than {MAX_RELATIVE_DIFFERENCE:g}."
    )
    return {"method": method, "users": split.n_users, "relative_difference": difference}


def _watch(network: Loopback, run_id: str, server: Path, title: str, console: Console) -> None:
    """Print a line for every round of a Flower run, until the run ends."""
    from unskew.deploy.server import read_rows

    printed, ended = 0, False

    def print_rounds() -> None:
        nonlocal printed
        rows = read_rows(server)
        # Metrics of the last row may still be added to it.
        complete = rows if ended else rows[:-1]
        for row in complete[printed:]:
            sizes = [decimal(row.get(key, 0)) for key in ("bytes_up", "bytes_down")]
            metrics = row.get("metrics", {}).items()
            figures = [f"{name} {value:.4f}" for name, value in metrics if "ndcg@10" in name]
            console.print(
                f"{title}, round {row['round']}: {row['seconds']:.1f} s, "
                f"{row['accepted']} of {row['nodes']} nodes, "
                + ", ".join([f"{sizes[0]} up", f"{sizes[1]} down", *figures])
            )
        printed = max(printed, len(complete))

    network.wait_for_run(run_id, server, print_rounds)
    ended = True
    print_rounds()
