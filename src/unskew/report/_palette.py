"""One colour per method wherever it is drawn, and line styles that survive black and white.

Every colour has a contrast of at least 3:1 on white and on the dark page alike, so one value
serves both; the first eight stay apart under simulated red, green and blue blindness.
"""

from __future__ import annotations

import colorsys
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

_COLOURS = {
    "pfedclr": "#0072b2",
    "fedmf": "#d55e00",
    "pfedrec": "#009f6c",
    "gpfedrec": "#cc79a7",
    "fedrap": "#7c66e9",
    "pfedgraph": "#5e647f",
    "fedncf": "#a04f00",
    "fedmf-af": "#bc215e",
    "fedmf-cf": "#1b93a8",
    "mf": "#7a8420",
    "ncf": "#9a6fa8",
    "lightgcn": "#7a7a7a",
}
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2")
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus", "wedge")
_LUMINANCE = 0.2
"""Of colours made for unknown methods: readable on white and on black."""


def palette(method: str) -> str:
    """The colour of a method as ``#rrggbb``; a name not listed always gets the same one too."""
    return _COLOURS.get(method.lower()) or _made_up(method)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it, 0 for black to 1 for white."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@dataclass(frozen=True)
class Style:
    """How a run is drawn: colour by method; dash and marker tell it apart without colour."""

    colour: str
    dash: str
    marker: str
    hollow: bool = False


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style per method of a report, no two with the same dash and marker (up to 35), nor with
    the same mark alone (up to 14)."""
    known = list(_COLOURS)
    order = sorted(set(methods), key=lambda m: (known.index(m) if m in known else len(known), m))
    return {
        method: Style(
            palette(method),
            _DASHES[i % len(_DASHES)],
            _MARKERS[i % len(_MARKERS)],
            hollow=i // len(_MARKERS) % 2 == 1,
        )
        for i, method in enumerate(order)
    }


def variant(style: Style, number: int) -> Style:
    """The style of a method's next run in the same chart: its colour, another dash, hollow
    where the method's own mark is filled."""
    if number == 0:
        return style
    dash = _DASHES[(_DASHES.index(style.dash) + number) % len(_DASHES)]
    marker = _MARKERS[(_MARKERS.index(style.marker) + number // 2) % len(_MARKERS)]
    return Style(style.colour, dash, marker, hollow=style.hollow != (number % 2 == 1))


def _made_up(method: str) -> str:
    digest = hashlib.sha256(method.lower().encode("utf-8", "replace")).digest()
    hue, saturation = int.from_bytes(digest[:2], "big") / 65536, 0.45 + digest[2] / 255 * 0.4
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        colour = _hex(colorsys.hls_to_rgb(hue, middle, saturation))
        low, high = (middle, high) if luminance(colour) < _LUMINANCE else (low, middle)
    return _hex(colorsys.hls_to_rgb(hue, low, saturation))


def _hex(channels: tuple[float, float, float]) -> str:
    return "#" + "".join(f"{round(c * 255):02x}" for c in channels)
