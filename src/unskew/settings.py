"""Validation of settings that come from Python, TOML files or the command line.

A settings class is a frozen dataclass that inherits from ``Settings``. Its annotations give the
types of its fields, and ``setting`` their bounds. Numbers must be finite and, unless a bound says
otherwise, at least 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from contextlib import suppress
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from unskew.types import UnskewError

MAX_WHOLE_NUMBER = 2**63 - 1
"""Largest whole number of a setting: compiled code has 64-bit integers."""


class Bounds(NamedTuple):
    """Allowed range of a number. ``above``, an exclusive lower bound, overrides ``at_least``."""

    at_least: float = 0.0
    above: float | None = None
    at_most: float = math.inf


def setting(
    default: Any, *, above: float | None = None, at_least: float = 0.0, at_most: float = math.inf
) -> Any:
    """Declare a field of a settings class with its default and its bounds."""
    return dataclasses.field(default=default, metadata={"bounds": Bounds(at_least, above, at_most)})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Base class of settings; raises an UnskewError if a field is outside its bounds or choices."""

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            _check(field.name, value, hints[field.name], _bounds(type(self), field.name))


def parse_settings(kind: type, values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Convert values from a TOML file or the command line to the types of the fields of ``kind``. A
    field that is itself a settings class becomes a dictionary. ``owner`` is for error messages."""
    known = [field.name for field in dataclasses.fields(kind)]
    for key in values:
        if key not in known:
            raise UnskewError(f'{owner} has no setting "{key}"; it has {", ".join(known)}.')
    hints = get_type_hints(kind)
    return {key: _convert(key, value, hints[key]) for key, value in values.items()}


def _bounds(kind: type, name: str) -> Bounds:
    """Bounds of a field. A subclass that only redefines the default inherits the bounds."""
    for base in kind.__mro__:
        field = base.__dict__.get("__dataclass_fields__", {}).get(name)
        if field is not None and "bounds" in field.metadata:
            found: Bounds = field.metadata["bounds"]
            return found
    return Bounds()


def _check(name: str, value: Any, kind: Any, bounds: Bounds) -> None:
    """Raise an UnskewError if a value is not one of the choices or is outside its bounds."""
    kind = _without_none(kind)
    if value is not None and get_origin(kind) is Literal:
        _convert(name, value, kind)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        least, above, most = bounds
        enough = value >= least if above is None else value > above
        whole = kind is int
        most = min(most, MAX_WHOLE_NUMBER) if whole else most
        if not enough or math.isinf(value) or (whole and value % 1):
            number = "a whole number" if whole else "a finite number"
            lowest = f"of at least {least:g}" if above is None else f"above {above:g}"
            raise UnskewError(f"{name} = {value} must be {number} {lowest}.")
        if value > most:
            raise UnskewError(f"{name} = {value} must be at most {most:g}.")


def _without_none(kind: Any) -> Any:
    """The type of a field, with None removed from an optional type."""
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    return kind


def _convert(name: str, value: Any, kind: Any) -> Any:
    """Convert a value to the type of a field, or raise an UnskewError."""
    optional, kind = kind, _without_none(kind)
    if value is None and optional is not kind:
        return None
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        wanted = f"one of {', '.join(map(str, arguments))}"
        if value in arguments:
            return value
    elif origin is Mapping or dataclasses.is_dataclass(kind):
        wanted = "a table such as { key = value }"
        if isinstance(value, Mapping) and origin is Mapping:
            return {key: _convert(f"{name}.{key}", one, arguments[1]) for key, one in value.items()}
        if isinstance(value, Mapping):
            return parse_settings(kind, value, name)
    elif origin is tuple:
        wanted = "a list such as [0, 1, 2]"
        if isinstance(value, list | tuple):
            return tuple(_convert(name, one, arguments[0]) for one in value)
    elif kind is bool:
        wanted = "true or false"
        if str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
    elif kind in (int, float):
        wanted = "a whole number" if kind is int else "a number"
        with suppress(ValueError):
            return kind(str(value))
    else:
        wanted = "text in quotes"
        if kind is Any or isinstance(value, kind):
            return value
    raise UnskewError(f"{name} = {value} must be {wanted}.")
