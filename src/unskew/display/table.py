"""Tables as data with typed cells, written as Markdown, LaTeX, plain HTML or sortable HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import Literal, NamedTuple, Protocol, TypeAlias

from unskew.display.palette import Style, swatch

MISSING = "–"
"""Text for a value that is missing or not a number."""

MAX_ROWS_WITHOUT_SCROLLING = 24
"""Maximum number of rows of an HTML table without a vertical scroll bar."""


class OverSeeds(Protocol):
    """A metric over seeds: mean, standard deviation and the value of each seed."""

    @property
    def mean(self) -> float: ...
    @property
    def std(self) -> float: ...
    @property
    def values(self) -> Sequence[float]: ...


class Cell(NamedTuple):
    """One table cell: its text and its sort key."""

    text: str
    """May hold `code` and **bold** in Markdown's notation."""
    value: float | str | None = None
    """Sort key; a cell without one always sorts last."""
    note: str = ""
    """Secondary values, such as a standard deviation: after the text in Markdown, below in HTML."""
    bold: bool = False
    tag: str = ""
    """A short warning label behind the text."""
    style: Style | None = None
    """Draws a line sample before the text, in HTML only."""

    @property
    def line(self) -> str:
        """The cell's text, note and tag in one line of plain text."""
        return " ".join(filter(None, [self.text, self.tag, self.note]))

    @classmethod
    def number(
        cls,
        value: float | None,
        digits: int = 4,
        std: float | None = None,
        published: float | None = None,
        bold: bool = False,
    ) -> Cell:
        """Cell of a number with its standard deviation and, in brackets, the value from a paper."""
        notes = [f"± {std:.{digits}f}"] if std is not None and value is not None else []
        notes += [f"({published:.{digits}f})"] if published is not None else []
        text = MISSING if value is None else f"{value:.{digits}f}"
        return cls(text, value, " ".join(notes), bold)

    @classmethod
    def over_seeds(cls, metric: OverSeeds, digits: int = 4, bold: bool = False) -> Cell:
        """Cell of a metric's mean over seeds, with standard deviation if there are several."""
        std = metric.std if len(metric.values) > 1 else None
        return cls.number(metric.mean, digits, std, bold=bold)


Value: TypeAlias = Cell | str | float | None
"""Type of a row's entries; plain values are turned into cells."""


class Column(NamedTuple):
    """A column's head and its sort order."""

    name: str
    kind: Literal["text", "number"] = "number"
    better: Literal["high", "low"] = "high"
    """Sort direction of a number column at the first click: highest or lowest first."""
    group: str = ""
    """Name above neighbouring columns that belong together."""


class Table(NamedTuple):
    """A table: columns and rows, with title, paragraph, notes and caption."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    """Heading above the table."""
    about: str = ""
    """Paragraph between heading and table."""
    notes: tuple[str, ...] = ()
    """List items below the table."""
    caption: str = ""
    """Explanation of the table; in HTML only."""

    @classmethod
    def of(
        cls,
        columns: Sequence[Column | str],
        rows: Sequence[Sequence[Value]],
        title: str = "",
        about: str = "",
        notes: Sequence[str] = (),
        caption: str = "",
    ) -> Table:
        """Make a table of plain values. A column given only by its name is sorted as text if it is
        the first one or contains text, else as numbers."""
        cells = tuple(tuple(_as_cell(value) for value in row) for row in rows)
        heads = tuple(
            column if isinstance(column, Column) else Column(column, _kind(cells, at))
            for at, column in enumerate(columns)
        )
        return cls(heads, cells, title, about, tuple(notes), caption)


def to_markdown(table: Table, heading: str = "###") -> str:
    """A table as Markdown with title, paragraph and notes; ``heading`` is the title's prefix."""

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"

    def text(cell: Cell) -> str:
        return (cell._replace(text=f"**{cell.text}**") if cell.bold else cell).line

    rows = [line([text(cell) for cell in row]) for row in table.rows]
    body = [line([c.name for c in table.columns]), "|" + "---|" * len(table.columns), *rows]
    title = f"{heading} {table.title}".strip() if table.title else ""
    notes = "\n".join(f"* {note}" for note in table.notes)
    return "\n\n".join(filter(None, [title, table.about, "\n".join(body), notes]))


def to_latex(table: Table, label: str = "") -> str:
    r"""A table as LaTeX with the lines of the package booktabs; bold cells in ``\textbf``. Title
    and notes become the caption."""

    def text(cell: Cell) -> str:
        words = _latex(cell.text)
        bold = rf"\textbf{{{words}}}" if cell.bold else words
        mark = rf"\textsuperscript{{{_latex(cell.tag)}}}" if cell.tag else ""
        return " ".join(filter(None, [bold + mark, _latex(cell.note)]))

    def line(texts: Sequence[str]) -> str:
        return "  " + " & ".join(texts) + r" \\"

    kinds = "".join("r" if column.kind == "number" else "l" for column in table.columns)
    caption = " ".join(_latex(part) for part in (table.title, *table.notes) if part)
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{caption}}}"] if caption else []),
            *([rf"  \label{{{label}}}"] if label else []),
            rf"  \begin{{tabular}}{{{kinds}}}",
            r"  \toprule",
            line([_latex(column.name) for column in table.columns]),
            r"  \midrule",
            *(line([text(cell) for cell in row]) for row in table.rows),
            r"  \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


