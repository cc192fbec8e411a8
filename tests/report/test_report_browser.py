"""The page in a real browser: quiet, offline, sortable, readable on a phone."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest
from report_samples import METHODS, extras, sample, samples

from browser import Browser
from unskew import report

FOCUSED = "document.activeElement.closest('th') ? document.activeElement.textContent : ''"
COLUMN = "[...document.querySelectorAll('table.runs tbody tr')].map(r => r.cells[{}].dataset.key)"

OUTSIDE = (
    "[...svg.querySelectorAll('path:not(defs *), text, use')].filter(e => { const r = "
    "e.getBoundingClientRect(), b = svg.getBoundingClientRect(); return r.left < b.left - 2 || "
    "r.right > b.right + 2 || r.top < b.top - 2 || r.bottom > b.bottom + 2 }).length"
)
"""Marks beyond the frame of ``svg``."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = samples(10)
    runs.append(sample("fedmf", data="a-data-set-with-quite-a-long-name-that-has-no-spaces-in-it"))
    for at, run in enumerate(runs):
        sent = None if at == 3 else 10_000.0 + 1000 * at
        runs[at] = run._replace(result=replace(run.result, bytes_up=sent))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report.render(runs, extras=extras()), encoding="utf-8")
    return path


def column(browser: Browser, at: int) -> list[str]:
    values: list[str] = browser.run(COLUMN.format(at))
    return values


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_complaints_and_no_request_beyond_the_file(
    browser: Browser, page: Path, scheme: str
) -> None:
    browser.open(page, scheme=scheme)
    assert browser.complaints() == []
    assert browser.requests() == [page.as_uri()]
    back = browser.run("getComputedStyle(document.body).backgroundColor")
    assert back == {"light": "rgb(252, 252, 251)", "dark": "rgb(20, 22, 25)"}[scheme]


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    evil = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    path = tmp_path / "evil.html"
    path.write_text(report.render([sample(evil, data=evil)], "Runs"), encoding="utf-8")
    browser.open(path)
    assert browser.complaints() == []
    assert evil in browser.run("document.querySelector('.plot > svg').textContent")
    assert browser.run("document.title") == "Runs"
    assert browser.run("document.images.length") == 0
    assert browser.requests() == [path.as_uri()]


def test_a_click_sorts_and_a_second_click_turns_it_round(browser: Browser, page: Path) -> None:
    browser.open(page)
    head = "table.runs thead tr + tr th:nth-child(13)"
    sort = f"document.querySelector('{head}').getAttribute('aria-sort')"
    assert browser.run(sort) is None
    for wanted in ("ascending", "descending"):
        browser.point_at(f"{head} button", click=True)
        assert browser.run(sort) == wanted
        shown = column(browser, 12)
        assert shown[-1] == ""  # a missing value stays last in both directions
        values = [float(value) for value in shown[:-1]]
        assert values == sorted(values, reverse=wanted == "descending")
        assert wanted in browser.run("document.getElementById('sorted').textContent")
    assert browser.run("document.querySelectorAll('[aria-sort]').length") == 1


