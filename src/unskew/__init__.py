"""Unskew: federated recommendation.

    import unskew

    result = unskew.fit("pfedclr", unskew.load("ml-100k"), rounds=100)
    result.metrics
    result.recommend(user="42", k=10)

Public names are imported on first use, so that ``import unskew`` itself is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unskew._api import compare, fit, list_methods, open_run, split_from_frames, sweep
    from unskew.data import load, load_split
    from unskew.evaluation import EvaluationProtocol, prepare
    from unskew.runs import Comparison, Recommender, Run, RunSpec, Sweep
    from unskew.types import Interactions, Method, Split, UnskewError, Upload

_PUBLIC_NAMES = {
    "unskew._api": ("compare", "fit", "list_methods", "open_run", "split_from_frames", "sweep"),
    "unskew.data": ("load", "load_split"),
    "unskew.evaluation": ("EvaluationProtocol", "prepare"),
    "unskew.runs": ("Comparison", "Recommender", "Run", "RunSpec", "Sweep"),
    "unskew.types": ("Interactions", "Method", "Split", "UnskewError", "Upload"),
}
"""Public names of the package, by the module that defines them."""

__all__ = [
    "Comparison",
    "EvaluationProtocol",
    "Interactions",
    "Method",
    "Recommender",
    "Run",
    "RunSpec",
    "Split",
    "Sweep",
    "UnskewError",
    "Upload",
    "compare",
    "fit",
    "list_methods",
    "load",
    "load_split",
    "open_run",
    "prepare",
    "split_from_frames",
    "sweep",
]


def __getattr__(name: str) -> Any:
    for module, names in _PUBLIC_NAMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'unskew' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
