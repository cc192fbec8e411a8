"""The page in a real browser: quiet, offline, sortable, readable on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from report_browser import Browser, chromium
from report_samples import METHODS, sample, samples

from unskew import report

FOCUSED = "document.activeElement.closest('th') ? document.activeElement.textContent : ''"
COLUMN = "[...document.querySelectorAll('table.runs tbody tr')].map(r => r.cells[{}].dataset.key)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = chromium()
    if program is None:
        pytest.skip("chromium is not installed")
    opened = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = samples(10)
    runs.append(sample("fedmf", data="a-data-set-with-quite-a-long-name-that-has-no-spaces-in-it"))
    del runs[3]["summary"]["metrics"]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report.render(runs), encoding="utf-8")
    return path


def column(browser: Browser, at: int) -> list[str]:
    values: list[str] = browser.run(COLUMN.format(at))
    return values


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_complaints_and_no_request_beyond_the_file(
    browser: Browser, page: Path, scheme: str
) -> None:
    browser.open(page, scheme=scheme)
    browser.point_at("figure.chart .plot > svg")
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
    browser.point_at("figure.chart .plot > svg")
    assert evil in browser.run("document.querySelector('.tip').textContent")
    assert browser.run("document.title") == "Runs"
    assert browser.run("document.images.length") == 0
    assert browser.requests() == [path.as_uri()]


def test_a_click_sorts_and_a_second_click_turns_it_round(browser: Browser, page: Path) -> None:
    browser.open(page)
    head = "table.runs thead tr + tr th:nth-child(6)"
    sort = f"document.querySelector('{head}').getAttribute('aria-sort')"
    assert browser.run(sort) is None
    for wanted in ("descending", "ascending"):
        browser.point_at(f"{head} button", click=True)
        assert browser.run(sort) == wanted
        shown = column(browser, 5)
        assert shown[-1] == ""  # a missing value stays last in both directions
        values = [float(value) for value in shown[:-1]]
        assert values == sorted(values, reverse=wanted == "descending")
        assert wanted in browser.run("document.getElementById('sorted').textContent")
    assert browser.run("document.querySelectorAll('[aria-sort]').length") == 1


def test_tab_reaches_every_sort_button_and_enter_sorts(browser: Browser, page: Path) -> None:
    browser.open(page)
    reached = []
    for _ in range(20):
        browser.press("Tab")
        if name := browser.run(FOCUSED):
            reached.append(name)
            if name == "Method":
                assert (
                    browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                )
                browser.press("Enter")
                assert column(browser, 0) == sorted([*METHODS, "fedmf", "fedmf", "pfedclr"])
                browser.press("Enter")
                assert column(browser, 0)[0] == "pfedrec"
    heads = "[...document.querySelectorAll('table.runs thead button')].map(b => b.textContent)"
    assert reached == browser.run(heads)
    assert len(reached) == 14


def test_charts_have_marks_inside_their_frames(browser: Browser, page: Path) -> None:
    browser.open(page)
    figures = browser.run(
        "[...document.querySelectorAll('figure.chart')].map(f => { const svg = "
        "f.querySelector('.plot > svg'), b = svg.getBoundingClientRect(); return {"
        "lines: svg.querySelectorAll('.series .line').length,"
        "marks: svg.querySelectorAll('.series .mark').length,"
        "names: [...f.querySelectorAll('.legend .name')].map(n => n.textContent),"
        "labels: [...svg.querySelectorAll('.label')].map(n => n.textContent),"
        "told: svg.querySelector('title').textContent + svg.querySelector('desc').textContent,"
        "out: [...svg.querySelectorAll('path, text')].filter(e => { const r = "
        "e.getBoundingClientRect(); return r.left < b.left - 2 || r.right > b.right + 2 || "
        "r.top < b.top - 2 || r.bottom > b.bottom + 2 }).length } })"
    )
    assert [figure["lines"] for figure in figures] == [1, 8, 2]
    for figure in figures:
        assert figure["marks"] >= 6 * figure["lines"]
        assert sorted(figure["names"]) == sorted(figure["labels"])
        assert all(name in figure["told"] for name in figure["names"])
        assert figure["out"] == 0
    bars = "[...document.querySelectorAll('.bar .mark')].map(b => b.getBoundingClientRect().width)"
    widths = browser.run(bars)
    assert len(widths) == 3 * 11
    assert min(widths) > 10


def test_the_tooltip_tells_the_values_under_pointer_and_keys(browser: Browser, page: Path) -> None:
    browser.open(page)
    tip = "(t => t.hidden ? null : t.innerText)(document.querySelectorAll('.tip')[2])"
    chart = "document.querySelectorAll('.plot > svg')[2]"
    browser.run(f"{chart}.id = 'third'")
    browser.point_at("#third", across=0.02)
    said = browser.run(tip)
    assert "Round 1\n" in said
    assert all(value in said for value in ("pfedclr", "0.1080", "fedmf", "0.1438"))
    browser.point_at("h1")
    assert browser.run(tip) is None

    browser.run("document.querySelectorAll('.values summary')[1].focus()")
    browser.press("Tab")
    assert browser.run("document.activeElement.id") == "third"
    assert "Round 1\n" in browser.run(tip)
    browser.press("End")
    assert "Round 12\n" in browser.run(tip)
    browser.press("ArrowLeft")
    assert "Round 11\n" in browser.run(tip)
    assert browser.run("document.querySelectorAll('#third .cursor circle').length") == 2
    browser.press("Escape")
    assert browser.run(tip) is None


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_the_page_never_scrolls_sideways(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert browser.run("innerWidth") == width
    assert browser.run("document.documentElement.scrollWidth") <= width
    if width < 500:
        box = "document.querySelector('.scroll')"
        assert browser.run(f"{box}.scrollWidth > {box}.clientWidth")
        smallest = browser.run(
            "Math.min(...[...document.querySelectorAll('.plot text')].map(t => "
            "parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.clientWidth / 480))"
        )
        assert smallest >= (10 if width == 390 else 8)


def test_printing_unfolds_how_each_run_was_made(browser: Browser, page: Path) -> None:
    browser.open(page)
    opened = "document.querySelectorAll('details.run[open]').length"
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(opened) == 11
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(opened) == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(browser: Browser, page: Path, scheme: str) -> None:
    browser.open(page, scheme=scheme)
    worst = browser.run(
        """(() => {
        const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255)
          .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
          return .2126 * r + .7152 * g + .0722 * b; };
        const back = e => { for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor;
          if (!/rgba\\(.*, 0\\)/.test(c)) return c; } };
        return Math.min(...[...document.querySelectorAll(
          'p, td, th, h1, h2, h3, h4, .name, .tag, .spread, button, svg text, figcaption')]
          .map(e => { const s = getComputedStyle(e);
            const [a, b] = [light(e.matches('svg text') ? s.fill : s.color), light(back(e))];
            return (Math.max(a, b) + .05) / (Math.min(a, b) + .05); }));
        })()"""
    )
    assert worst >= 4.5
