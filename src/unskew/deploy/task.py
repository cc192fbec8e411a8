"""The settings of a deployed federation: Flower's run-config, and the app that carries it.

The server and the nodes read the same run-config, so they build the same method. Values are
numbers, booleans and strings, as Flower allows; the method's own settings are one string of
``key=value`` pairs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from unskew.engine import draw_cohort
from unskew.files import write_text
from unskew.methods import create
from unskew.types import Int64, Method, UnskewError

Robust = Literal["none", "clip", "median", "trimmed"]

DEFAULTS: dict[str, str | int | float | bool] = {
    "method": "pfedclr",
    "settings": "",
    "seed": 0,
    "users": 0,
    "items": 0,
    "state": "",
    "min-nodes": 2,
    "wait-for-nodes": 600.0,
    "round-timeout": 600.0,
    "evaluate-every": 0,
    "max-norm": 1e4,
    "max-weight": 0.0,
    "robust": "none",
    "trim": 0.2,
    "secure": False,
    "secure-clip": 8.0,
}
"""Every key of the run-config, with its default."""
_MINIMUM = {"min-nodes": 1, "evaluate-every": -1}
"""Smallest value of a numeric key; 0 for those not listed."""
_POSITIVE = ("round-timeout", "secure-clip")
"""Numeric keys that must not be 0."""
_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "unskew-app"
version = "1.0.0"
description = "Unskew on Flower"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "unskew"

[tool.flwr.app.components]
serverapp = "unskew_app.server:app"
clientapp = "unskew_app.client:app"

[tool.flwr.app.config]
"""
"""The start of the app's ``pyproject.toml``; the run-config follows."""


@dataclass(frozen=True)
class Task:
    """The method, seed and size of a federation: what nodes and server must agree on."""

    method: str
    settings: str
    seed: int
    n_users: int
    n_items: int

    def build(self) -> Method:
        pairs = (pair.partition("=") for pair in self.settings.split())
        return create(self.method, **{key: value for key, _, value in pairs})

    def cohort_of(self, round: int) -> Int64:
        """The users who train in a round, as the simulator draws them."""
        return draw_cohort(self.seed, round, self.n_users, self.build().config.participation)

    def identity(self) -> dict[str, Any]:
        """The settings that tell this federation from another: all but the number of rounds."""
        config = asdict(self.build().config)
        del config["rounds"]
        return vars(self) | {"settings": config}

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Rules:
    """How the server runs the rounds, and the limits it sets for uploads."""

    min_nodes: int
    """Nodes that must be connected before a round starts."""
    wait_for_nodes: float
    """Seconds to wait for them before the run stops."""
    round_timeout: float
    """Seconds a node has to reply."""
    evaluate_every: int
    """Rounds between federated evaluations; 0: only after the last, -1: never."""
    max_norm: float
    """Largest norm of an update per unit of weight; 0: no limit."""
    max_weight: float
    """Largest weight of a node; 0: no limit, but with ``robust`` no node counts for more than the
    median node. Secure aggregation needs a limit."""
    robust: Robust
    """How the sum is protected from hostile nodes."""
    trim: float
    """For ``trimmed``: the share of nodes left out at either end."""
    secure: bool
    """Whether nodes mask their uploads with SecAgg+."""
    secure_clip: float
    """SecAgg+'s range for an entry of a node's sum divided by ``max_weight``."""


def read_run_config(given: Mapping[str, Any]) -> tuple[Task, Rules]:
    """Check a run-config and return it as values; an error names the key."""
    for key in given:
        if key not in DEFAULTS:
            raise UnskewError(f'The run-config has no "{key}"; it has {", ".join(DEFAULTS)}.')
    values = {key: _check_value(key, given.get(key, default)) for key, default in DEFAULTS.items()}
    task = Task(*(values[key] for key in ("method", "settings", "seed", "users", "items")))
    if task.n_users < 1 or task.n_items < 1:
        raise UnskewError("The run-config needs users and items: how many the federation has.")
    rules = Rules(**{field.name: values[field.name.replace("_", "-")] for field in fields(Rules)})
    _check_rules(task.build(), rules)
    return task, rules


def parse_config(given: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """Convert a run-config typed on a command line to the types of its keys."""
    parsed: dict[str, str | int | float | bool] = {}
    for key, text in given.items():
        kind = type(DEFAULTS.get(key, ""))
        try:
            booleans = {"true": True, "false": False}
            parsed[key] = booleans[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            wanted = "true or false" if kind is bool else "a number"
            raise UnskewError(f"{key} = {text} must be {wanted}.") from None
    return parsed


def write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the folder that ``flwr run FOLDER`` packs and sends.

    It holds a ``pyproject.toml`` with the run-config and two one-line modules. Everything else is
    the ``unskew`` installed on the machines. The run-config is checked here, not on the first node.
    """
    values = {**DEFAULTS, **config}
    read_run_config(values)
    # Strings, numbers and booleans are written alike in JSON and TOML.
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    files = {
        "pyproject.toml": _PYPROJECT + lines,
        "unskew_app/__init__.py": "",
        "unskew_app/client.py": 'from unskew.deploy.client import app\n\n__all__ = ["app"]\n',
        "unskew_app/server.py": 'from unskew.deploy.server import app\n\n__all__ = ["app"]\n',
    }
    for name, text in files.items():
        write_text(folder / name, text)


def _check_value(key: str, value: Any) -> Any:
    """The value in its key's type; numbers must be finite and within their bounds."""
    kind = type(DEFAULTS[key])
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UnskewError(f"{key} = {value!r} in the run-config must be of type {kind.__name__}.")
    if isinstance(value, int | float):
        least = _MINIMUM.get(key, 0)
        if not math.isfinite(value) or value < least or (key in _POSITIVE and value == 0):
            bound = "above 0" if key in _POSITIVE else f"at least {least}"
            raise UnskewError(f"{key} = {value} in the run-config must be finite and {bound}.")
    return value


def _check_rules(method: Method, rules: Rules) -> None:
    """Refuse combinations of a method and rules that cannot work."""
    if method.aggregation == "central":
        raise UnskewError(
            f"{method.name} is not federated: it needs all interactions in one place."
        )
    if rules.robust not in get_args(Robust):
        raise UnskewError(
            f'robust = "{rules.robust}" must be one of {", ".join(get_args(Robust))}.'
        )
    if not 0 <= rules.trim < 0.5:
        raise UnskewError(f"trim = {rules.trim} must be from 0 to below 0.5.")
    individual = method.aggregation == "individual"
    if rules.secure and individual:
        raise UnskewError(
            f"{method.name} needs every upload by itself, which secure aggregation hides; "
            "set secure = false or choose a method whose aggregation is a sum."
        )
    if rules.robust != "none" and (individual or rules.secure):
        why = f"{method.name} needs" if individual else "secure aggregation shows"
        what = "every upload as it is" if individual else "the server only the sum"
        raise UnskewError(f'robust = "{rules.robust}" does not go with this: {why} {what}.')
    if rules.secure and rules.max_weight == 0:
        raise UnskewError("secure = true needs a max-weight above 0.")
    if rules.secure and rules.min_nodes < 3:
        raise UnskewError(
            "secure = true needs min-nodes of at least 3: two see through each other."
        )
