"""``unskew device``: status, recommendations and metrics from a device's own state, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unskew.cli import _options as opt
from unskew.cli._output import print_json, print_table, size, stdout
from unskew.types import UnskewError

app = typer.Typer(help="A device's own state: status, recommend, evaluate.", no_args_is_help=True)

State = Annotated[Path, typer.Option(help="The device's state folder.")]
Data = Annotated[Path | None, typer.Option(help="Its data folder, if it has moved.")]


@app.command()
def status(state: State, data: Data = None, json: opt.Json = False) -> None:
    """Show the federation, the number of users, the last round and the privacy guarantee."""
    from unskew.deploy.account import privacy_guarantee
    from unskew.deploy.device import Device
    from unskew.deploy.node_data import lock_folder

    _check_folder(state)
    with lock_folder(state):
        device = Device.open(state, data)
        chosen = Device.open(state, data, best=True).progress.round
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
        "recommends_from_round": chosen,
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
        f"{task.n_items:,} items, {size(files)} of state"
    )
    stdout.print(
        f"Last round {at.round}, trained in {at.rounds_trained} rounds; recommends from {chosen}."
    )
    stdout.print(f"Uploads: {privacy['statement']}.")
    if len(at.due):
        stdout.print(f"Step 2 is due for {len(at.due):,} users; the next use of the state does it.")


@app.command()
def recommend(
    state: State,
    user: Annotated[str | None, typer.Option(help="A user's label; needed if several.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many.", min=1)] = 10,
    data: Data = None,
    json: opt.Json = False,
) -> None:
    """Recommend items that a user of this device has not had, with the model of the best round."""
    from unskew.deploy.device import Device
    from unskew.deploy.node_data import find_user, lock_folder

    _check_folder(state)
    with lock_folder(state):
        device = Device.open(state, data, best=True)
        labels = device.data.split.user_ids
        if user is None and len(labels) > 1:
            raise UnskewError(f'{len(labels)} users are here; say which: --user "{labels[0]}".')
        found = device.recommend(0 if user is None else find_user(user, labels), k)
    if json:
        print_json({"state": str(state), "user": user or labels[0], "recommendations": found})
        return
    print_table(
        ["rank", "item", "title", "score"],
        [[str(r["rank"]), r["item"], r["title"], f"{r['score']:.3f}"] for r in found],
    )


@app.command()
def evaluate(state: State, data: Data = None, json: opt.Json = False) -> None:
    """Compute metrics over this device's users, with the model of the best round."""
    from unskew.deploy.device import Device
    from unskew.deploy.node_data import lock_folder

    _check_folder(state)
    with lock_folder(state):
        device = Device.open(state, data, best=True)
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


def _check_folder(state: Path) -> None:
    """Refuse a missing folder, before the lock would create it."""
    if not state.is_dir():
        raise UnskewError(f"There is no state folder {state}; a node's node-config names its own.")