def test_tab_reaches_every_sort_button_and_enter_sorts(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('.scroll:has(> .runs)').focus()")
    reached = []
    for _ in range(14):
        browser.press("Tab")
        reached.append(browser.run(FOCUSED))
        if reached == ["Method"]:
            outline = browser.run("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid"
            browser.press("Enter")
            assert column(browser, 0) == sorted([*METHODS, "fedmf", "fedmf", "pfedclr"])
            browser.press("Enter")
            assert column(browser, 0)[0] == "pfedrec"
    heads = "[...document.querySelectorAll('table.runs thead button')].map(b => b.textContent)"
    assert reached == browser.run(heads)


def test_tab_reaches_everything_there_is_to_use(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    usable = "document.querySelectorAll('a[href], button, summary, .scroll, pre')"
    count = browser.run(f"{usable}.length")
    assert count > 60
    browser.run("window.reached = new Set()")
    browser.run("addEventListener('focusin', e => reached.add(e.target))")
    for _ in range(count + 5):
        browser.press("Tab")
    missed = f"[...{usable}].filter(e => !reached.has(e)).map(e => e.outerHTML.slice(0, 90))"
    assert browser.run(missed) == []


def test_every_table_sorts_by_every_head(browser: Browser, page: Path) -> None:
    browser.open(page)
    wrong = browser.run(
        """[...document.querySelectorAll('table.sortable thead button')].flatMap(button => {
        const table = button.closest('table'), at = button.closest('th').cellIndex;
        const before = [...table.tBodies[0].rows].map(r => r.textContent).sort().join();
        return [0, 1].flatMap(() => {
          button.click();
          const rows = [...table.tBodies[0].rows], cells = rows.map(r => r.cells[at]);
          const down = button.closest('th').getAttribute('aria-sort') === 'descending';
          const keys = cells.map(c => c.dataset.key).filter(k => k !== '');
          const values = cells[0].className.includes('number') ? keys.map(Number) : keys;
          const good = values.every((v, i) => !i || (typeof v === 'string'
            ? values[i - 1].localeCompare(v, 'en') : values[i - 1] - v) * (down ? -1 : 1) <= 0);
          const kept = rows.map(r => r.textContent).sort().join() === before;
          const last = cells.slice(keys.length).every(c => c.dataset.key === '');
          return good && kept && last ? [] : [table.className + ' ' + button.textContent];
        }); })"""
    )
    assert wrong == []
    # Side by side, all runs, attacks, one of the paper, and the values of eight charts.
    assert browser.run("document.querySelectorAll('table.sortable').length") == 4 + 8
    paper = "[...document.querySelectorAll('.paper')].at(-1)"
    browser.run(f"{paper}.querySelectorAll('thead button')[2].click()")
    paper = f"[...{paper}.tBodies[0].rows].map(r => r.cells[1].textContent)"
    assert browser.run(paper) == ["third", "first", "fourth", "second"]


def test_every_chart_has_its_values_in_a_table_below(browser: Browser, page: Path) -> None:
    browser.open(page)
    values = "[...document.querySelectorAll('{} .values')].map(v => v.querySelector('table'))"
    rows = values.format("#privacy") + ".flatMap(t => [...t.tBodies[0].rows].map(r => r.innerText))"
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    attacks = [line.split("\t") for line in browser.run(rows)]
    assert ["pfedclr", "0.8", "0.0200", "λ 0.5"] in attacks
    assert ["unheard-of", "0.8", "0.0300", "λ 0.5"] in attacks
    charts, tables = (
        browser.run(f"document.querySelectorAll('{q}').length")
        for q in (".plot > svg", "figure.chart .values table")
    )
    assert charts == tables == 8


def test_the_client_stands_beside_what_each_run_recommends(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = browser.run("[...document.querySelectorAll('#client .picks')].map(b => b.innerText)")
    assert ["leaks" in box for box in shown] == [False, True, True]
    assert ["★" in box or "held out" in box for box in shown] == [True, False, True]
    counts = "[...document.querySelectorAll('#client ol')].map(l => l.children.length)"
    assert browser.run(counts) == [10, 10, 10]
    assert browser.run("document.querySelectorAll('#client .chips li').length") == 31


@pytest.mark.parametrize("width", [360, 1280])
def test_charts_have_marks_inside_their_frames(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    figures = browser.run(
        "[...document.querySelectorAll('figure.chart')].map(f => { const svg = "
        "f.querySelector('.plot > svg'); return {"
        "marks: svg.querySelectorAll('use').length,"
        "names: [...f.querySelectorAll('.legend .name')].map(n => n.textContent),"
        "said: svg.querySelector('title').textContent + svg.querySelector('desc').textContent,"
        f"out: {OUTSIDE} }} }})"
    )
    assert [len(figure["names"]) for figure in figures] == [2, 1, 8, 2, 2, 2, 1, 1]
    for figure in figures:
        assert figure["marks"] >= len(figure["names"])
        assert all(name in figure["said"] for name in figure["names"])
        assert figure["out"] == 0
    bars = "[...document.querySelectorAll('.bar .mark')].map(b => b.getBoundingClientRect().width)"
    widths = browser.run(bars)
    assert len(widths) == 3 * 11
    assert sum(width > 10 for width in widths) == len(widths) - 1, "one run sends nothing"


@pytest.mark.parametrize("width", [320, 360, 390, 768, 1280])
def test_the_page_never_scrolls_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert browser.run("innerWidth") == width
    assert browser.run("document.documentElement.scrollWidth") <= width
    if width < 500:
        for kind in ("runs", "sides"):
            box = f"document.querySelector('.scroll:has(> .{kind})')"
            assert browser.run(f"{box}.scrollWidth > {box}.clientWidth")
            assert browser.run(f"{box}.tabIndex") == 0
        smallest = browser.run(
            "Math.min(...[...document.querySelectorAll('.plot text')].map(t => "
            "parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.clientWidth / 400))"
        )
        assert smallest >= (10 if width == 390 else 8)


def test_printing_unfolds_how_each_run_was_made(browser: Browser, page: Path) -> None:
    browser.open(page)
    opened = "document.querySelectorAll('details.run[open]').length"
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(opened) == 11 + 3  # the attacks, the rest of a history, all commands
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(opened) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, scheme=scheme)
    assert browser.worst_contrast() >= 4.5


def test_printed_pages_hold_tables_whole_on_white(browser: Browser, page: Path) -> None:
    browser.open(page, scheme="dark")
    browser.call("Emulation.setEmulatedMedia", media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    boxes = "[...document.querySelectorAll('.scroll:not(.values *)')]"
    assert set(browser.run(f"{boxes}.map(b => getComputedStyle(b).overflowX)")) == {"visible"}
    hidden = "[...document.querySelectorAll('nav, thead button')].map(b => b.offsetHeight)"
    assert set(browser.run(hidden)) == {0}
    pdf = browser.call("Page.printToPDF", preferCSSPageSize=True)["data"]
    assert base64.b64decode(pdf)[:4] == b"%PDF"
    browser.call("Emulation.setEmulatedMedia", media="")
