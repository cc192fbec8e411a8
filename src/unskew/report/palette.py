"""One colour, dash and marker per method, the same in every chart and table.

Every colour has a contrast of at least 3:1 on white and on the dark page, so one value serves
both. The first eight differ under simulated red, green and blue blindness. Dash and marker
distinguish methods without colour.
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
_METHODS = (*_COLOURS, "fedrefit", "local", "popularity", "item-knn", "ease")
"""Methods with a fixed style; other names get the styles that follow."""
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2")
_MARKERS = ["circle", "square", "triangle", "diamond", "cross", "plus", "wedge", "left", "right"]
_LUMINANCE = 0.2
"""Relative luminance of generated colours: readable on white and on black."""


def palette(method: str) -> str:
    """Colour of a method as ``#rrggbb``; an unlisted name always gets the same generated one."""
    return _COLOURS.get(method.lower()) or _generated_colour(method)


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it, 0 for black to 1 for white."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@dataclass(frozen=True)
class Style:
    """How a series is drawn: its colour, and the dash and marker that work without colour."""

    colour: str
    dash: str = ""
    """Lengths of dashes and gaps in pixels, as in SVG's ``stroke-dasharray``; empty: solid."""
    marker: str = "circle"
    hollow: bool = False


_FIXED = {
    "other": Style("#7f9fc9", hollow=True),
    "interacted": Style("#b3261e", marker="triangle"),
    "user": Style("#1b7f3b", marker="star"),
    "overhead": Style("#9aa0a8"),
    "best": Style("#b3261e", marker="circle", hollow=True),
}
"""Styles of keys that are no method: points of the embedding figures, bars, the best trial."""


def styles(keys: Iterable[str]) -> dict[str, Style]:
    """A style per key: fixed for methods, in sorted order for other names.

    No two of up to 45 keys share dash and marker.
    """
    asked = set(keys)
    wanted = asked - set(_FIXED)
    others = sorted(wanted - set(_METHODS))
    order = {key: at for at, key in enumerate((*_METHODS, *others))}
    made = {
        key: Style(
            palette(key),
            _DASHES[order[key] % len(_DASHES)],
            _MARKERS[order[key] % len(_MARKERS)],
            hollow=order[key] // len(_MARKERS) % 2 == 1,
        )
        for key in sorted(wanted, key=order.__getitem__)
    }
    return made | {key: _FIXED[key] for key in asked & set(_FIXED)}


def variant(style: Style, number: int) -> Style:
    """Style of a method's next run in the same chart: same colour, other dash and marker fill."""
    if number == 0:
        return style
    dash = _DASHES[(_DASHES.index(style.dash) + number) % len(_DASHES)]
    marker = _MARKERS[(_MARKERS.index(style.marker) + number // 2) % len(_MARKERS)]
    return Style(style.colour, dash, marker, hollow=style.hollow != (number % 2 == 1))


_SHAPES = {
    "circle": "M11.4 6a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
    "square": "M11.4 2.4h7.2v7.2h-7.2z",
    "triangle": "M15 1.8l4.2 7.2h-8.4z",
    "wedge": "M15 10.2l4.2-7.2h-8.4z",
    "diamond": "M15 1.4l4.6 4.6l-4.6 4.6l-4.6-4.6z",
    "cross": "M11.4 2.4l7.2 7.2m0-7.2l-7.2 7.2",
    "plus": "M10.8 6h8.4m-4.2-4.2v8.4",
    "left": "M10.8 6l7.2-4.2v8.4z",
    "right": "M19.2 6l-7.2-4.2v8.4z",
    "star": "M15 1l1.5 3.4 3.5.3-2.7 2.4.9 3.5-3.2-1.9-3.2 1.9.9-3.5-2.7-2.4 3.5-.3z",
}


def swatch(style: Style, line: bool = True) -> str:
    """Short sample of a line with its marker as inline SVG, for legends and tables."""
    stroke = f'stroke="{style.colour}"'
    drawn = f'<path d="M1 6H29" class="line" {stroke} stroke-dasharray="{style.dash}"/>'
    fill = 'class="hollow"' if style.hollow else f'fill="{style.colour}"'
    return (
        f'<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true">{drawn if line else ""}'
        f'<path {fill} d="{_SHAPES[style.marker]}" {stroke} stroke-width="1.6"/></svg>'
    )


def _generated_colour(method: str) -> str:
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
