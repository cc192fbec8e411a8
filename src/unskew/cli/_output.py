"""What every command shares: where output goes, tables, JSON, and one clear sentence for errors."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

stdout = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
stderr = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object and nothing else; NaN has no place in JSON and becomes null."""
    sys.stdout.write(json.dumps(_finite(value), ensure_ascii=False) + "\n")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None
) -> None:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        numeric = i > 0 and all(_is_figure(row[i]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    stdout.print(table)


def mean_std(summary: Mapping[str, Any]) -> str:
    """0.4846 ± 0.0031; a single seed has no deviation to show."""
    text = f"{summary['mean']:.4f}"
    return f"{text} ± {summary['std']:.4f}" if len(summary["values"]) > 1 else text


def size(n_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} GB"


def _is_figure(text: str) -> bool:
    return not text or text[0].isdigit() or text[0] in "-+<–≥"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
