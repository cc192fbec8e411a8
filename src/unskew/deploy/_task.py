"""What a federation has agreed on, and the limits its server keeps: read from Flower's run-config.

Both apps read the same run-config, so a node and the server build the same method. Values are
numbers, truths and strings, as Flower allows; the method's own settings are one string of
``key=value`` pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from unskew.engine import draw_cohort
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
"""Every key of the run-config, with the value it has where a run says nothing."""


@dataclass(frozen=True)
class Task:
    """A method, a seed and the federation's size: what a node and the server must agree on."""

    method: str
    settings: str
    seed: int
    n_users: int
    n_items: int

    def build(self) -> Method:
        pairs = (pair.partition("=") for pair in self.settings.split())
        return create(self.method, **{key: value for key, _, value in pairs})

    def cohort_of(self, round: int) -> Int64:
        """The clients of a round, as the simulator draws them."""
        return draw_cohort(self.seed, round, self.n_users, self.build().config.participation)

    def identity(self) -> dict[str, Any]:
        """What makes it this federation and no other. How long it goes on does not."""
        config = asdict(self.build().config)
        del config["rounds"]
        return vars(self) | {"settings": config}

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Rules:
    """How the server conducts a run."""

    min_nodes: int
    """A round starts once this many nodes are there."""
    wait_for_nodes: float
    """Seconds to wait for them before the run stops."""
    round_timeout: float
    """Seconds a node has to reply."""
    evaluate_every: int
    """Rounds between federated evaluations; 0: only after the last, -1: never."""
    max_norm: float
    """The longest update per unit of weight that is taken in; 0: any."""
    max_weight: float
    """The largest weight a node may claim; 0: any, but with ``robust`` no node counts for more than
    the median one. Secure aggregation needs one."""
    robust: Robust
    """What protects the sum from hostile nodes."""
    trim: float
    """For ``trimmed``: the share of nodes left out at either end."""
    secure: bool
    """Whether nodes mask their uploads with SecAgg+."""
    secure_clip: float
    """SecAgg+'s range for an entry of a node's sum divided by ``max_weight``."""


def read_run_config(given: Mapping[str, Any]) -> tuple[Task, Rules]:
    """The run-config as values, checked; a mistake is one sentence that names the key."""
    for key in given:
        if key not in DEFAULTS:
            raise UnskewError(f'The run-config has no "{key}"; it has {", ".join(DEFAULTS)}.')
    values = {key: _typed(key, given.get(key, default)) for key, default in DEFAULTS.items()}
    task = Task(*(values[key] for key in ("method", "settings", "seed", "users", "items")))
    if task.n_users < 1 or task.n_items < 1:
        raise UnskewError("The run-config needs users and items: how many the federation has.")
    rules = Rules(
        values["min-nodes"],
        values["wait-for-nodes"],
        values["round-timeout"],
        values["evaluate-every"],
        values["max-norm"],
        values["max-weight"],
        values["robust"],
        values["trim"],
        values["secure"],
        values["secure-clip"],
    )
    _check(task.build(), rules)
    return task, rules


def parse_config(given: Mapping[str, str]) -> dict[str, str | int | float | bool]:
    """A run-config as it is typed on a command line, in the types of its keys."""
    parsed: dict[str, str | int | float | bool] = {}
    for key, text in given.items():
        kind = type(DEFAULTS.get(key, ""))
        try:
            truths = {"true": True, "false": False}
            parsed[key] = truths[text.lower()] if kind is bool else kind(text)
        except (KeyError, ValueError):
            wanted = "true or false" if kind is bool else "a number"
            raise UnskewError(f"{key} = {text} must be {wanted}.") from None
    return parsed


_LEAST = {"min-nodes": 1, "evaluate-every": -1}
_ABOVE_0 = ("round-timeout", "secure-clip")


def _typed(key: str, value: Any) -> Any:
    """The value in its key's type; a number is finite and not below what makes sense."""
    kind = type(DEFAULTS[key])
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UnskewError(f"{key} = {value!r} in the run-config must be of type {kind.__name__}.")
    if isinstance(value, int | float):
        least = _LEAST.get(key, 0)
        if not math.isfinite(value) or value < least or (key in _ABOVE_0 and value == 0):
            bound = "above 0" if key in _ABOVE_0 else f"at least {least}"
            raise UnskewError(f"{key} = {value} in the run-config must be finite and {bound}.")
    return value


def _check(method: Method, rules: Rules) -> None:
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
