"""Flower's ClientApp: how a node answers messages.

``--node-config`` names the node's data folder (``data``) and state folder (``state``). Other
keys: ``ldp-noise``, ``ldp-clip``, ``ldp-norm`` and ``ldp-kind`` add noise to every upload (or
``transform = "module:function"`` names a function that does). ``require-secure = true`` refuses
to send an unmasked upload. ``shared-seed = true`` makes runs repeatable, but the server can then
work out the negatives a device draws. ``step2-at-once = false`` leaves Step 2 to the next message
instead of a process after the reply.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from unskew.deploy import secure
from unskew.deploy.device import Device
from unskew.deploy.messages import read_download
from unskew.deploy.node_data import lock_folder, owner_only
from unskew.deploy.task import read_run_config
from unskew.engine import Transform
from unskew.privacy import LocalPrivacy, PrivateUploads
from unskew.types import UnskewError

_LDP_KEYS = {"ldp-noise": float, "ldp-clip": float, "ldp-norm": str, "ldp-kind": str}
_FLAGS = {"require-secure": False, "shared-seed": False, "step2-at-once": True}
_NODE_KEYS = ("data", "state", "transform", *_LDP_KEYS, *_FLAGS)
log = logging.getLogger("flwr")


def train(message: Message, context: Context) -> Message:
    """Do Step 1 and reply with the upload. Step 2 runs in a process of its own, started last, which
    waits until this one has released the state."""
    _, rules = read_run_config(context.run_config)
    masked = secure.is_secure(message)
    if _flag(context, "require-secure") and not masked:
        raise UnskewError("This node sends masked uploads only; run with secure = true.")
    at_once = _flag(context, "step2-at-once")
    about = message.content.config_records["round"]
    round, best = (int(str(about[key])) for key in ("round", "best"))
    folder = Path(_folder_name(context, "state"))
    with lock_folder(folder):
        device = _join(context, folder)
        named = {k: a.numpy() for k, a in message.content.array_records["download"].items()}
        sizes = device.task.n_users, device.task.n_items
        download = read_download(device.method, named, *sizes)
        device.keep_as_best(best)
        upload = device.step1(round, download, _transform(context, device.seeds.noise))
        trained = len(device.progress.due)
    log.info("Round %d: trained %d of %d users", round, trained, len(device.data.users))
    if trained and at_once:
        _start_step2(folder)
    if masked:
        return Message(secure.secure_content(upload, device.task, rules), reply_to=message)
    record = ArrayRecord({name: Array(array) for name, array in upload.items()})
    return Message(RecordDict({"upload": record}), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    """Reply with the sums of the metrics over the node's users, each with its current model."""
    folder = Path(_folder_name(context, "state"))
    with lock_folder(folder):
        device = _join(context, folder)
        sums: dict[str, int | float | list[int] | list[float]] = {}
        for part in ("validation", "test"):
            for name, (total, count) in device.metric_sums(part).items():
                sums[f"{part}.{name}"] = [total, float(count)]
    return Message(RecordDict({"sums": MetricRecord(sums)}), reply_to=message)


def choose(message: Message, context: Context) -> Message:
    """Keep the state of the best round, which the server names after the last one."""
    folder = Path(_folder_name(context, "state"))
    with lock_folder(folder):
        device = _join(context, folder)
        device.keep_as_best(int(str(message.content.config_records["best"]["best"])))
    return Message(RecordDict(), reply_to=message)


def client_app() -> ClientApp:
    app = ClientApp()
    app.train(mods=[secure.mask_if_asked])(train)
    app.evaluate()(evaluate)
    app.query()(choose)
    return app


def _join(context: Context, folder: Path) -> Device:
    """Check the node-config and open the device."""
    for key in context.node_config:
        if key not in _NODE_KEYS:
            raise UnskewError(f'The node-config has no "{key}"; it has {", ".join(_NODE_KEYS)}.')
    task, _ = read_run_config(context.run_config)
    data = Path(_folder_name(context, "data"))
    return Device.join(folder, data, task, shared_seed=_flag(context, "shared-seed"))


def _transform(context: Context, noise_key: int) -> Transform | None:
    """The transform of uploads that the node-config asks for, if any."""
    name = str(context.node_config.get("transform", ""))
    asked = {key.removeprefix("ldp-"): value for key, value in _ldp_settings(context).items()}
    if asked and name:
        raise UnskewError("A node-config has either transform or ldp-noise, not both.")
    if asked:
        if "noise" not in asked:
            raise UnskewError("A node-config with ldp-clip, ldp-norm or ldp-kind needs ldp-noise.")
        wanted = LocalPrivacy(**asked)
        return PrivateUploads(wanted.with_noise(asked["noise"]), noise_key)
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        found: Transform = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnskewError(
            f'transform = "{name}" must be "module:function" that can be imported ({error}).'
        ) from None
    return found


def _ldp_settings(context: Context) -> dict[str, Any]:
    """The keys ``ldp-...`` of the node-config, checked."""
    found: dict[str, Any] = {}
    for key, kind in _LDP_KEYS.items():
        value = context.node_config.get(key)
        if value is None:
            continue
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            wanted = "a number" if kind is float else "a name in quotes"
            raise UnskewError(f"{key} = {value!r} in the node-config must be {wanted}.")
        found[key] = value
    return found


def _start_step2(folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that does Step 2; its errors go to ``step2.log``."""
    with owner_only(), (folder / "step2.log").open("ab") as log_file:
        return subprocess.Popen(
            [sys.executable, "-m", "unskew.deploy.device", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            start_new_session=True,
        )


def _folder_name(context: Context, key: str) -> str:
    if not context.node_config.get(key):
        raise UnskewError(f'The node-config must name the node\'s {key} folder: {key}="...".')
    return str(context.node_config[key])


def _flag(context: Context, key: str) -> bool:
    value = context.node_config.get(key, _FLAGS[key])
    if not isinstance(value, bool):
        raise UnskewError(f"{key} = {value!r} in the node-config must be true or false.")
    return value


app = client_app()
