"""``unskew deploy``: keys, node data, the Flower app and its signature, the gate, the doctor, and a
whole federation on this machine (``up``, ``demo``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Context, Exit, Option, Typer

from unskew.cli import _deploy_up
from unskew.cli import _options as opt
from unskew.cli._output import load_data, print_json, stderr, stdout
from unskew.deploy import node_data
from unskew.evaluation import prepare
from unskew.methods import admit_method
from unskew.types import Split, UnskewError

app = Typer(
    help="Run a federation on Flower: up, keys, data, app, sign, gate, doctor.",
    no_args_is_help=True,
)
app.command()(_deploy_up.up)
app.command()(_deploy_up.demo)


@app.command()
def keys(
    folder: Annotated[Path, Argument(metavar="DIR")],
    nodes: Annotated[int, Option(help="How many nodes get keys.", min=1)] = 3,
    host: Annotated[
        list[str] | None, Option(help="A name or address of the server; may repeat.")
    ] = None,
) -> None:
    """Make a development CA, the server's certificate, the operator's and the nodes' keys."""
    from unskew.deploy.keys import write_keys

    written = write_keys(folder, host or (), nodes)
    if not written:
        stdout.print(f"{folder} already has all of them.")
        return
    stdout.print(f"{len(written)} files in {folder}: " + ", ".join(path.name for path in written))
    stdout.print(
        "Keep ca.key and operator.key off the server. Give each node its own node-N.*, ca.crt and "
        "trusted.yaml."
    )


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
        stdout.print("The operator needs to know: " + _weights([own.split]))
        if lost:
            stderr.print(f"{lost:,} rows are of items that are not in the catalogue: left out.")
        return
    divided = [
        node_data.take_users(split, users) for users in node_data.divide_users(split.n_users, nodes)
    ]
    for number, part in enumerate(divided, 1):
        node_data.write_node_data(out / f"node-{number}", part)
    node_data.write_catalogue(out / "catalogue.json", split)
    stdout.print(
        f"{split.n_users:,} users and {split.n_items:,} items for {nodes} nodes are in {out}; "
        f"the run-config needs users={split.n_users} items={split.n_items}."
    )
    stdout.print(_weights([part.split for part in divided]))


def _weights(splits: list[Split]) -> str:
    """The weight of the largest node, as ``max-weight`` needs it."""
    rows = max(len(split.train.items) for split in splits)
    users = max(split.n_users for split in splits)
    return (
        f"max-weight={rows} x (1 + negatives), so {rows * 5} with the usual 4, for methods that "
        f"draw negatives; max-weight={users} for methods in which a user weighs 1, as in fedrefit."
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
    stdout.print(
        f"The app is in {out}. Nodes run it once it is signed: unskew deploy sign {out} --key "
        "keys/operator.key --signatures signatures"
    )


@app.command()
def sign(
    folder: Annotated[Path, Argument(metavar="APP")],
    key: Annotated[Path, Option(help="The operator's private key.")],
    signatures: Annotated[Path, Option(help="The folder that the gate reads.")],
) -> None:
    """Sign an app as `flwr run APP` sends it. Nodes run no other app."""
    from unskew.deploy.signing import sign_app

    digest = sign_app(folder, key, signatures)
    stdout.print(f"{signatures / digest}.json is the signature of {folder}.")
    stdout.print("Sign again after every change of the app; changes by --run-config need none.")


@app.command()
def gate(
    keys: Annotated[Path, Argument(help="Folder of ca.crt, server.crt and server.key.")],
    host: Annotated[str, Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    superlink: Annotated[str, Option(help="Address of the SuperLink.")] = "127.0.0.1:8001",
    signatures: Annotated[Path, Option(help="Folder of signed apps.")] = Path("signatures"),
) -> None:
    """Open the address that nodes use: passes on their calls to the SuperLink, and nothing else."""
    from unskew.deploy.gate import serve

    stderr.print(f"The gate passes nodes' calls at {host}:{port} on to {superlink}.")
    serve(host, port, superlink, keys, signatures)


@app.command()
def doctor(
    folder: Annotated[Path, Argument(metavar="DIR")],
    server: Annotated[
        str | None, Option(help="The gate's address, host:port: check the server, too.")
    ] = None,
    json: opt.Json = False,
) -> None:
    """Check certificates, clock, permissions, data and, with --server, what the server exposes."""
    from unskew.deploy.doctor import examine

    findings = list(examine(folder, server))
    wrong = sum(not finding.ok for finding in findings)
    if json:
        print_json({"findings": [finding._asdict() for finding in findings], "wrong": wrong})
    else:
        for finding in findings:
            stdout.print(f"{'ok   ' if finding.ok else 'WRONG'} {finding.text}")
        if server is None:
            stdout.print("The server was not looked at; give its address: --server HOST:PORT")
    if wrong:
        raise Exit(1)
