"""Unskew: federated recommendation.

    import unskew

    result = unskew.fit("pfedclr", unskew.load("ml-100k"), rounds=100)
    result.metrics
    result.recommend(user="42", k=10)

Names are imported when they are first used, so that ``import unskew`` itself costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unskew._api import fit, list_methods, open_run
    from unskew.data import load
    from unskew.evaluation import prepare
    from unskew.runs import Recommender, Run, RunSpec
    from unskew.types import Interactions, Method, Split, UnskewError, Upload

_HOME = {
    "Interactions": "unskew.types",
    "Method": "unskew.types",
    "Recommender": "unskew.runs",
    "Run": "unskew.runs",
    "RunSpec": "unskew.runs",
    "Split": "unskew.types",
    "UnskewError": "unskew.types",
    "Upload": "unskew.types",
    "fit": "unskew._api",
    "list_methods": "unskew._api",
    "load": "unskew.data",
    "open_run": "unskew._api",
    "prepare": "unskew.evaluation",
}

__all__ = [
    "Interactions",
    "Method",
    "Recommender",
    "Run",
    "RunSpec",
    "Split",
    "UnskewError",
    "Upload",
    "fit",
    "list_methods",
    "load",
    "open_run",
    "prepare",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'unskew' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
