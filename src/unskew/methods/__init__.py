"""The registry: one line per method. A method is one file; see docs/new_method.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from unskew.methods.ease import EASE
from unskew.methods.fedmf import FedMF
from unskew.methods.fedmf_af import FedMFAF
from unskew.methods.fedncf import FedNCF
from unskew.methods.fedrap import FedRAP
from unskew.methods.fedrefit import FedRefit
from unskew.methods.gpfedrec import GPFedRec
from unskew.methods.item_knn import ItemKNN
from unskew.methods.lightgcn import LightGCN
from unskew.methods.local import Local
from unskew.methods.mf import MF
from unskew.methods.ncf import NCF
from unskew.methods.pfedclr import PFedCLR
from unskew.methods.pfedgraph import PFedGraph
from unskew.methods.pfedrec import PFedRec
from unskew.methods.popularity import Popularity
from unskew.types import Method, UnskewError

METHODS: dict[str, Any] = {
    method.name: method
    for method in (
        FedRefit,
        PFedCLR,
        FedMF,
        FedMFAF,
        FedRAP,
        GPFedRec,
        PFedGraph,
        FedNCF,
        PFedRec,
        Local,
        MF,
        NCF,
        LightGCN,
        Popularity,
        ItemKNN,
        EASE,
    )
}
"""Method classes by name. Each has ``Config``, ``aggregation``, ``summary`` and ``citation``."""

__all__ = ["METHODS", "create", "parse_settings", "preset"]


def create(name: str, **settings: Any) -> Method:
    """The method ``name`` with the given settings in place of its defaults."""
    method = _lookup(name)
    built: Method = method(method.Config(**parse_settings(name, settings)))
    return built


def parse_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they stand in a TOML file or on the command line, given their fields' types."""
    _check_names(name, settings)
    hints = get_type_hints(_lookup(name).Config)
    return {key: _convert(key, value, hints[key]) for key, value in settings.items()}


def preset(name: str, data: str) -> dict[str, Any]:
    """The settings a sensitive method was given for a data set, chosen there on validation."""
    presets: dict[str, dict[str, Any]] = getattr(_lookup(name), "PRESETS", {})
    if data not in presets:
        known = ", ".join(presets) or "none"
        raise UnskewError(f'{name} has no preset "{data}"; it has {known}.')
    return presets[data]


def _lookup(name: str) -> Any:
    if name not in METHODS:
        raise UnskewError(f'There is no method "{name}"; choose one of {", ".join(METHODS)}.')
    return METHODS[name]


def _check_names(name: str, settings: Mapping[str, Any]) -> None:
    known = [field.name for field in dataclasses.fields(_lookup(name).Config)]
    for key in settings:
        if key not in known:
            raise UnskewError(f'{name} has no setting "{key}"; it has {", ".join(known)}.')


def _convert(key: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(map(str, get_args(kind)))
            raise UnskewError(f"{key} = {value} must be one of {choices}.")
        return value
    if kind is bool:
        if str(value).lower() not in ("true", "false"):
            raise UnskewError(f"{key} = {value} must be true or false.")
        return str(value).lower() == "true"
    try:
        converted = kind(str(value)) if kind in (int, float) else kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise UnskewError(f"{key} = {value} must be {wanted}.") from None
    return converted
