"""Flower's ClientApp: how a node answers the server's messages, and the settings of a node."""

from __future__ import annotations

import logging
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp

from unskew.deploy import guard, secure
from unskew.deploy.device import Device
from unskew.deploy.messages import About, download_digest, read_download
from unskew.deploy.node_data import lock_folder, owner_only
from unskew.deploy.task import read_config, read_run_config
from unskew.engine import Transform
from unskew.methods import admit_method
from unskew.privacy import LocalPrivacy, PrivateUploads
from unskew.settings import Settings, setting
from unskew.types import UnskewError

log = logging.getLogger("flwr")


@dataclass(frozen=True)
class NodeConfig(Settings):
    """Settings of a node: the keys of Flower's ``--node-config``, with hyphens for underscores."""

    data: str = ""
    """The node's data folder."""
    state: str = ""
    """The node's state folder."""
    method: str = ""
    """``package.module:Class`` of the federation's method, if no installed package registers it.
    The server's configuration alone never makes a node import code."""
    transform: str = ""
    """``module:function`` that changes every upload before it is sent."""
    ldp_noise: float | None = None
    """Strength of the noise on every upload; this and the next three are as in ``LocalPrivacy``."""
    ldp_clip: float | None = None
    ldp_norm: str | None = None
    ldp_kind: str | None = None
    require_secure: bool = False
    """Refuse to send an unmasked upload."""
    shared_seed: bool = False
    """Use the federation's seed for random draws. Runs are then repeatable, but the server can work
    out the negatives that a device draws."""
    least_users: int = 0
    """Items that fewer users of the federation have take no part in what this node sends; the
    catalogue says how many have each."""
    secure_nodes: int = setting(3, at_least=2)
    """Least number of nodes in a masked sum, this one included."""
    secure_share: float = setting(0.5, at_least=0.5, at_most=1)
    """More than this share of a masked sum's nodes must be needed to remove masks."""
    step2_at_once: bool = True
    """Run Step 2 (training after the upload) at once in its own process, not at the next
    message."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("data", "state"):
            if not getattr(self, key):
                raise UnskewError(f'The node-config needs the node\'s {key} folder: {key}="...".')


def train(message: Message, context: Context) -> Message:
    """Do Step 1 (training before the upload) and reply with the upload. Start Step 2 (training
    after the upload) in another process, which waits until this one has unlocked the state."""
    config, masked = _node_config(context), secure.is_secure(message)
    round, best = _about(message, "round"), _about(message, "best")
    rules = read_run_config(context.run_config)
    if not masked:
        if config.require_secure or rules.secure:
            raise UnskewError("This node sends masked uploads only; run with secure = true.")
        guard.check_plain(Path(config.state), round)
    with _open_device(context) as device:
        download = _read_download(message, device)
        if device.method.stateless:
            device.deliver(round - 1, download)
        device.keep_as_best(best)
        transform = _transform(config, device.seeds.noise)
        upload = device.step1(round, download, transform, config.least_users)
        users, digest = device.data.users, download_digest(download).tobytes()
        about = About(round, digest, int(users.min()), int(users.max()))
        trained = len(device.progress.due)
    log.info("Round %d: trained %d of %d users", round, trained, len(device.data.users))
    if trained and config.step2_at_once:
        _start_step2(device.folder, config.method)
    if masked:
        content = secure.secure_content(upload, rules)
    else:
        record = ArrayRecord({name: Array(array) for name, array in upload.items()})
        content = RecordDict({"upload": record})
    content["about"] = ConfigRecord(about._asdict())
    return Message(content, reply_to=message)


def mask_if_asked(message: Message, context: Context, call_next: Any) -> Message:
    """Apply Flower's SecAgg+ mod to messages of its protocol, if this node agrees to what they ask;
    pass other messages on unchanged."""
    if not secure.is_secure(message):
        return call_next(message, context)
    config, rules = _node_config(context), read_run_config(context.run_config)
    least = guard.Least(config.secure_nodes, config.secure_share)
    guard.check_masked(message, context, Path(config.state), rules, least)
    return secaggplus_mod(message, context, call_next)


def evaluate(message: Message, context: Context) -> Message:
    """Reply with each metric's sum over the node's users, with their current models or those of the
    download in the message, and the number of users in the sum."""
    sums: dict[str, int | float | list[int] | list[float]] = {}
    with _open_device(context) as device:
        if device.method.stateless:
            device.deliver(_about(message, "round"), _read_download(message, device))
        for part in ("validation", "test"):
            for name, (total, count) in device.metric_sums(part).items():
                sums[f"{part}.{name}"] = [total, float(count)]
    return Message(RecordDict({"sums": MetricRecord(sums)}), reply_to=message)


def choose(message: Message, context: Context) -> Message:
    """Save the node's state as that of the best round, whose number the server sends, if it is. A
    method without parameters per user first gets the last download, which comes along."""
    with _open_device(context) as device:
        if device.method.stateless:
            device.deliver(_about(message, "round"), _read_download(message, device))
        device.keep_as_best(_about(message, "best"))
    return Message(RecordDict(), reply_to=message)


def _about(message: Message, key: str) -> int:
    """A number that the server sends with a message: the round, or the best round so far."""
    return int(str(message.content.config_records["round"][key]))


def _read_download(message: Message, device: Device) -> Any:
    named = {k: a.numpy() for k, a in message.content.array_records["download"].items()}
    return read_download(device.method, named, device.task.n_users, device.task.n_items)


def _node_config(context: Context) -> NodeConfig:
    return read_config(NodeConfig, context.node_config, "The node-config")


@contextmanager
def _open_device(context: Context) -> Iterator[Device]:
    """Lock the node's state folder and open the device (data and state of the node's users)."""
    config = _node_config(context)
    if config.method:
        admit_method(config.method)
    rules = read_run_config(context.run_config)
    state, data = Path(config.state), Path(config.data)
    with lock_folder(state):
        shared = config.shared_seed
        yield Device.join(state, data, rules.task, shared_seed=shared, catalogue=rules.catalogue)


def _transform(config: NodeConfig, noise_key: int) -> Transform | None:
    """The function that changes uploads before they are sent, from the node-config, or None."""
    ldp = {key: getattr(config, f"ldp_{key}") for key in ("noise", "clip", "norm", "kind")}
    asked = {key: value for key, value in ldp.items() if value is not None}
    if asked and config.transform:
        raise UnskewError("A node-config has either transform or ldp-noise, not both.")
    if asked and config.ldp_noise is None:
        raise UnskewError("A node-config with ldp-clip, ldp-norm or ldp-kind needs ldp-noise.")
    if config.ldp_noise is not None:
        return PrivateUploads(LocalPrivacy(**asked).with_noise(config.ldp_noise), noise_key)
    if not config.transform:
        return None
    try:
        found: Transform = pkgutil.resolve_name(config.transform)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnskewError(
            f'transform = "{config.transform}" must be "module:function" that can be imported '
            f"({error})."
        ) from None
    return found


def _start_step2(folder: Path, method: str = "") -> subprocess.Popen[bytes]:
    """Start a process for Step 2 (training after the upload); its errors go to ``step2.log``.
    ``method`` is the value of ``method`` in the node-config."""
    with owner_only(), (folder / "step2.log").open("ab") as log_file:
        return subprocess.Popen(
            [sys.executable, "-m", "unskew.deploy.device", str(folder), *filter(None, [method])],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )


app = ClientApp()
app.train(mods=[mask_if_asked])(train)
app.evaluate()(evaluate)
app.query()(choose)
