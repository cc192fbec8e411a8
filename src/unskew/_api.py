"""The few functions a notebook needs; the command line calls the same code."""

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
    method's own (``rounds=100``, ``dim=16`` ...). With ``out``, the run is saved there with
    checkpoints; otherwise everything stays in memory. ``result.metrics`` are the means over seeds
    at the round with the best validation NDCG@10; ``result.summary()`` has everything.
    """
    interactions = load(data) if isinstance(data, str) else data
    spec = RunSpec(method, settings, interactions.name, protocol, tuple(seeds))
    return run(spec, interactions, out=None if out is None else Path(out))


def list_methods() -> dict[str, str]:
    """Name and one-line summary of every method."""
    return {name: method.summary for name, method in METHODS.items()}


def open_run(folder: str | Path, seed: int | None = None) -> Recommender:
    """A saved run's model, ready to recommend, without the training set."""
    return open_recommender(Path(folder), seed)
