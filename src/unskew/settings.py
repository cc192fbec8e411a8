"""One validator of settings, for Python, TOML files and the command line.

A settings class is a frozen dataclass that inherits from ``Settings``. Its annotations give the
types and ``setting`` the bounds. Numbers must be finite and, unless a bound says otherwise, at
least 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from unskew.types import UnskewError


class Bounds(NamedTuple):
    """The range of a number; ``above`` is exclusive."""

    at_least: float = 0.0
    above: float | None = None
    at_most: float = math.inf


def setting(
    default: Any, *, above: float | None = None, at_least: float = 0.0, at_most: float = math.inf
) -> Any:
    """A field of a settings class with bounds."""
    return dataclasses.field(default=default, metadata={"bounds": Bounds(at_least, above, at_most)})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base of the settings classes. Raises one sentence for the first field that is out of its
    bounds or choices."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            _check(field.name, value, hints[field.name], _bounds(type(self), field.name))


def parse_settings(kind: type, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Values from a TOML file or the command line, converted to the types of ``kind``'s fields.

    ``owner`` names what has the settings in messages, such as a method."""
    known = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            raise UnskewError(f'{owner} has no setting "{key}"; it has {", ".join(known)}.')
    hints = get_type_hints(kind)
    return {key: _convert(key, value, hints[key]) for key, value in values.items()}


def _bounds(kind: type, name: str) -> Bounds:
    """A subclass that changes a default keeps the bounds of the class it inherits from."""
    for base in kind.__mro__:
        field = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and "bounds" in field.metadata:
            found: Bounds = field.metadata["bounds"]
            return found
    return Bounds()


def _check(name: str, value: Any, kind: Any, bounds: Bounds) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UnskewError(f"{name} = {value} must be one of {_choices(kind)}.")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        least, above, most = bounds
        enough = value >= least if above is None else value > above
        if not enough or math.isinf(value):
            lowest = f"at least {least:g}" if above is None else f"above {above:g}"
            raise UnskewError(f"{name} = {value} must be finite and {lowest}.")
        if value > most:
            raise UnskewError(f"{name} = {value} must be at most {most:g}.")


def _convert(name: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        if value is None:
            return None
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise UnskewError(f"{name} = {value} must be one of {_choices(kind)}.")
        return value
    if kind is bool:
        if str(value).lower() not in ("true", "false"):
            raise UnskewError(f"{name} = {value} must be true or false.")
        return str(value).lower() == "true"
    try:
        return kind(str(value)) if kind in (int, float) else kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise UnskewError(f"{name} = {value} must be {wanted}.") from None


def _choices(kind: Any) -> str:
    return ", ".join(map(str, get_args(kind)))
