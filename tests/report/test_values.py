"""Tables as Markdown and HTML; charts as SVG."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from report_reader import EVIL, Reader

from unskew.display import Cell, Chart, Column, Panel, Series, Table, draw_svg
from unskew.display.chart import draw_inline
from unskew.display.palette import style_of
from unskew.display.table import to_html, to_markdown
from unskew.methods import METHODS

TABLE = Table.of(
    ["method", Column("HR@10", group="Quality"), Column("KB", better="low"), "data"],
    [
        ["first", Cell.number(0.3, 3, std=0.01, published=0.91, bold=True), 1200, "`a`|b"],
        ["second", Cell.number(None, 3, published=0.5), None, "c"],
    ],
    "Protocol `paper`",
    "See [the page](page.md).",
    ["Order: **not** second."],
)


def test_a_table_is_markdown() -> None:
    assert to_markdown(TABLE) == (
        "### Protocol `paper`\n\nSee [the page](page.md).\n\n"
        "| method | HR@10 | KB | data |\n|---|---|---|---|\n"
        "| first | **0.300** ± 0.010 (0.910) | 1,200 | `a`\\|b |\n"
        "| second | – (0.500) | – | c |\n\n* Order: **not** second."
    )


def test_a_table_is_html_with_keys_to_sort_by() -> None:
    page = Reader(to_html(TABLE, "t"))
    assert page.row("first") == ["first", "0.300 ± 0.010 (0.910)", "1,200", "a|b"]
    assert page.row("second") == ["second", "– (0.500)", "–", "c"]
    keys = [attrs["data-key"] for _, attrs in page.tags if "data-key" in attrs]
    assert keys == ["first", "0.3", "1200", "a`|b", "second", "", "", "c"]
    first = [attrs["data-first"] for _, attrs in page.tags if "data-first" in attrs]
    assert first == ["ascending", "descending", "ascending", "ascending"]
    assert "page.md" not in str(page.tags)


def test_cells_are_escaped() -> None:
    made = Table.of([EVIL], [[Cell(EVIL, EVIL, EVIL, tag=EVIL)]], EVIL, EVIL, [EVIL], EVIL)
    page = Reader(to_html(made, "t"))
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert page.text.count("alert(1)") == 8


LINE = Series("pfedclr", "pfedclr", [1, 2, 3], [0.1, 0.2, 0.3], low=[0, 0.1, 0.2], high=[1, 1, 1])
PANEL = Panel("demo", "round", "NDCG@10", (LINE,), from_zero=True)


@pytest.mark.parametrize(
    "panel",
    [
        PANEL,
        Panel("names", "", "NDCG@10", (LINE._replace(x=[0, 1, 2]),), names=("a", "b", "c")),
        Panel("log", "rate", "NDCG@10", (LINE._replace(kind="points"),), log_x=True),
        Panel("bars", "rank", "HR@10", (LINE,), LINE._replace(label="time", key="overhead")),
        Panel("picture", "", "", (LINE._replace(kind="trail", low=(), high=()),)),
        Panel("bubbles", "MB", "HR@10", (LINE._replace(kind="points", sizes=[0, 0.5, 1]),)),
        Panel("notes", "AUC", "HR@10", (LINE._replace(notes=["λ 0", "", "λ 1"]),)),
        Panel(EVIL, EVIL, f"$_{EVIL}", (LINE._replace(label=f"漢字 {EVIL}"),)),
        Panel("nothing", "round", "NDCG@10", ()),
    ],
    ids=lambda panel: panel.title[:8],
)
def test_every_kind_of_panel_is_a_well_formed_svg_that_stays_the_same(panel: Panel) -> None:
    chart = Chart(panel.title, (panel, PANEL, PANEL))
    svg = draw_svg(chart)
    assert svg == draw_svg(chart)
    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert "width" not in root.attrib
    said = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "pfedclr" in said
    assert panel.title in said
    assert not [e for e in root.iter() if "script" in e.tag or "image" in e.tag]


def test_an_inline_chart_uses_the_colours_of_its_page_and_ids_of_its_own() -> None:
    pages = [Reader(draw_inline(PANEL, key)) for key in ("a", "b")]
    ids = [{attrs["id"] for _, attrs in page.tags if "id" in attrs} for page in pages]
    assert {"a-title", "a-desc"} < ids[0]
    assert not ids[0] & ids[1]
    drawn = draw_inline(PANEL, "a")
    assert "currentColor" in drawn
    assert "http" not in drawn
    assert "pfedclr: NDCG@10 0.1 at 1 to 0.3 at 3." in pages[0].text


def test_a_method_looks_unlike_any_other_without_colour() -> None:
    looks = [style_of(key) for key in (*METHODS, "fedmf-cf", "fedmf alone")]
    assert len({(look.dash, look.marker, look.hollow) for look in looks}) == len(looks)
