"""The exported page in a real browser: it recommends as Python does, and asks for nothing."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from export_samples import (
    MODELS,
    check_best,
    error,
    fitted,
    histories,
    model,
    python_scores,
)

import unskew
from browser import Browser
from conftest import run_unskew
from unskew import UnskewError
from unskew.data import load
from unskew.export import to_page
from unskew.export.page import Contents, render_page
from unskew.export.tables import Precision, Prepared, prepare
from unskew.methods import create
from unskew.methods.newcomers import Neighbours
from unskew.types import Cohort, Ragged

LIST = "[...document.querySelectorAll('#list bdi')].map(e => e.textContent)"
BEST = "[...document.querySelectorAll('#recommended bdi')].map(e => e.textContent)"
N_HISTORIES = 200


def open_page(browser: Browser, path: Path, **options) -> None:
    """Open the page and wait until its model is read."""
    browser.open(path, **options)
    for _ in range(1000):
        if browser.run("Boolean(window.unskew)"):
            return
        time.sleep(0.01)
    raise AssertionError(browser.complaints())


def bare_page(path: Path, prepared: Prepared, n_items: int) -> Path:
    labels = [f"item {number}" for number in range(n_items)]
    contents = Contents("method", "data", [], labels, labels, [1] * n_items, 9, 10, True, 1.0)
    path.write_text(render_page(prepared, contents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_bytes(to_page(fitted("fedrefit")).content)
    return path


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "precision",
    ["float16", *(pytest.param(one, marks=pytest.mark.slow) for one in ("float32", "int8"))],
)
def test_the_script_scores_as_python_does(
    browser: Browser, tmp_path: Path, name: str, precision: Precision
) -> None:
    method, download, n_items = model(name)
    prepared = prepare(method, download, n_items, precision, 100)
    open_page(browser, bare_page(tmp_path / "page.html", prepared, n_items))
    assert browser.complaints() == []
    lists = histories(n_items, N_HISTORIES)
    asked = json.dumps([history.tolist() for history in lists])
    scores = browser.run(f"{asked}.map(h => [...unskew.scores(h)])")
    best = browser.run(f"{asked}.map(h => unskew.best(h, 10).map(one => one.item))")
    same = python_scores(method, prepared.download, lists, n_items)
    for history, found, items, wanted in zip(lists, scores, best, same, strict=True):
        assert error(np.array(found), wanted) <= 1e-5
        check_best(items, wanted, history, 1e-5)
    thinned = isinstance(prepared.arithmetic, Neighbours) and name != "item-knn"
    if not thinned:
        trained = python_scores(method, download, lists, n_items)
        limit = {"float32": 1e-5, "float16": 1e-2, "int8": 0.1}[precision]
        assert max(map(error, map(np.array, scores), trained)) <= limit


def test_a_repeated_item_counts_where_it_came_first(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    assert browser.run("''+unskew.scores([7,3,7,90,3]) === ''+unskew.scores([7,3,90])")


def test_five_titles_by_keyboard_give_what_the_command_gives(
    browser: Browser, tmp_path: Path
) -> None:
    run_unskew("run", "--method", "fedrefit", "--data", "demo", "--out", "run", cwd=tmp_path)
    run_unskew("export", "run", "app", "--format", "web", cwd=tmp_path)
    split = fitted("fedrefit").split
    chosen = [10, 500, 33, 1200, 7]
    titles = [split.titles[item] for item in chosen]
    open_page(browser, tmp_path / "app" / "index.html")
    browser.run("document.getElementById('query').focus()")
    for title in titles:
        browser.run("document.getElementById('query').select()")
        browser.type(title.upper())
        browser.press("Tab")
        browser.press(" ")
        assert browser.run("document.activeElement.checked")
        browser.press("Tab", shift=True)
        assert browser.run("document.activeElement.id") == "query"
    assert browser.run(LIST) == titles
    labels = ",".join(split.item_ids[item] for item in chosen)
    told, _ = run_unskew("recommend", "run", "--items", labels, "--json", cwd=tmp_path)
    wanted = json.loads(told)["recommendations"]
    assert browser.run(BEST) == [row["title"] for row in wanted]
    shown = "[...document.querySelectorAll('#recommended .number')].map(e => +e.textContent)"
    assert browser.run(shown) == pytest.approx([row["score"] for row in wanted], rel=5e-3)
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "app" / "index.html").as_uri()]


def test_the_list_is_reordered_by_keys_and_by_dragging(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    for at in range(4):
        browser.point_at(f"#hits li:nth-child({at + 1}) input", click=True)
    a, b, c, d = browser.run(LIST)
    before = browser.run(BEST)
    browser.run("document.querySelector('#list li:nth-child(4) button').focus()")
    browser.press("Enter")
    browser.press(" ")
    assert browser.run(LIST) == [a, d, b, c]
    label = browser.run("document.activeElement.getAttribute('aria-label')")
    assert label == f"Move up: {d}"  # the focus stays on the item that moves
    assert browser.run(BEST) != before
    browser.drag("#list li:nth-child(1) .grip", "#list li:nth-child(3)")
    assert browser.run(LIST) == [d, b, a, c]
    for _ in range(3):  # the first item cannot move further up
        browser.run("document.querySelector('#list li:nth-child(1) button').click()")
    assert browser.run(LIST) == [d, b, a, c]
    browser.run("document.querySelector('#list li:nth-child(2) button:last-child').click()")
    assert browser.run(LIST) == [d, a, c]
    ticked = "[...document.querySelectorAll('#hits input')].map(box => box.checked).slice(0, 4)"
    assert browser.run(ticked) == [True, False, True, True]
    first = browser.run(BEST)[0]
    browser.point_at("#recommended li:nth-child(1) button", click=True)
    assert browser.run(LIST) == [d, a, c, first]
    assert first not in browser.run(BEST)
    browser.point_at("#clear", click=True)
    assert browser.run(LIST) == []
    assert browser.run("document.querySelectorAll('#hits :checked').length") == 0
    assert browser.complaints() == []


def test_tab_reaches_everything_there_is_to_use(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    browser.run("[3, 4].forEach(at => document.querySelectorAll('#hits input')[at].click())")
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    usable = "[...document.querySelectorAll('button, input, select, summary, .scroll')]"
    browser.run("window.reached = new Set(); document.activeElement.blur()")
    browser.run("addEventListener('focusin', e => reached.add(e.target))")
    for _ in range(browser.run(f"{usable}.length") + 5):
        browser.press("Tab")
    assert browser.run(f"{usable}.filter(e => !reached.has(e)).map(e => e.outerHTML)") == []


def test_hostile_titles_are_text(browser: Browser, tmp_path: Path) -> None:
    evil = [
        "<script>document.title='owned'</script>",
        "</script><img src=x onerror=\"document.title='owned'\">",
        "<!--<script>",
        "\"It's\" `${document.title='owned'}` \\u003c \\",
        "שלום \u202eעולם",
        "Ünïcode 𝒳\u2028line",
    ]
    run = fitted("popularity")
    recommender = run.recommender()
    split = recommender.split
    try:
        recommender.split = replace(split, titles=[*evil, *split.titles[len(evil) :]])
        (tmp_path / "evil.html").write_bytes(to_page(run).content)
    finally:
        recommender.split = split
    open_page(browser, tmp_path / "evil.html")
    for at, title in enumerate(evil):
        word = re.findall(r"\w{3,}", title)[-1]
        browser.run(f"document.getElementById('query').value = {json.dumps(word)}")
        browser.run("document.getElementById('query').dispatchEvent(new Event('input'))")
        found = "[...document.querySelectorAll('#hits bdi')].findIndex(e => e.textContent === {})"
        place = browser.run(found.format(json.dumps(title)))
        assert place >= 0, title
        browser.point_at(f"#hits li:nth-child({place + 1}) input", click=True)
        assert browser.run(LIST)[at] == title
    assert browser.run("document.title") == "Recommendations on your device"
    assert browser.run("document.images.length") == 0
    assert browser.run("document.scripts.length") == 3
    direction = "getComputedStyle(document.querySelectorAll('#list bdi')[4]).unicodeBidi"
    assert browser.run(direction) == "isolate"
    assert browser.complaints() == []
    assert browser.requests() == [(tmp_path / "evil.html").as_uri()]


def test_the_policy_lets_nothing_out(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    tried = """Promise.all([
        fetch('https://example.invalid/').catch(() => 'blocked'),
        fetch('data:text/plain,x').catch(() => 'blocked'),
        new Promise(done => { const i = new Image(); i.onerror = () => done('blocked');
          i.onload = () => done('open'); i.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw='; })
    ]).then(all => all.join())"""
    assert browser.run(tried) == "blocked,blocked,blocked"
    assert [one for one in browser.requests() if not one.startswith("data:")] == [page.as_uri()]


@pytest.mark.parametrize(
    ("method", "round"), [("fedrefit", 7), ("fedrefit, both ways", 5), ("fednext", 7)]
)
def test_the_upload_shown_is_the_one_that_the_method_sends(
    browser: Browser, tmp_path: Path, method: str, round: int
) -> None:
    """Also in size, and with the items that whoever sees it reads from it."""
    if method == "fednext":
        one, download, n_items = model("fednext")
    else:
        one, download, n_items = model("fedrefit")
        if "both" in method:
            one = create("fedrefit", order="both")
    prepared = prepare(one, download, n_items, "float32")
    open_page(browser, bare_page(tmp_path / "page.html", prepared, n_items))
    history = np.array([4, 190, 77, 31, 5], np.int32)
    shown = browser.run(f"unskew.upload({history.tolist()})")
    # The round's download: a model that is exported may be of a later round.
    early = download._replace(step=np.array([round - 1], np.int32))
    if method == "fednext":
        early = early._replace(R=download.R[:0], net=download.net[:0])
    lists = Ragged(np.array([0, 5]), history)
    _, private = one.init(1, n_items, 0)
    cohort = Cohort(np.array([0]), lists, lists, n_items, 0, round)
    _, upload, _ = one.local(early, private, cohort)
    assert upload.rows.items.tolist() == sorted(history)
    assert error(np.array(shown["rows"])[np.argsort(history)], upload.rows.values) <= 1e-5
    assert shown["dense"] == upload.dense.shape[1]
    sizes = "document.getElementById('sizes').textContent"
    assert browser.run(sizes) == ""  # nothing is ticked
    for item in history.tolist():
        browser.run(f"document.getElementById('query').value = 'item {item}'")
        browser.run("document.getElementById('query').dispatchEvent(new Event('input'))")
        box = f"#hits input[data-item='{item}']"
        browser.run(f'document.querySelector("{box}").click()')
    assert f"{upload.nbytes / 1000:.1f} KB" in browser.run(sizes)
    read = "[...document.querySelectorAll('#read li')].map(e => e.textContent)"
    assert browser.run(read) == [f"item {item}" for item in history]
    drawn = "document.querySelector('canvas').width + 'x' + document.querySelector('canvas').height"
    assert browser.run(drawn) == f"{upload.rows.values.shape[1]}x5"
    hidden = "document.getElementById('later').hidden"
    assert browser.run(hidden) == (method != "fednext")  # the rounds that train a network
    assert browser.complaints() == []


def test_an_empty_list_is_told_to_tick_a_title(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    assert "Tick a title" in browser.run("document.getElementById('sent').textContent")
    parts = ("sizes", "picture", "attacks", "later")
    seen = [browser.run(f"document.getElementById('{part}').offsetHeight") for part in parts]
    assert seen == [0, 0, 0, 0]


def test_what_a_page_cannot_compute_it_does_not_show(browser: Browser, tmp_path: Path) -> None:
    """In its first rounds FedNext also sends how recent each item is, for which a page has no
    times."""
    method, download, n_items = model("fednext")
    early = download._replace(
        V=download.V[:, :0], R=download.R[:0], net=download.net[:0], step=np.array([2], np.int32)
    )
    prepared = prepare(method, early, n_items, "float32")
    open_page(browser, bare_page(tmp_path / "page.html", prepared, n_items))
    browser.run("document.querySelector('#hits input').click()")
    assert "cannot compute" in browser.run("document.getElementById('sent').textContent")
    assert browser.run("document.getElementById('attacks').offsetHeight") == 0
    assert len(browser.run(BEST)) == 10
    assert browser.complaints() == []


def test_noise_on_uploads_is_said(browser: Browser, tmp_path: Path) -> None:
    noisy = unskew.fit("fedrefit", load("demo"), ldp={"noise": 0.1}, rounds=1)
    (tmp_path / "page.html").write_bytes(to_page(noisy).content)
    open_page(browser, tmp_path / "page.html")
    browser.run("document.querySelector('#hits input').click()")
    assert "random noise added" in browser.run("document.getElementById('sent').textContent")


def test_the_script_computes_nothing_else(browser: Browser, page: Path) -> None:
    """Scoring newcomers, and what leaves a device: all that has a second form."""
    open_page(browser, page)
    assert browser.run("Object.keys(unskew)") == ["scores", "best", "upload", "guess"]
    source = Path(unskew.__file__).parent
    rooms = {path.relative_to(source).parts[0] for path in source.rglob("*.js")}
    rooms |= {
        path.relative_to(source).parts[0]
        for path in source.rglob("*.py")
        if re.search(r"^\s*(import|from) onnx", path.read_text(), re.MULTILINE)
    }
    assert rooms == {"export", "report"}  # the script of the report sorts tables


def test_the_upload_of_the_first_rounds_is_the_methods_too(
    browser: Browser, tmp_path: Path
) -> None:
    method, download, n_items = model("fedrefit, first rounds")
    prepared = prepare(method, download, n_items, "float32")
    open_page(browser, bare_page(tmp_path / "page.html", prepared, n_items))
    lists = Ragged(np.array([0, 3]), np.array([8, 2, 700], np.int32))
    _, private = method.init(1, n_items, 0)
    cohort = Cohort(np.array([0]), lists, lists, n_items, 0, 2)
    early = download._replace(step=np.array([1], np.int32))
    _, upload, _ = method.local(early, private, cohort)
    shown = browser.run("unskew.upload([8, 2, 700])")
    assert error(np.array(shown["rows"]), upload.rows.values) <= 1e-5
    assert shown["dense"] == upload.dense.shape[1] == 0


def test_in_a_sum_over_many_devices_only_popular_items_show(browser: Browser, page: Path) -> None:
    open_page(browser, page)
    split = fitted("fedrefit").split
    users = np.bincount(split.seen.items, minlength=1500)
    rare = np.argsort(users, kind="stable")[:4].tolist()
    assert sorted(browser.run(f"unskew.guess({rare}, 2)")) == sorted(rare)
    popular = np.argsort(-users, kind="stable")[:4].tolist()
    assert sorted(browser.run(f"unskew.guess({rare}, {split.n_users})")) == sorted(popular)
    browser.run("document.querySelector('#hits input').click()")
    browser.run("document.getElementById('devices').value = '2'")
    browser.run("document.getElementById('devices').dispatchEvent(new Event('change'))")
    assert "over 2 devices" in browser.run("document.getElementById('guess').textContent")


def test_a_central_method_says_that_it_would_need_the_whole_list(
    browser: Browser, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_bytes(to_page(fitted("ease")).content)
    open_page(browser, tmp_path / "page.html")
    assert browser.run(BEST) == []  # all scores of an empty list are equal
    browser.run("document.querySelector('#hits input').click()")
    assert "isn't federated" in browser.run("document.getElementById('sent').textContent")
    assert browser.run("document.getElementById('summed').hidden")
    assert len(browser.run(BEST)) == 10


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_readable_and_never_scrolls_sideways(
    browser: Browser, page: Path, width: int, scheme: str
) -> None:
    open_page(browser, page, width=width, scheme=scheme)
    browser.run("[...document.querySelectorAll('#hits input')].slice(0, 9).forEach(e => e.click())")
    browser.run("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.worst_contrast() >= 4.5
    small = "[...document.querySelectorAll('#list button, #recommended button')].filter(e => "
    assert browser.run(f"{small}Math.min(e.offsetWidth, e.offsetHeight) < 32).length") == 0


def test_a_page_keeps_to_its_size() -> None:
    halves = len(to_page(fitted("fedrefit")).content) / 1e6
    eighths = to_page(fitted("fedrefit"), max_mb=0.8 * halves)
    assert eighths.prepared.precision == "int8"
    assert len(eighths.content) <= 0.8e6 * halves
    assert eighths.ndcg[1] == pytest.approx(eighths.ndcg[0], abs=0.005)
    with pytest.raises(UnskewError, match=r"would have .* MB, more than --max-mb"):
        to_page(fitted("fedrefit"), float16=True, max_mb=0.8 * halves)
    fewer = to_page(fitted("ease"), max_mb=0.5)
    assert fewer.prepared.arithmetic.neighbours.shape[1] == 70
    assert 0.4e6 < len(fewer.content) <= 0.5e6
    with pytest.raises(UnskewError, match=r"ease on demo would have .* MB"):
        to_page(fitted("ease"), max_mb=0.1)
