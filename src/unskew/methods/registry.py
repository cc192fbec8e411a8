"""Find methods: those of this package, those that installed packages announce, and those that the
user names.

An installed package announces a method by an entry point of the group ``unskew.methods``. A path
``package.module:Class`` is imported only if the user gives it on this call (:func:`admit_method`);
a path read from a file never chooses code to run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from unskew import settings as settings_module
from unskew.types import Method, UnskewError

ENTRY_POINTS = "unskew.methods"
"""The group of entry points by which packages announce methods."""
_own: dict[str, Any] = {}
_admitted: dict[str, Any] = {}


def register(*methods: Any) -> dict[str, Any]:
    """Add methods of this package; returns all of them by name."""
    _own.update({method.name: method for method in methods})
    return _own


def all_methods() -> dict[str, Any]:
    """Classes of all methods of this package and of installed packages, by name."""
    return _own | {name: find_method(name) for name in _announced() if name not in _own}


def admit_method(method: Any, name: str | None = None) -> tuple[str, dict[str, Any]]:
    """Allow a method that the user gives: a name, ``package.module:Class``, a class, or an
    instance. Returns the name to run it by and, for an instance, its settings.

    ``name`` is the one that a saved run has recorded, if the method is given to open that run.
    """
    if isinstance(method, str):
        if ":" in method and method not in _admitted:
            _admitted[method] = _import(method)
        find_method(method)
        return method, {}
    kind: Any = method if isinstance(method, type) else type(method)
    _check_class(kind, kind.__name__)
    if kind in _own.values():
        chosen = kind.name
    else:
        chosen = f"{kind.__module__}:{kind.__qualname__}" if name is None else name
        _admitted[chosen] = kind
    if method is kind:
        return chosen, {}
    defaults = dataclasses.asdict(kind.Config())
    settings = dataclasses.asdict(method.config)
    return chosen, {key: value for key, value in settings.items() if value != defaults[key]}


def find_method(name: str) -> Any:
    """The class of a method of this package, of an installed package, or admitted by the user."""
    if name in _own:
        return _own[name]
    if name in _admitted:
        return _admitted[name]
    for announced, entry in _announced().items():
        if name in (announced, entry.value):
            return _check_class(_load(entry), name)
    if name.startswith("__main__:") or "<locals>" in name:
        raise UnskewError(
            f"{name} was made in a notebook or a script; open its run with "
            "unskew.open_run(path, method=Class)."
        )
    if ":" in name:
        raise UnskewError(
            f"{name} is not announced by any installed package; if you trust that code, name it "
            f"yourself: --method {name}, or method= in Python."
        )
    raise UnskewError(
        f'There is no method "{name}"; choose one of {", ".join([*_own, *_announced()])}, or give '
        "package.module:Class."
    )


def create(name: str, **settings: Any) -> Method:
    """Create the method ``name``; ``settings`` replace its defaults."""
    kind = find_method(name)
    built: Method = kind(kind.Config(**parse_settings(name, settings)))
    return built


def parse_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings (from TOML or the command line) to the types that the method declares."""
    return settings_module.parse_settings(find_method(name).Config, settings, name)


def preset(name: str, data: str) -> dict[str, Any]:
    """Settings of a method that were tuned on the validation part of the data set ``data``."""
    presets: dict[str, dict[str, Any]] = getattr(find_method(name), "PRESETS", {})
    if data not in presets:
        known = ", ".join(presets) or "none"
        raise UnskewError(f'{name} has no preset "{data}"; it has {known}.')
    return presets[data]


def _announced() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise UnskewError(
            f'The method "{entry.name}" of an installed package cannot be imported from '
            f"{entry.value} ({error}); install what it needs or remove the package."
        ) from error


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise UnskewError(
            f"{path} cannot be imported ({error}); install its package, or put its folder on "
            "PYTHONPATH."
        ) from error
    return _check_class(found, path)


def _check_class(kind: Any, name: str) -> Any:
    """Raise one sentence if a class is not a method."""
    needed = ("name", "aggregation", "Config", "init", "score")
    missing = [attribute for attribute in needed if not hasattr(kind, attribute)]
    if missing and hasattr(kind, "named_parameters"):
        raise UnskewError(
            f"{name} is a PyTorch module and says nothing about what is shared; make a method of "
            "it with unskew.torch.federate, or a subclass of unskew.torch.TorchMethod."
        )
    if not isinstance(kind, type) or missing:
        raise UnskewError(
            f"{name} is not a method: it has no {', '.join(missing) or 'class'}; see "
            "docs/new_method.md."
        )
    return kind
