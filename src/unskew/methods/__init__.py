"""Registry of the methods. Each method is one file; docs/new_method.md says how to add one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unskew import settings as settings_module
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
    """Create the method ``name``; ``settings`` replace its defaults."""
    method = _lookup(name)
    built: Method = method(method.Config(**parse_settings(name, settings)))
    return built


def parse_settings(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings (from TOML or the command line) to the types that the method declares."""
    return settings_module.parse_settings(_lookup(name).Config, settings, name)


def preset(name: str, data: str) -> dict[str, Any]:
    """Settings of a method that were tuned on the validation part of the data set ``data``."""
    presets: dict[str, dict[str, Any]] = getattr(_lookup(name), "PRESETS", {})
    if data not in presets:
        known = ", ".join(presets) or "none"
        raise UnskewError(f'{name} has no preset "{data}"; it has {known}.')
    return presets[data]


def _lookup(name: str) -> Any:
    if name not in METHODS:
        raise UnskewError(f'There is no method "{name}"; choose one of {", ".join(METHODS)}.')
    return METHODS[name]
