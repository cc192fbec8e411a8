"""Which values a search tries for each setting of a method: by rule, or as somebody asks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from unskew.methods import METHODS, parse_settings
from unskew.types import UnskewError


@dataclass(frozen=True)
class Dimension:
    """What a setting may be: one of ``choices``, or a number from ``low`` to ``high``."""

    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    def holds(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        return bool(self.low <= value <= self.high)

    def __str__(self) -> str:
        if self.choices:
            return "|".join(map(str, self.choices))
        return f"{self.low:g}:{self.high:g}" + (" (log)" if self.log else "")


Space = dict[str, Dimension]


def _logarithmic(low: float, high: float, whole: bool = False) -> Dimension:
    return Dimension(low, high, True, whole)


def _linear(low: float, high: float, whole: bool = False) -> Dimension:
    return Dimension(low, high, False, whole)


_SIZES = Dimension(choices=(8, 16, 32, 64))
OVERRIDES: dict[str, dict[str, Dimension | None]] = {
    "": {  # every method, where it has the field; None: not searched
        "rounds": None,  # the best round is chosen anyway
        "participation": None,  # the deployment's, not the model's
        "aggregate_from": None,
        "tolerance": None,
        "batch": None,
        "dim": _SIZES,
        "negatives": _linear(1, 8, True),
        "local_epochs": _logarithmic(1, 20, True),
    },
    "pfedclr": {"rank": _logarithmic(1, 16, True), "buffer": None},
    "fedrefit": {
        "dim": Dimension(choices=(16, 32, 64, 128)),
        "space_rounds": None,  # it would change what a round is
        "item_power": _linear(0, 0.5),
        "fast": _linear(0.1, 0.9),
        "slow": _linear(0.5, 1),
        "horizon": _linear(0.5, 1),
        "far_horizon": _linear(0.5, 1),
        "discount": _linear(0, 0.5),
        "order": None,  # validation chooses already
    },
    "fedrap": {"batch_decay": _linear(0.8, 1), "round_decay": _linear(0.9, 1)},
    "pfedgraph": {"evenness": _linear(0.1, 2)},
    "gpfedrec": {"threshold": _linear(0.5, 2)},
    "lightgcn": {"layers": _linear(1, 4, True), "batches": None},
}
"""Where a rule by type would make no sense, per method; the method's own line comes first."""


def default_space(method: str) -> Space:
    """From the fields of the method's Config: a rate or a weight within a factor of ten of its
    default on a logarithmic scale, a number of things within a factor of four, every choice."""
    config = METHODS[method].Config
    hints, overrides = get_type_hints(config), OVERRIDES.get(method, {})
    space: Space = {}
    for field in dataclasses.fields(config):
        chosen: Dimension | None
        if field.name in overrides:
            chosen = overrides[field.name]
        elif field.name in OVERRIDES[""]:
            chosen = OVERRIDES[""][field.name]
        else:
            chosen = _by_type(hints[field.name], field.default)
        if chosen is not None:
            space[field.name] = chosen
    return space


def _by_type(kind: Any, default: Any) -> Dimension | None:
    if get_origin(kind) is Literal:
        return Dimension(choices=get_args(kind))
    if kind is bool:
        return Dimension(choices=(False, True))
    if kind is int and default > 0:
        return _logarithmic(max(1, default // 4), default * 4, True)
    if kind is float and default > 0:
        return _logarithmic(default / 10, default * 10)
    return None  # around 0 there is no scale to go by: such a field is searched when asked for


def parse_space(method: str, text: str) -> Space:
    """``rank=2:16,learning_rate=0.001:0.1,dim=8|16|32``; a range over a factor of ten or more is
    searched on a logarithmic scale."""
    hints = get_type_hints(METHODS[method].Config)
    space: Space = {}
    for part in text.split(","):
        name, _, values = part.partition("=")
        name = name.strip()
        low, colon, high = values.partition(":")
        if "|" in values:
            given = [parse_settings(method, {name: one.strip()})[name] for one in values.split("|")]
            space[name] = Dimension(choices=tuple(given))
        elif colon:
            ends = [parse_settings(method, {name: end.strip()})[name] for end in (low, high)]
            if hints[name] not in (int, float) or not ends[0] < ends[1]:
                raise UnskewError(f'--space "{part}": give low:high with low below high, or a|b|c.')
            log = ends[0] > 0 and ends[1] >= 10 * ends[0]
            space[name] = Dimension(float(ends[0]), float(ends[1]), log, hints[name] is int)
        else:
            raise UnskewError(f'--space "{part}" must look like rank=2:16 or dim=8|16|32.')
    return space
