"""One colour, dash and marker per method, the same in every chart and table.

Every colour has a contrast of at least 3:1 on white and 2.6:1 on the dark page, so one value serves
both. The first eight colours differ under simulated red, green and blue blindness. Dash and marker
distinguish methods without colour.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple
from zlib import crc32

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
    "fedrefit": "#dc1dbf",
    "local": "#897c1b",
    "popularity": "#8d63df",
    "item-knn": "#c35c58",
    "ease": "#1380cc",
    "fedmf alone": "#5e647f",
    "HR@10": "#0072b2",
    "NDCG@10": "#d55e00",
    "markov": "#4d7f3a",
    "slist": "#b5651d",
    "sasrec": "#b8571f",
    "gru4rec": "#2f8f3e",
    "fednext": "#c0392b",
}
"""Colours of methods and metrics. A name's position here decides its dash and marker."""
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2")
"""Dash patterns of lines: lengths of dashes and gaps in pixels; empty: solid."""
_SHAPES = {
    "o": "M11.4 6a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0-7.2 0z",
    "s": "M11.4 2.4h7.2v7.2h-7.2z",
    "^": "M15 1.8l4.2 7.2h-8.4z",
    "D": "M15 1.4l4.6 4.6l-4.6 4.6l-4.6-4.6z",
    "x": "M11.4 2.4l7.2 7.2m0-7.2l-7.2 7.2",
    "+": "M10.8 6h8.4m-4.2-4.2v8.4",
    "v": "M15 10.2l4.2-7.2h-8.4z",
    "<": "M10.8 6l7.2-4.2v8.4z",
    ">": "M19.2 6l-7.2-4.2v8.4z",
    "*": "M15 1l1.5 3.4 3.5.3-2.7 2.4.9 3.5-3.2-1.9-3.2 1.9.9-3.5-2.7-2.4 3.5-.3z",
}
"""SVG paths by matplotlib's marker name, for line samples in legends and tables."""
_MARKERS = [marker for marker in _SHAPES if marker != "*"]
"""Markers of methods; the star is reserved for users in embedding figures."""


class Style(NamedTuple):
    """Style of a series in a chart: colour, and dash and marker to tell it apart without colour."""

    colour: str
    dash: str = ""
    """Lengths of dashes and gaps in pixels, as in SVG's ``stroke-dasharray``; empty: solid."""
    marker: str = "o"
    """A marker of matplotlib."""
    hollow: bool = False


_FIXED = {
    "other": Style("#7f9fc9", hollow=True),
    "interacted": Style("#b3261e", marker="^"),
    "user": Style("#1b7f3b", marker="*"),
    "overhead": Style("#9aa0a8"),
    "best": Style("#b3261e", hollow=True),
}
"""Styles of series that are not methods: items and the user in embedding figures, bars
(``overhead``), and the best trial of ``unskew tune``."""


@cache
def style_of(key: str, variant: int = 0) -> Style:
    """Style of a method or other series name. ``variant`` numbers series of the same name, which
    have the same colour but differ in dash, marker or fill."""
    if key in _FIXED:
        return _FIXED[key]
    names, colours = list(_COLOURS), list(_COLOURS.values())
    at = names.index(key) if key in names else crc32(key.encode("utf-8", "replace"))
    dash = _DASHES[(at + variant) % len(_DASHES)]
    marker = _MARKERS[(at + variant // 2) % len(_MARKERS)]
    return Style(colours[at % len(colours)], dash, marker, (at // len(_MARKERS) + variant) % 2 == 1)


def swatch(style: Style, line: bool = True) -> str:
    """Short sample of a line with its marker as inline SVG, for legends and tables."""
    stroke = f'stroke="{style.colour}"'
    drawn = f'<path d="M1 6H29" class="line" {stroke} stroke-dasharray="{style.dash}"/>'
    fill = 'class="hollow"' if style.hollow else f'fill="{style.colour}"'
    return (
        f'<svg class="swatch" viewBox="0 0 30 12" aria-hidden="true">{drawn if line else ""}'
        f'<path {fill} d="{_SHAPES[style.marker]}" {stroke} stroke-width="1.6"/></svg>'
    )
