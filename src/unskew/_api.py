"""Functions for scripts and notebooks: train a model, list the methods, open a saved run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unskew.data import load
from unskew.methods import METHODS
from unskew.runs import Recommender, Run, RunSpec, open_recommender, run
from unskew.types import Interactions


def fit(
    method: str = "fedrefit",
    data: Interactions | str = "demo",
    *,
    protocol: str = "leak-free",
    seeds: Sequence[int] = (0,),
    out: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Train a federation and evaluate it.

    ``data`` is the result of `unskew.load`, or a name or path to load. ``settings`` are the
    method's settings (``rounds=100``, ``dim=16`` ...). With ``out``, the run is saved there with
    checkpoints; otherwise everything stays in memory. Returns a `Run`: ``metrics`` are the means
    over seeds at the round with the best validation NDCG@10, ``summary()`` has all results.
    """
    interactions = load(data) if isinstance(data, str) else data
    spec = RunSpec(method, settings, interactions.name, protocol, tuple(seeds))
    return run(spec, interactions, out=None if out is None else Path(out))


def list_methods() -> dict[str, str]:
    """Names of all methods, each with a one-line summary."""
    return {name: method.summary for name, method in METHODS.items()}


def open_run(folder: str | Path, seed: int | None = None) -> Recommender:
    """Load the model of a saved run, ready to recommend. The training data is not needed."""
    return open_recommender(Path(folder), seed)
