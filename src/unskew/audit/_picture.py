"""One picture: recommendation quality against what the server finds out, a curve per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 880, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 210, 56, 64
_GAP = 19


class Look(NamedTuple):
    """How a method is drawn."""

    colour: str
    dash: str


class Dot(NamedTuple):
    """A method at one strength of noise: attack success, quality, and how to name the point."""

    success: float
    quality: float
    label: str


def tradeoff_picture(
    curves: Mapping[str, Sequence[Dot]],
    secure: Mapping[str, Sequence[Dot]],
    looks: Mapping[str, Look],
    title: str,
) -> str:
    """An SVG. ``curves`` are what a server sees that gets every upload; ``secure``, hollow, what it
    sees under secure aggregation. Up and left is good: useful and silent."""
    dots = [dot for curve in (*curves.values(), *secure.values()) for dot in curve]
    top = max([dot.quality for dot in dots], default=1.0) * 1.1 or 1.0
    low = min([0.45, *(dot.success for dot in dots)])

    def x(success: float) -> float:
        return LEFT + (success - low) / (1.01 - low) * (WIDTH - LEFT - RIGHT)

    def y(quality: float) -> float:
        return HEIGHT - BOTTOM - quality / top * (HEIGHT - BOTTOM - TOP)

    def place(dot: Dot) -> str:
        return f"{x(dot.success):.1f} {y(dot.quality):.1f}"

    parts = [_frame(title, x, y, top, low)]
    ends = []
    for method, curve in curves.items():
        look = looks[method]
        path = "M" + "L".join(place(dot) for dot in curve)
        parts.append(
            f'<path d="{path}" fill="none" stroke="{look.colour}" stroke-width="2" '
            f'stroke-dasharray="{look.dash}"/>'
        )
        for dot in curve:
            parts.append(_circle(method, dot, x, y, look.colour, look.colour, "single uploads"))
        for dot in (curve[0], curve[-1]):
            parts.append(
                f'<text x="{x(dot.success) - 7:.1f}" y="{y(dot.quality) - 7:.1f}" '
                f'text-anchor="end" font-size="11" fill="{look.colour}">{escape(dot.label)}</text>'
            )
        ends.append((y(curve[0].quality), method))
    for method, points in secure.items():
        for dot in points:
            parts.append(
                _circle(method, dot, x, y, "#ffffff", looks[method].colour, "secure aggregation")
            )
    parts.append(_legend(sorted(ends), looks))
    body = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="sans-serif">'
        f"<title>{escape(title)}</title>"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>{body}</svg>\n'
    )


def _circle(method: str, dot: Dot, x: object, y: object, fill: str, stroke: str, view: str) -> str:
    assert callable(x)
    assert callable(y)
    told = f"{method}, {dot.label}, {view}: AUC {dot.success:.3f}, NDCG@10 {dot.quality:.4f}"
    return (
        f'<circle cx="{x(dot.success):.1f}" cy="{y(dot.quality):.1f}" r="4.5" fill="{fill}" '
        f'stroke="{stroke}" stroke-width="2"><title>{escape(told)}</title></circle>'
    )


def _frame(title: str, x: object, y: object, top: float, low: float) -> str:
    assert callable(x)
    assert callable(y)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">{escape(title)}</text>',
        f'<text x="{LEFT}" y="43" font-size="12" fill="#555555">filled: the server gets every '
        "upload, whole run; hollow: only sums (secure aggregation); best is up and left</text>",
    ]
    for step in range(6):
        value = top * step / 5
        parts.append(
            f'<path d="M{LEFT} {y(value):.1f}H{right}" stroke="#dddddd"/>'
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end" font-size="12">'
            f"{value:.3f}</text>"
        )
    for tenth in range(5, 11):
        value = tenth / 10
        if value < low:
            continue
        dashed = ' stroke-dasharray="4 4"' if tenth == 5 else ""
        parts.append(
            f'<path d="M{x(value):.1f} {TOP}V{bottom}" stroke="#dddddd"{dashed}/>'
            f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle" font-size="12">'
            f"{value:.1f}</text>"
        )
    middle = (LEFT + right) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{bottom + 40}" text-anchor="middle" font-size="13">personal '
        "AUC of the strongest attack (0.5: the server learns nothing about a user)</text>"
        f'<text transform="translate(16 {(TOP + bottom) / 2:.0f}) rotate(-90)" '
        'text-anchor="middle" font-size="13">NDCG@10, test</text>'
    )
    return "".join(parts)


def _legend(ends: list[tuple[float, str]], looks: Mapping[str, Look]) -> str:
    parts, at = [], float(TOP)
    for height, method in ends:
        at = max(at, min(height, HEIGHT - BOTTOM - _GAP * len(ends)))
        x = WIDTH - RIGHT + 24
        look = looks[method]
        parts.append(
            f'<path d="M{x} {at:.1f}h26" stroke="{look.colour}" stroke-width="2" '
            f'stroke-dasharray="{look.dash}"/><text x="{x + 33}" y="{at + 4:.1f}" '
            f'font-size="13">{escape(method)}</text>'
        )
        at += _GAP
    return "".join(parts)
