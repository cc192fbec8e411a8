"""A figure as a value: panels of series. How it is drawn is another file's business."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Series(NamedTuple):
    """Points to draw: joined by a line, as a trail from its first to its last, or each by itself;
    ``sizes`` make bubbles. ``key`` decides colour, line style and marker: a method's name, or any
    other that is always to look the same."""

    label: str
    key: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Literal["line", "trail", "points"] = "line"
    sizes: Sequence[float] = ()


class Panel(NamedTuple):
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    right: Series | None = None
    """Bars on an axis of their own at the right, behind the lines."""
    names: tuple[str, ...] = ()
    """Labels of the whole numbers on the horizontal axis, where it has no numbers."""


class Chart(NamedTuple):
    title: str
    panels: tuple[Panel, ...]
    columns: int = 2
