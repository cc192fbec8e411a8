"""Rows as `unskew reproduce` writes them, with made figures."""

from __future__ import annotations

from typing import Any


def run_row(
    method: str,
    hr: float,
    data: str = "filmtrust",
    protocol: str = "paper",
    settings: dict[str, Any] | None = None,
    noise: float = 0.0,
    **more: Any,
) -> dict[str, Any]:
    """The row of a run with one seed, whose NDCG@10 is half its HR@10."""
    values = {"hr@10": hr, "ndcg@10": hr / 2}
    metrics = {m: {"mean": value, "std": 0.0, "values": [value]} for m, value in values.items()}
    private = {"kind": "laplace", "noise": noise, "clip": None}
    return {
        "method": method,
        "settings": settings or {},
        "data": data,
        "protocol": protocol,
        "seeds": [0],
        "rounds": 100,
        "best_rounds": [100],
        "ranking": "99 sampled candidates",
        "users": 1002,
        "items": 2042,
        "metrics": metrics,
        "last_round": metrics,
        "sampled99": metrics,
        "seconds_per_round": 0.25,
        "peak_rss_mb": 321.0,
        "bytes_up": 10250.0,
        "bytes_down": 130688.0,
        "versions": {},
        "command": f"unskew run {method} {data} {protocol} {settings} {noise}",
        "notes": [],
        **({"privacy": private} if noise else {}),
        **more,
    }
