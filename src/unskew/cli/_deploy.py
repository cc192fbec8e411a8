"""``unskew deploy``: keys, node data, the Flower app, and a demo on loopback; ``unskew device``:
status, recommendations and metrics from the state saved on a device, without the server."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from typer import Argument, Context, Option, Typer

from unskew.cli import _options as opt
from unskew.cli._output import (
    load_data,
    print_json,
    print_recommendations,
    print_table,
    stderr,
    stdout,
)
from unskew.deploy import node_data
from unskew.deploy.account import privacy_guarantee
from unskew.deploy.device import Device
from unskew.engine import Federation
from unskew.evaluation import prepare
from unskew.methods import admit_method, create
from unskew.runs import RunSpec
from unskew.types import Split, UnskewError

if TYPE_CHECKING:
    from unskew.deploy.loopback import Loopback

app = Typer(help="Run a federation on Flower: keys, data, app, demo.", no_args_is_help=True)
device_app = Typer(help="A device's own state: status, recommend, evaluate.", no_args_is_help=True)
State = Annotated[Path, Option(help="The device's state folder.")]
StateData = Annotated[Path | None, Option("--data", help="Its data folder, if it has moved.")]

MAX_RELATIVE_DIFFERENCE = 1e-4
"""Maximum relative difference allowed between the server models of Flower and the simulator."""
_METHODS = ("pfedclr", "fedrefit")
"""Methods that the demo trains on Flower and in the simulator."""
_MARKER = "flower-demo.txt"
"""Name of a file that marks a folder as written by the demo."""
_OUTPUTS = ("keys", "flwr", "superlink.*", "node-?.log", *(f"{name}-*-users" for name in _METHODS))
"""Patterns of the files that the demo writes. The next demo deletes them first."""


@app.command()
def keys(
    folder: Annotated[Path, Argument(metavar="DIR")],
    nodes: Annotated[int, Option(help="How many nodes get keys.", min=1)] = 3,
    host: Annotated[
        list[str] | None, Option(help="A name or address of the server; may repeat.")
    ] = None,
) -> None:
    """Make a development CA, the server's certificate and the nodes' keys."""
    from unskew.deploy.keys import write_keys

    written = write_keys(folder, host or (), nodes)
    if not written:
        stdout.print(f"{folder} already has all of them.")
        return
    stdout.print(f"{len(written)} files in {folder}: " + ", ".join(path.name for path in written))
    stdout.print("Keep ca.key off the server; give each node its own node-N.* and ca.crt only.")


@app.command("data")
def write_data(
    context: Context,
    out: Annotated[Path, Argument(metavar="DIR")],
    data: opt.Data = None,
    nodes: Annotated[int, Option(help="Number of nodes to divide it into.", min=1)] = 1,
    catalogue: Annotated[
        Path | None, Option(help="The federation's items, for a node's own file.")
    ] = None,
    first_user: Annotated[
        int, Option(help="With --catalogue: the number of this node's first user.", min=0)
    ] = 0,
    protocol: opt.Protocol = None,
    columns: opt.Columns = None,
    data_dir: opt.DataDir = None,
) -> None:
    """Prepare the data of a node from its own file, or divide a whole data set into nodes."""
    spec = opt.run_spec(context)
    split = prepare(load_data(spec, data_dir), spec.evaluation)
    if catalogue is not None:
        if nodes != 1:
            raise UnskewError("--catalogue is for one node's own file; leave out --nodes.")
        own, lost = node_data.renumber(split, catalogue, first_user)
        node_data.write_node_data(out, own)
        last = first_user + split.n_users - 1
        stdout.print(f"{split.n_users:,} users, numbers {first_user} to {last}, are in {out}.")
        if lost:
            stderr.print(f"{lost:,} rows are of items that are not in the catalogue: left out.")
        return
    for number, users in enumerate(node_data.divide_users(split.n_users, nodes), 1):
        node_data.write_node_data(out / f"node-{number}", node_data.take_users(split, users))
    node_data.write_catalogue(out / "catalogue.json", split)
    stdout.print(
        f"{split.n_users:,} users and {split.n_items:,} items for {nodes} nodes are in {out}; "
        f"the run-config needs users={split.n_users} items={split.n_items}."
    )


@app.command("app")
def flower_app(
    out: Annotated[Path, Argument(metavar="DIR")],
    set_: Annotated[
        list[str], Option("--set", help="A key of the run-config: key=value; may repeat.")
    ],
) -> None:
    """Check a run-config and write the Flower app that `flwr run DIR` sends."""
    from unskew.deploy.task import write_app

    config = opt.parse_pairs(set_, "--set")
    if "method" in config:
        admit_method(config["method"])
    if config.get("state"):
        config["state"] = str(Path(config["state"]).expanduser().resolve())
    write_app(out, config)
    stdout.print(f"The app is in {out}: flwr run {out} SUPERLINK --stream")


@app.command()
def demo(
    out: Annotated[Path, Option(help="Where everything goes.")] = Path("runs/flower-demo"),
    data: opt.Data = None,
    rounds: Annotated[int, Option(help="Global rounds.", min=1)] = 3,
    seed: opt.Seed = 0,
    data_dir: opt.DataDir = None,
    json: opt.Json = False,
) -> None:
    """Run three nodes on loopback, with TLS and node authentication; compare with the simulator."""
    from unskew.deploy.loopback import Loopback

    split = prepare(load_data(RunSpec(data=data or RunSpec.data), data_dir))
    three = node_data.take_users(split, node_data.divide_users(split.n_users, 1)[0][:3]).split
    runs = [(name, federation) for federation in (split, three) for name in _METHODS]
    _clear_folder(out)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes end too
    compared, console = [], stderr if json else stdout
    with Loopback(out, nodes=3) as network:
        stderr.print("Starting a SuperLink on loopback, with TLS and node authentication ...")
        network.start_superlink()
        for number in (1, 2, 3):
            network.register(number)
        for method, federation in runs:
            folder = out.resolve() / f"{method}-{federation.n_users}-users"
            compared.append(_compare(network, folder, method, federation, rounds, seed, console))
    if json:
        print_json({"runs": compared, "tolerance": MAX_RELATIVE_DIFFERENCE})
    far = [run for run in compared if not run["relative_difference"] < MAX_RELATIVE_DIFFERENCE]
    if far:
        raise UnskewError(
            f"{far[0]['method']} differs from the simulator by {far[0]['relative_difference']:.2g};"
            f" the limit is {MAX_RELATIVE_DIFFERENCE:g}; the logs are in {out}."
        )


def _clear_folder(out: Path) -> None:
    """Delete the files of an earlier demo; a folder with other files is an error."""
    if out.exists() and not out.is_dir():
        raise UnskewError(f"--out {out} is a file; name a folder.")
    if out.exists() and any(out.iterdir()) and not (out / _MARKER).exists():
        raise UnskewError(f"--out {out} holds something else than this demo; name another folder.")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARKER).write_text("unskew deploy demo deletes its own files here when run again.\n")
    for path in [path for pattern in _OUTPUTS for path in out.glob(pattern)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _compare(
    network: Loopback,
    folder: Path,
    method: str,
    split: Split,
    rounds: int,
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """Train a method on Flower and in the simulator. Returns a dict with the relative difference
    of the two server models."""
    from unskew.deploy.server import read_model
    from unskew.deploy.task import write_app

    settings: dict[str, Any] = {"rounds": rounds}
    if split.n_users == 3:
        settings["participation"] = 1.0  # so that all three users train
    pairs = " ".join(f"{key}={value}" for key, value in settings.items())
    config: dict[str, Any] = {"method": method, "settings": pairs, "seed": seed}
    config |= {"users": split.n_users, "items": split.n_items, "state": str(folder / "server")}
    write_app(folder / "app", {**config, "min-nodes": 3, "evaluate-every": 1})
    for number, users in enumerate(node_data.divide_users(split.n_users, 3), 1):
        node_data.write_node_data(folder / f"data-{number}", node_data.take_users(split, users))
        places = {key: str(folder / f"{key}-{number}") for key in ("data", "state")}
        network.start_node(number, {**places, "shared-seed": True})
    title = f"{method}, {split.n_users:,} users on 3 nodes"
    _watch(network, network.start_run(folder / "app"), folder / "server", title, console)
    for number in (1, 2, 3):
        network.stop(f"node-{number}")
    ours = Federation(create(method, **settings), split, seed).run(rounds).server
    last, server = read_model(folder / "server", ours)
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

    printed = 0

    def print_rounds() -> None:
        nonlocal printed
        evaluated = [row for row in read_rows(server) if "metrics" in row]
        for row in evaluated[printed:]:
            sizes = [decimal(row.get(key, 0)) for key in ("bytes_up", "bytes_down")]
            figures = {name: value for name, value in row["metrics"].items() if "ndcg@10" in name}
            console.print(
                f"{title}, round {row['round']}: {row['seconds']:.1f} s, {row['accepted']} of "
                f"{row['nodes']} nodes, {sizes[0]} up, {sizes[1]} down, "
                + ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
            )
        printed = len(evaluated)

    network.wait_for_run(run_id, server, print_rounds)
    print_rounds()


@contextmanager
def _best_device(state: Path, data: Path | None, method: str | None) -> Iterator[Device]:
    """Lock a device's state folder and open the device with the model of its best round. ``method``
    is ``package.module:Class``, needed if no installed package registers the method."""
    if method is not None:
        admit_method(method)
    if not state.is_dir():  # the lock would create it
        raise UnskewError(f"There is no state folder {state}; a node's node-config names its own.")
    with node_data.lock_folder(state):
        yield Device.open(state, data, best=True)


@device_app.command()
def status(
    state: State,
    data: StateData = None,
    method: opt.MethodOfRun = None,
    json: opt.Json = False,
) -> None:
    """Show the federation, the number of users, the last round and the privacy guarantee."""
    with _best_device(state, data, method) as best:
        device = Device.open(state, data)
        privacy = privacy_guarantee(state)
    task, at = device.task, device.progress
    files = sum(path.stat().st_size for path in state.glob("*.safetensors"))
    about = {
        "method": task.method,
        "settings": task.settings,
        "users": len(device.data.users),
        "items": task.n_items,
        "last_round": at.round,
        "rounds_trained": at.rounds_trained,
        "recommends_from_round": best.progress.round,
        "step2_due_for": len(at.due),
        "privacy": privacy,
        "bytes": files,
        "data": device.data.split.data,
        "state": str(state),
    }
    if json:
        print_json(about)
        return
    stdout.print(
        f"{task.method} {task.settings}".strip()
        + f": {about['users']:,} of the federation's {task.n_users:,} users, "
        f"{task.n_items:,} items, {decimal(files)} of state"
    )
    stdout.print(
        f"Last round {at.round}, trained in {at.rounds_trained} rounds; "
        f"recommends from {best.progress.round}."
    )
    stdout.print(f"Uploads: {privacy['statement']}.")
    if len(at.due):
        stdout.print(f"Step 2 is due for {len(at.due):,} users; the next use of the state does it.")


@device_app.command()
def recommend(
    state: State,
    user: Annotated[str | None, Option(help="A user's label; needed if several.")] = None,
    k: opt.K = 10,
    data: StateData = None,
    method: opt.MethodOfRun = None,
    json: opt.Json = False,
) -> None:
    """Recommend items that a user of this device has not had, with the model of the best round."""
    with _best_device(state, data, method) as device:
        labels = device.data.split.user_ids
        if user is None and len(labels) > 1:
            raise UnskewError(f'{len(labels)} users are here; say which: --user "{labels[0]}".')
        found = device.recommender().recommend(user or labels[0], k)
    if json:
        print_json({"state": str(state), "user": user or labels[0], "recommendations": found})
        return
    print_recommendations(found)


@device_app.command()
def evaluate(
    state: State,
    data: StateData = None,
    method: opt.MethodOfRun = None,
    json: opt.Json = False,
) -> None:
    """Compute metrics over this device's users, with the model of the best round."""
    with _best_device(state, data, method) as device:
        sums = {part: device.metric_sums(part) for part in ("validation", "test")}
    means = {
        part: {name: total / count for name, (total, count) in values.items() if count}
        for part, values in sums.items()
    }
    if json:
        print_json({"state": str(state), "users": len(device.data.users), **means})
        return
    names = [name for name in means["test"] if name.endswith("@10")]
    rows = [
        [name.upper(), *(f"{means[part].get(name, float('nan')):.4f}" for part in means)]
        for name in names
    ]
    print_table(["metric", *means], rows)
