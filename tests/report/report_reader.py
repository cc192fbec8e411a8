"""A page read back: its cells, its tags, its text."""

from __future__ import annotations

from html.parser import HTMLParser

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


class Reader(HTMLParser):
    """Text of the table's cells, all tags with attributes, and whether tags are balanced."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.cells: list[list[str]] = []
        self.said: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th") and self.cells:
            self.cells[-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if any(tag in self.open for tag in ("td", "th")):
            self.cells[-1][-1] += data
        if "script" not in self.open and "style" not in self.open:
            self.said.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.said).replace("\N{NO-BREAK SPACE}", " ").split())

    def row(self, *start: str) -> list[str]:
        found = [row for row in self.cells if row[: len(start)] == list(start)]
        assert len(found) == 1, f"{len(found)} rows start with {start}"
        return found[0]