_LATEX_SIGNS = {
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "…": r"\dots{}",
    MISSING: "--",
}
"""LaTeX code for characters that LaTeX reads as commands or that its fonts lack."""


def _latex(text: str) -> str:
    """Escape text for LaTeX; Markdown's `code` and **bold** lose their marks."""
    plain = re.sub(r"`([^`]+)`|\*\*([^*]+)\*\*", lambda found: found[1] or found[2], text)
    return "".join(_LATEX_SIGNS.get(sign, sign) for sign in plain)


def to_plain_html(table: Table) -> str:
    """A table as HTML without script or style sheet, for notebooks."""
    heads = "".join(f"<th>{inline(column.name)}</th>" for column in table.columns)
    body = ""
    for row in table.rows:
        lines = [inline(cell.line) for cell in row]
        texts = (f"<b>{x}</b>" if cell.bold else x for x, cell in zip(lines, row, strict=True))
        body += f"<tr>{''.join(f'<td>{text}</td>' for text in texts)}</tr>"
    title = f"<p><strong>{inline(table.title)}</strong></p>" if table.title else ""
    notes = "".join(f"<p>{inline(note)}</p>" for note in table.notes)
    return f"{title}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{notes}"


def to_html(table: Table, key: str, classes: str = "") -> str:
    """A table as HTML with sortable columns, in a box that scrolls sideways on a narrow screen.
    ``key`` is the id of the table within its page. The first column names the rows."""
    many = " many" if len(table.rows) > MAX_ROWS_WITHOUT_SCROLLING else ""
    title = f"<h4>{inline(table.title)}</h4>" if table.title else ""
    about = f'<p class="note">{inline(table.about)}</p>' if table.about else ""
    notes = "".join(f"<li>{inline(note)}</li>" for note in table.notes)
    body = ""
    for row in table.rows:
        cells = enumerate(zip(row, table.columns, strict=True))
        body += f"<tr>{''.join(_html_cell(c, head.kind, at == 0) for at, (c, head) in cells)}</tr>"
    return (
        f'{title}{about}<div class="scroll" role="region" aria-labelledby="{key}-caption" '
        f'tabindex="0"><table class="sortable {classes}{many}"><caption id="{key}-caption"><span>'
        f'{inline(table.caption)} <span class="hint">Select a column head to sort.</span> '
        '<span class="narrow">Scroll the table sideways for more.</span></span></caption>'
        f"{_html_head(table.columns)}<tbody>{body}</tbody></table></div>"
        + (f'<ul class="note">{notes}</ul>' if notes else "")
    )


def inline(source: str) -> str:
    """Convert Markdown's `code` and **bold** to HTML. Links become plain text; HTML is escaped."""
    html = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", escape(source))
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", html)
    return re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", html)


def _as_cell(value: Value) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None:
        return Cell(MISSING)
    if isinstance(value, str):
        return Cell(value, value.strip("*`").lower() or None)
    return Cell(f"{value:,}" if isinstance(value, int) else f"{value:g}", value)


def _kind(rows: Sequence[Sequence[Cell]], at: int) -> Literal["text", "number"]:
    values = [row[at].value for row in rows if row[at].value is not None]
    return "text" if at == 0 or any(isinstance(value, str) for value in values) else "number"


def _html_head(columns: Sequence[Column]) -> str:
    """HTML of column heads with sort buttons, below the names of column groups if any."""
    spans = [(name, len(list(same))) for name, same in groupby(columns, lambda c: c.group)]
    widths = "".join(f'<colgroup span="{width}"></colgroup>' for _, width in spans)
    groups = "".join(
        f'<th scope="colgroup" colspan="{width}">{inline(name)}</th>' for name, width in spans
    )
    groups = f"<tr>{groups}</tr>" if any(name for name, _ in spans) else ""
    heads = ""
    for column in columns:
        falling = column.kind == "number" and column.better == "high"
        heads += (
            f'<th scope="col" class="{column.kind}" data-head="{escape(column.name)}">'
            f'<button type="button" data-first="{"descending" if falling else "ascending"}">'
            f"{inline(column.name)}</button></th>"
        )
    return f"{widths}<thead>{groups}<tr>{heads}</tr></thead>"


def _html_cell(cell: Cell, kind: str, first: bool) -> str:
    key = "" if cell.value is None else escape(str(cell.value))
    text = f"<strong>{inline(cell.text)}</strong>" if cell.bold else inline(cell.text)
    if cell.style is not None:
        text = f'<span class="name">{swatch(cell.style)}<span>{text}</span></span>'
    if cell.tag:
        text += f' <span class="tag">{escape(cell.tag)}</span>'
    if cell.note:
        text += f' <span class="spread">{inline(cell.note)}</span>'
    start, end = ('th scope="row"', "th") if first else ("td", "td")
    return f'<{start} class="{kind}" data-key="{key}">{text}</{end}>'
