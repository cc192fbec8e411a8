"""The ClientApp: what a node does when a message comes.

``--node-config`` names the node's data folder (``data``) and state folder (``state``). And:
``transform = "module:function"`` puts a privacy mechanism between the method and the wire,
``require-secure = true`` refuses to send an unmasked upload, ``shared-seed = true`` makes runs
repeatable at the price of a server that can name the negatives a device draws, and
``step2-at-once = false`` leaves Step 2 to the next contact instead of a process after the reply.
"""

from __future__ import annotations

import importlib
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from unskew.deploy import _secure
from unskew.deploy._device import Device
from unskew.deploy._files import locked
from unskew.deploy._task import read_run_config
from unskew.engine import Transform
from unskew.types import UnskewError

_NODE_KEYS = ("data", "state", "transform", "require-secure", "shared-seed", "step2-at-once")
log = logging.getLogger("flwr")


def train(message: Message, context: Context) -> Message:
    """Step 1, and the reply with what the method uploads. Step 2 is left to a process of its own,
    started last, which waits until this one has let go of the state."""
    _, rules = read_run_config(context.run_config)
    secure = _secure.is_secure(message)
    if _flag(context, "require-secure") and not secure:
        raise UnskewError("This node sends masked uploads only; run with secure = true.")
    round = int(message.content.config_records["round"]["round"])
    folder = Path(_needed(context, "state"))
    with locked(folder):
        device = _device(context, folder)
        named = {k: a.numpy() for k, a in message.content.array_records["download"].items()}
        download = _like(device, named)
        upload = device.step1(round, download, _transform(context))
        shares = len(device.progress.due)
    log.info("Round %d: trained %d of %d users", round, shares, len(device.data.users))
    if shares and bool(context.node_config.get("step2-at-once", True)):
        _start_step2(folder)
    if secure:
        return Message(_secure.masked_content(upload, device.task, rules), reply_to=message)
    record = ArrayRecord({name: Array(array) for name, array in upload.items()})
    return Message(RecordDict({"upload": record}), reply_to=message)


def evaluate(message: Message, context: Context) -> Message:
    """Sums of metrics over the node's users, each with its own model as it stands."""
    folder = Path(_needed(context, "state"))
    with locked(folder):
        device = _device(context, folder)
        sums: dict[str, int | float | list[int] | list[float]] = {}
        for part in ("validation", "test"):
            for name, (total, count) in device.metric_sums(part).items():
                sums[f"{part}.{name}"] = [total, float(count)]
    return Message(RecordDict({"sums": MetricRecord(sums)}), reply_to=message)


def client_app() -> ClientApp:
    app = ClientApp()
    app.train(mods=[_secure.mask_if_asked])(train)
    app.evaluate()(evaluate)
    return app


def _device(context: Context, folder: Path) -> Device:
    for key in context.node_config:
        if key not in _NODE_KEYS:
            raise UnskewError(f'The node-config has no "{key}"; it has {", ".join(_NODE_KEYS)}.')
    task, _ = read_run_config(context.run_config)
    data = Path(_needed(context, "data"))
    return Device.join(folder, data, task, shared_seed=_flag(context, "shared-seed"))


def _like(device: Device, named: dict[str, Any]) -> Any:
    """The download, in the method's own type and with the shapes it must have."""
    example = next(iter(device.devices.downloads.values()))
    if set(named) != set(example._fields):
        raise UnskewError(f"The download holds {sorted(named)}, not {sorted(example._fields)}.")
    for name, array in named.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UnskewError(f"{name} of the download holds NaN or infinity.")
    return type(example)(**named)


def _transform(context: Context) -> Transform | None:
    name = str(context.node_config.get("transform", ""))
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


def _start_step2(folder: Path) -> None:
    subprocess.Popen(
        [sys.executable, "-m", "unskew.deploy.step2", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _needed(context: Context, key: str) -> str:
    if not context.node_config.get(key):
        raise UnskewError(f'The node-config must name the node\'s {key} folder: {key}="...".')
    return str(context.node_config[key])


def _flag(context: Context, key: str) -> bool:
    return bool(context.node_config.get(key, False))


app = client_app()
