"""Find the class of a method by its name: methods of this package, methods that installed packages
announce, and classes given by an import path.

An installed package announces a method by an entry point of the group ``unskew.methods``. A path
``package.module:Class`` is imported only if the caller passes it to :func:`admit_method`; a path
that is read from a file is never imported.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from unskew import settings as settings_module
from unskew.types import CentralMethod, Method, UnskewError

ENTRY_POINTS = "unskew.methods"
"""Entry-point group by which installed Python packages announce their methods."""
_own: dict[str, Any] = {}
_admitted: dict[str, Any] = {}


def register(*methods: Any) -> dict[str, Any]:
    """Register method classes of this package; returns all registered ones by name."""
    _own.update({method.name: method for method in methods})
    return _own


def describe_methods() -> list[dict[str, str]]:
    """Name, summary, aggregation, citation and package of every method of this package and of
    installed packages. If a method cannot be imported, its summary is the error message."""
    rows = []
    for name in dict.fromkeys([*_own, *_announced()]):
        package = "unskew" if name in _own else _package(_announced()[name])
        try:
            kind = find_method(name)
        except UnskewError as error:
            texts = {"summary": str(error), "aggregation": "", "citation": ""}
        else:
            fields = ("summary", "aggregation", "citation")
            texts = {field: str(getattr(kind, field, "")) for field in fields}
        rows.append({"name": name, **texts, "package": package})
    return rows


def admit_method(method: Any, recorded: str | None = None) -> tuple[str, dict[str, Any]]:
    """Allow a method that the caller has chosen to be run: a name, ``package.module:Class``, a
    class, or an instance. Returns the name under which :func:`find_method` finds it and, for an
    instance, its settings that differ from the defaults.

    ``recorded`` is the method's name in a saved run that is to be opened with this method.
    """
    kind: Any
    settings: dict[str, Any] = {}
    if isinstance(method, str):
        if method not in _admitted and _is_path(method):
            _admitted[method] = _import(method)
        name, kind = method, find_method(method)
    else:
        kind = method if isinstance(method, type) else type(method)
        _check_class(kind, kind.__name__)
        name = kind.name if kind in _own.values() else _path_of(kind)
        if name not in _own:
            _admitted[name] = kind
        if method is not kind:
            defaults = dataclasses.asdict(kind.Config())
            settings = dataclasses.asdict(method.config)
            settings = {key: one for key, one in settings.items() if one != defaults[key]}
    if recorded is None or recorded == name:
        return name, settings
    if recorded in _own or name in _own:
        raise UnskewError(f"The run is of {recorded}, not of {name}; leave the method out.")
    _admitted[recorded] = kind
    return recorded, settings


def find_method(name: str) -> Any:
    """The class of a method: one of this package, of an installed package, or one that was passed
    to :func:`admit_method`."""
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
    if _is_path(name):
        raise UnskewError(
            f"{name} is not announced by any installed package; if you trust that code, name it "
            f"yourself: --method {name}, method= in Python, or method in a node-config."
        )
    raise UnskewError(
        f'There is no method "{name}"; choose one of {", ".join([*_own, *_announced()])}, or give '
        "package.module:Class."
    )


def create(name: str, **settings: Any) -> Method:
    """Create the method ``name``; ``settings`` replace its defaults."""
    kind = find_method(name)
    config = kind.Config(**parse_settings(name, settings))
    try:
        built: Method = kind(config)
    except TypeError as error:
        raise UnskewError(
            f"{name} cannot be created from its settings ({error}); its __init__ takes a Config "
            "alone, as the one inherited from unskew.Method does."
        ) from error
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


def short_name(name: str) -> str:
    """A method's name for titles and folders: the class of a path, otherwise the name itself."""
    return name.rpartition(":")[2].rpartition(".")[2] if _is_path(name) else name


def _is_path(name: str) -> bool:
    return ":" in name


def _announced() -> dict[str, EntryPoint]:
    return _entry_points(tuple(sys.path))


@cache
def _entry_points(_: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Entry points of the methods of installed packages, by name. Reading them is slow, so they are
    cached until ``sys.path`` changes."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def _load(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except Exception as error:
        raise UnskewError(
            f'The method "{entry.name}" of the package {_package(entry)} cannot be imported from '
            f"{entry.value} ({error}); install what it needs or remove the package."
        ) from error


def _import(path: str) -> Any:
    """Import the class ``package.module:Class``; the current folder is searched last."""
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
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


def _path_of(kind: Any) -> str:
    """The path ``module:Class`` of a class. A class that cannot be imported, because a function or
    a notebook has made it, gets a path in ``__main__``, with a number if that path is taken."""
    path = f"{kind.__module__}:{kind.__qualname__}"
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is kind or kind.__module__ == "__main__":
        return path
    name, number = f"__main__:{kind.__name__}", 1
    while _admitted.get(name, kind) is not kind:
        number += 1
        name = f"__main__:{kind.__name__}-{number}"
    return name


def _check_class(found: Any, name: str) -> Any:
    """Return ``found``; raises an UnskewError unless it is a class with all members of a method."""
    if hasattr(found, "named_parameters"):
        raise UnskewError(
            f"{name} is a PyTorch module and says nothing about what is shared; make a method of "
            "it with unskew.torch.federate, or a subclass of unskew.torch.TorchMethod."
        )
    if not inspect.isclass(found):
        raise UnskewError(f"{name} is not a class; name the class of a method.")
    kind: Any = found
    central = getattr(kind, "aggregation", "sum") == "central"
    base: Any = CentralMethod if central else Method
    steps = ("init", "score", "fold_in", *(("epoch",) if central else ("local", "aggregate")))
    missing = [step for step in steps if getattr(kind, step, None) in (None, getattr(base, step))]
    if "fold_in" in missing and getattr(kind, "refresh", None) not in (None, base.refresh):
        missing.remove("fold_in")  # inherited: it calls refresh
    hooks = [hook for hook in dir(base) if not hook.startswith("_") and hook not in steps]
    missing += [member for member in ("name", "Config", *hooks) if not hasattr(kind, member)]
    if missing:
        raise UnskewError(
            f"{name} is not a method: it has no {', '.join(missing)}; inherit from unskew.Method, "
            "which has the optional hooks, and see docs/new_method.md."
        )
    fields = getattr(kind.Config, "__dataclass_fields__", {})
    needed = ["rounds"]
    if not central and kind.participation is Method.participation:
        needed.append("participation")
    if any(field not in fields for field in needed):
        raise UnskewError(
            f"{name}: Config needs {' and '.join(needed)}; make it a frozen dataclass that "
            "inherits from unskew.methods.TrainingConfig."
        )
    return kind
