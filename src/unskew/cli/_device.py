"""``unskew device``: status, recommendations and metrics from the state saved on a device, without
the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from rich.filesize import decimal
from typer import Option, Typer

from unskew.cli import _options as opt
from unskew.cli._output import print_json, print_recommendations, print_table, stdout
from unskew.deploy import node_data
from unskew.deploy.account import privacy_guarantee
from unskew.deploy.device import Device
from unskew.methods import admit_method
from unskew.types import UnskewError

app = Typer(help="A device's own state: status, recommend, evaluate.", no_args_is_help=True)
State = Annotated[Path, Option(help="The device's state folder.")]
StateData = Annotated[Path | None, Option("--data", help="Its data folder, if it has moved.")]


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


@app.command()
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


@app.command()
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


@app.command()
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
