"""Functions for scripts and notebooks: train a model, list the methods, open a saved run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unskew.data import load
from unskew.methods import admit_method, describe_methods
from unskew.runs import Recommender, Run, RunSpec, open_recommender, run
from unskew.types import Interactions


def fit(
    method: Any = "fedrefit",
    data: Any = "demo",
    *,
    protocol: str = "leak-free",
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Train a federation and evaluate it.

    ``method`` is a name, a class, an object, or ``"package.module:Class"``. ``data`` is the result
    of `unskew.load`, or anything that it takes: a name, a path, a data frame, a list of tuples.
    ``settings`` are the method's (``rounds=100``, ``dim=16`` ...). With ``out``, the run is saved
    there with checkpoints; otherwise everything stays in memory. Returns a `Run`: ``metrics`` are
    the means over seeds at the round with the best validation NDCG@10, ``summary()`` has all
    results.
    """
    interactions = data if isinstance(data, Interactions) else load(data)
    name, own_settings = admit_method(method)
    spec = RunSpec(name, own_settings | settings, interactions.name, protocol, tuple(seeds))
    return run(spec, interactions, out=None if out is None else Path(out))


def list_methods() -> dict[str, str]:
    """Names of all methods, those of installed packages included, each with its summary."""
    return {method["name"]: method["summary"] for method in describe_methods()}


def open_run(folder: str | Path, seed: int | None = None, *, method: Any = None) -> Recommender:
    """Load the model of a saved run, ready to recommend. The training data is not needed.

    ``method`` is the class of a run whose method neither this package nor an installed one has,
    for example one made in a notebook.
    """
    return open_recommender(Path(folder), seed, method)
