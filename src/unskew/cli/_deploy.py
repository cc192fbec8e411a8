"""``unskew deploy``: keys, node data, the Flower app, and a demo on loopback."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from unskew.cli import _options as opt
from unskew.cli._output import print_json, size, stderr, stdout
from unskew.types import Split, UnskewError

if TYPE_CHECKING:
    from unskew.deploy.loopback import Loopback

app = typer.Typer(help="Run a federation on Flower: keys, data, app, demo.", no_args_is_help=True)

TOLERANCE = 1e-4
"""Largest relative difference between the server models of Flower and the simulator."""
_METHODS = ("pfedclr", "fedrefit")
_MARKER = "flower-demo.txt"
_OUTPUTS = ("keys", "flwr", "superlink.*", "node-?.log", *(f"{name}-*-users" for name in _METHODS))
"""Patterns of the files that the demo writes, and deletes when it is run again."""


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    nodes: Annotated[int, typer.Option(help="How many nodes get keys.", min=1)] = 3,
    host: Annotated[
        list[str] | None, typer.Option(help="A name or address of the server; may repeat.")
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
def node_data(
    out: Annotated[Path, typer.Argument(metavar="DIR")],
    data: Annotated[str, typer.Option(help="A source's name or a file.")] = "demo",
    nodes: Annotated[int, typer.Option(help="Number of nodes to divide it into.", min=1)] = 1,
    catalogue: Annotated[
        Path | None, typer.Option(help="The federation's items, for a node's own file.")
    ] = None,
    first_user: Annotated[
        int, typer.Option(help="With --catalogue: the number of this node's first user.", min=0)
    ] = 0,
    protocol: Annotated[str, typer.Option(help="leak-free, time or paper.")] = "leak-free",
    columns: Annotated[str | None, typer.Option(help="user=uid,item=movie,timestamp=ts.")] = None,
    data_dir: opt.DataDir = None,
) -> None:
    """Prepare the data of a node from its own file, or divide a whole data set into nodes."""
    from unskew.data import load
    from unskew.deploy import node_data
    from unskew.evaluation import prepare

    names = opt.parse_columns(columns)
    split = prepare(load(data, data_dir=data_dir, columns=names), protocol)
    if catalogue is not None:
        if nodes != 1:
            raise UnskewError("--catalogue is for one node's own file; leave out --nodes.")
        own, lost = node_data.renumber_items(split, catalogue)
        node_data.write_node_data(out, node_data.number_users(own, first_user))
        last = first_user + own.n_users - 1
        stdout.print(f"{own.n_users:,} users, numbers {first_user} to {last}, are in {out}.")
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
    out: Annotated[Path, typer.Argument(metavar="DIR")],
    set_: Annotated[
        list[str], typer.Option("--set", help="A key of the run-config: key=value; may repeat.")
    ],
) -> None:
    """Check a run-config and write the Flower app that `flwr run DIR` sends."""
    from unskew.deploy.task import parse_config, write_app

    config = parse_config(opt.parse_pairs(set_, "--set"))
    if config.get("state"):
        config["state"] = str(Path(str(config["state"])).expanduser().resolve())
    write_app(out, config)
    stdout.print(f"The app is in {out}: flwr run {out} SUPERLINK --stream")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/flower-demo"),
    data: Annotated[str, typer.Option(help="A source's name or a file.")] = "demo",
    rounds: Annotated[int, typer.Option(help="Global rounds.", min=1)] = 3,
    seed: opt.Seed = 0,
    data_dir: opt.DataDir = None,
    json: opt.Json = False,
) -> None:
    """Run three nodes on loopback, with TLS and node authentication; compare with the simulator."""
    from unskew.data import load
    from unskew.deploy import node_data
    from unskew.deploy.loopback import Loopback
    from unskew.evaluation import prepare

    split = prepare(load(data, data_dir=data_dir))
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
        print_json({"runs": compared, "tolerance": TOLERANCE})
    far = [run for run in compared if not run["relative_difference"] < TOLERANCE]
    if far:
        raise UnskewError(
            f"{far[0]['method']} differs from the simulator by {far[0]['relative_difference']:.2g};"
            f" the limit is {TOLERANCE:g}; the logs are in {out}."
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
    """Run the rounds on Flower and in the simulator, and compare the models."""
    from unskew.deploy import node_data
    from unskew.deploy.server import read_model
    from unskew.deploy.task import write_app
    from unskew.engine import Federation
    from unskew.methods import create

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
    federation = Federation(create(method, **settings), split, seed)
    state = federation.run(rounds)
    last, server = read_model(folder / "server", state.server)
    if last != rounds:
        raise UnskewError(f"Flower ended after round {last} of {rounds}; see {folder.parent}.")
    difference = max(_relative_difference(a, b) for a, b in zip(server, state.server, strict=True))
    verdict = "less" if difference < TOLERANCE else "NOT less"
    console.print(
        f"{title}: the global items of Flower and simulator differ by {difference:.1e} relative "
        f"after {rounds} rounds, {verdict} than {TOLERANCE:g}."
    )
    return {"method": method, "users": split.n_users, "relative_difference": difference}


def _watch(network: Loopback, run_id: str, server: Path, title: str, console: Console) -> None:
    """Show a table that grows with the rounds, until the run ends."""
    from unskew.deploy.server import read_rows

    def table() -> Table:
        rows = Table(title=title, title_justify="left", title_style="bold", box=None)
        for name in ("round", "seconds", "nodes", "up", "down", "val NDCG@10", "test NDCG@10"):
            rows.add_column(name, justify="right")
        for row in read_rows(server):
            metrics = row.get("metrics", {})
            figures = [metrics.get(f"{part}.ndcg@10") for part in ("validation", "test")]
            rows.add_row(
                str(row["round"]),
                f"{row['seconds']:.1f}",
                f"{row['accepted']}/{row['nodes']}",
                size(row.get("bytes_up", 0)),
                size(row.get("bytes_down", 0)),
                *("" if figure is None else f"{figure:.4f}" for figure in figures),
            )
        return rows

    with Live(console=stderr, refresh_per_second=2, transient=True) as live:
        network.wait_for_run(run_id, server, lambda: live.update(table()))
    console.print(table())


def _relative_difference(a: Any, b: Any) -> float:
    """The relative difference ``|a - b| / |b|``."""
    import numpy as np

    if a.shape != b.shape:
        return float("inf")
    length = float(np.linalg.norm(b.astype(np.float64)))
    return float(np.linalg.norm(a.astype(np.float64) - b)) / (length or 1.0)
