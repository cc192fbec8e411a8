"""Numbers printed in the PFedCLR paper, read from ``published.toml``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

Pair = tuple[float, float]
"""HR@10 and NDCG@10, or megabytes on a client and on the server."""


@cache
def figures() -> dict[str, Any]:
    """All published numbers: the contents of ``published.toml`` as a dictionary."""
    text = files("unskew.paper").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def figure(table: str, row: str, data: str) -> float | None:
    """The published number in row ``row`` and column ``data`` of a table, or None."""
    columns, values = figures()["data"], figures()[table].get(row)
    return None if values is None or data not in columns else values[columns.index(data)]


def pair(table: str, row: str, data: str) -> Pair | None:
    """The two published numbers in row ``row`` and column ``data`` of a table, or None."""
    found: Any = figure(table, row, data)
    return None if found is None else (found[0], found[1])


def quality(method: str, data: str) -> Pair | None:
    """Published HR@10 and NDCG@10 from the main table or else from the ablation table, or None."""
    return pair("main", method, data) or pair("ablation", method, data)


def noise_strengths() -> list[float]:
    """Noise strengths for which the paper reports PFedCLR's results, 0 first."""
    return list(figures()["noise"]["strengths"])


def quality_under_noise(method: str, data: str, strength: float) -> Pair | None:
    """Published HR@10 and NDCG@10 with Laplace noise of this scale on uploads, or None."""
    by_strength = figures()["noise"].get(data) if method == "pfedclr" else None
    if by_strength is not None and strength in noise_strengths():
        return tuple(by_strength[noise_strengths().index(strength)])
    with_and_without = figures()["noise_methods"].get(method)
    if data != "ml-100k" or with_and_without is None or strength not in (0.0, 0.5):
        return None
    return tuple(with_and_without[strength > 0])


def dataset_size(data: str) -> list[int] | None:
    """Published numbers of users, items and interactions of a data set, or None."""
    found: list[int] | None = figures()["datasets"].get(data)
    return found
