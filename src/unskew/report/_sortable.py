"""A table whose column heads sort it, in a box that scrolls by itself where it is too wide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from unskew.report._entries import text


class Cell(NamedTuple):
    """What a cell shows, and what it sorts by (nothing: always last)."""

    html: str
    key: str | float | None
    kind: str = "number"


class Head(NamedTuple):
    """A column's name; ``first`` is the direction of the first click: the good end on top."""

    name: str
    first: str = "descending"
    kind: str = "number"


class Group(NamedTuple):
    """Columns that belong together, under a name that may be empty; ``html`` as it is."""

    html: str
    heads: Sequence[Head]


def sortable(
    key: str,
    groups: Sequence[Group],
    rows: Sequence[Sequence[Cell]],
    caption: str,
    classes: str = "",
    best: Sequence[bool] = (),
) -> str:
    """``key`` names the table within the page; the first column names its rows."""
    heads = [head for group in groups for head in group.heads]
    titles = "".join(
        f'<th scope="colgroup" colspan="{len(group.heads)}">{group.html}</th>' for group in groups
    )
    titles = f"<tr>{titles}</tr>" if any(group.html for group in groups) else ""
    buttons = "".join(
        f'<th scope="col" class="{head.kind}" data-head="{text(head.name)}"><button type="button" '
        f'data-first="{head.first}">{text(head.name)}</button></th>'
        for head in heads
    )
    marked = [*best, *([False] * (len(rows) - len(best)))]
    body = "".join(
        f"<tr{' class=best' if mark else ''}>"
        + "".join(_cell(cell, "td" if at else "th") for at, cell in enumerate(row))
        + "</tr>"
        for row, mark in zip(rows, marked, strict=True)
    )
    spans = "".join(f'<colgroup span="{len(group.heads)}"></colgroup>' for group in groups)
    return (
        f'<div class="scroll" role="region" aria-labelledby="{key}-caption" tabindex="0">'
        f'<table class="sortable {classes}"><caption id="{key}-caption"><span>{caption} '
        '<span class="hint">Select a column head to sort.</span> <span class="narrow">'
        f"Scroll the table sideways for more.</span></span></caption>{spans}"
        f"<thead>{titles}<tr>{buttons}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(cell: Cell, tag: str) -> str:
    key = "" if cell.key is None else text(cell.key)
    scope = ' scope="row"' if tag == "th" else ""
    return f'<{tag}{scope} class="{cell.kind}" data-key="{key}">{cell.html}</{tag}>'
