"""The little Markdown that result tables are written in, as HTML: tables, lists, paragraphs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unskew.report._entries import DASH, text
from unskew.report._sortable import Cell, Group, Head, sortable

_NUMBER = re.compile(r"[<≥]?\s*([+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)(%?)")
_RULE = re.compile(r"\|[-|: ]+\|")


def inline(source: str) -> str:
    """Code, bold, and the words of links: a page by itself has nowhere to lead to."""
    html = text(source)
    html = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", html)
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", html)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", html)


def convert(source: str, key: str, caption: str) -> str:
    """``key`` names the tables within the page, ``caption`` says what each is about."""
    parts, tables, above = [], 0, ""
    for block in re.split(r"\n\s*\n", source.strip()):
        lines = block.strip().splitlines()
        if not lines:
            continue
        if lines[0].startswith("|"):
            tables += 1
            about = f"{text(caption)}{f', {above}' if above else ''}."
            parts.append(_table(lines, f"{key}-{tables}", about))
        elif lines[0].startswith("#") or re.fullmatch(r"Protocol `[^`]+`", block.strip()):
            above = inline(lines[0].lstrip("# ")).replace("Protocol", "protocol")
            parts.append(f"<h4>{inline(lines[0].lstrip('# '))}</h4>")
        elif lines[0].startswith("* "):
            items = "".join(f"<li>{inline(line.removeprefix('* '))}</li>" for line in lines)
            parts.append(f'<ul class="note">{items}</ul>')
        else:
            parts.append(f'<p class="note">{inline(" ".join(lines))}</p>')
    return "".join(parts)


def _table(lines: Sequence[str], key: str, caption: str) -> str:
    head, *rest = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    rows = [row for row, line in zip(rest, lines[1:], strict=True) if not _RULE.fullmatch(line)]
    above = ""
    for row in rows:
        # A name left out because it stands above would be lost when the rows are sorted.
        above = row[0] = row[0] or above
    kinds = ["word", *(_kind([row[at] for row in rows]) for at in range(1, len(head)))]
    heads = [
        Head(name.replace("`", ""), "ascending" if kind == "word" else "descending", kind)
        for name, kind in zip(head, kinds, strict=True)
    ]
    cells = [[_cell(value, kind) for value, kind in zip(r, kinds, strict=True)] for r in rows]
    return sortable(key, [Group("", heads)], cells, caption, "paper")


def _kind(values: Sequence[str]) -> str:
    known = [value for value in values if value.strip("* ") and not value.startswith(DASH)]
    return "number" if all(_number(value) is not None for value in known) else "word"


def _number(value: str) -> float | None:
    """The first figure of a cell, which is ours; what the paper prints stands in brackets."""
    found = _NUMBER.match(value.strip("* "))
    return None if found is None else float(found[1].replace(",", ""))


def _cell(value: str, kind: str) -> Cell:
    shown = inline(value)
    if kind == "word":
        return Cell(shown, value.strip("*`").lower() or None, "word")
    # Means stay in the first line; spreads, other rankings and the paper's figures below it.
    shown = re.sub(r" · (.+)$", r'<span class="spread">\1</span>', shown)
    bracket = r"^([^()\[]*) (\([^()]+\)|\[[^\[\]]+\])$"
    shown = re.sub(bracket, r'\1 <span class="spread">\2</span>', shown)
    return Cell(shown, _number(value))
