"""The page as text: every figure in it, nothing unescaped, nothing fetched."""

from __future__ import annotations

import copy
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from report_reader import EVIL, Reader
from report_samples import METHODS, extras, sample, samples

from unskew import report
from unskew.report.entries import amount
from unskew.report.palette import luminance, styles
from unskew.types import UnskewError


def spread(figure: dict[str, Any]) -> str:
    return f"{figure['mean']:.4f} ± {figure['std']:.4f}"


@pytest.mark.parametrize("count", [1, 10])
def test_every_figure_of_every_run_is_in_the_table(count: int) -> None:
    runs = samples(count)
    page = Reader(report.render(runs))
    for run in runs:
        s = run["summary"]
        shown = page.row(
            s["method"], s["data"], s["protocol"] + " leaks" * (s["protocol"] == "paper")
        )
        wanted = [
            spread(s[part][metric])
            for part in ("metrics", "last_round", "sampled99")
            for metric in ("hr@10", "ndcg@10")
        ]
        assert shown[3] == s["ranking"]
        assert shown[4:10] == wanted
        costs = (s["seconds_per_round"], s["bytes_up"] / 1000, s["bytes_down"] / 1000)
        assert shown[10:] == [str(s["rounds"]), *(amount(value) for value in costs)]


def test_every_round_of_every_curve_is_in_the_values_beside_its_chart() -> None:
    run = sample("pfedclr")
    page = Reader(report.render([run]))
    first, second = run["rounds"].values()
    for one, other in zip(first, second, strict=True):
        mean = (one["validation"]["ndcg@10"] + other["validation"]["ndcg@10"]) / 2
        assert page.row(str(one["round"]))[1] == f"{mean:.4f}"


def test_commands_versions_settings_seeds_and_notes_are_told() -> None:
    run = sample("fedmf")
    run["summary"]["notes"] = ["12 rows left out"]
    run["summary"]["run_dir"] = "/home/somebody/runs/first-try"
    said = Reader(report.render([run])).text
    for wanted in ("unskew run fedmf", "numpy = 2.4.6", "rounds = 12", "12 rows left out", "0, 1"):
        assert wanted in said
    assert "first-try" in said
    assert "somebody" not in said


@pytest.mark.parametrize("field", ["method", "data", "protocol", "ranking", "command", "title"])
def test_text_from_outside_is_escaped(field: str) -> None:
    run, title = sample("pfedclr"), "Runs"
    if field == "title":
        title = EVIL
    else:
        run["summary"][field] = EVIL
    page = Reader(report.render([run], title))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "alert(1)" in page.text


def test_settings_notes_versions_and_keys_are_escaped() -> None:
    run = sample("pfedclr")
    run["summary"] |= {"settings": {EVIL: EVIL}, "notes": [EVIL], "versions": {EVIL: EVIL}}
    run["summary"] |= {"model_sha256": [EVIL], "run_dir": EVIL, "seeds": [EVIL]}
    page = Reader(report.render([run]))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_one_file_that_refers_to_nothing_outside() -> None:
    page = report.render(samples(10), extras=extras())
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<link|<base|<iframe", page)
    fetching = {"src", "xlink:href", "srcset", "action", "data", "poster"}
    tags = Reader(page).tags
    assert not [(t, a) for t, a in tags if fetching & set(a)]
    names = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(names) == len(set(names))
    leads = [str(attrs["href"]) for _, attrs in tags if "href" in attrs]
    assert leads
    assert all(lead.removeprefix("#") in names and lead[0] == "#" for lead in leads)


def test_same_input_same_page_and_the_input_stays_as_it_was() -> None:
    runs = samples(4)
    before = copy.deepcopy(runs)
    assert report.render(runs) == report.render(runs)
    assert runs == before


def test_missing_and_not_a_number_are_dashes_and_never_words() -> None:
    run = sample("pfedclr")
    run["summary"]["metrics"]["hr@10"]["mean"] = math.nan
    run["summary"]["seconds_per_round"] = math.inf
    del run["summary"]["sampled99"]
    run["summary"]["bytes_up"] = None
    run["rounds"][0][3]["validation"]["ndcg@10"] = math.nan
    run["rounds"][1][3]["validation"] = {}
    page = Reader(report.render([run]))
    shown = page.row("pfedclr", "demo")
    assert [shown[at] for at in (4, 8, 9, 11, 12)] == ["–"] * 5
    assert shown[5] == spread(run["summary"]["metrics"]["ndcg@10"])
    assert not re.search(r"\b(nan|inf|None)\b", page.text)
    geometry = [str(v) for _, attrs in page.tags for v in attrs.values()]
    assert not [value for value in geometry if re.search(r"\b(nan|inf)\b", value)]


def test_a_bare_summary_is_enough() -> None:
    page = Reader(report.render([{"summary": {"method": "fedmf"}, "rounds": {}}]))
    assert page.row("fedmf")[4:] == ["–"] * 10
    assert "Learning curves" not in page.text
    assert "no figures yet" in page.text


def test_seeds_may_be_strings_as_they_come_from_json() -> None:
    run = sample("pfedclr")
    again = json.loads(json.dumps(run))
    assert report.render([again]) == report.render([run])


def test_one_seed_has_no_spread() -> None:
    run = sample("pfedclr", seeds=1)
    assert "±" not in "".join(Reader(report.render([run])).row("pfedclr", "demo"))


@pytest.mark.parametrize("runs", [[], [{}], [{"summary": None}]])
def test_nothing_to_report_on_is_said_in_one_sentence(runs: list[dict[str, Any]]) -> None:
    with pytest.raises(UnskewError, match=r"^[^\n]+; give [^\n]+\.$"):
        report.render(runs)


def test_the_summary_names_the_best_the_leak_and_the_cost() -> None:
    runs = [sample("pfedclr", level=0.05), sample("fedmf", level=0.02)]
    runs.append(sample("pfedclr", "paper", level=0.4, sampled=0.4))
    said = Reader(report.render(runs)).text
    assert "On demo under the leak-free protocol, pfedclr is the best of 2 methods" in said
    assert "within the spread" not in said
    assert "0.4000 instead of 0.1500, +0.2500: that gap is the leak, since" in said
    assert "took 0.250 s to simulate, and each client taking part sent 18.7 KB and" in said


def test_the_summary_claims_no_lead_and_no_leak_that_the_figures_do_not_show() -> None:
    close = [sample("pfedclr", level=0.0501), sample("fedmf", level=0.05)]
    assert "a lead within the spread over seeds" in Reader(report.render(close)).text
    same = [sample("pfedclr"), sample("pfedclr", "paper", sampled=0.15)]
    assert "no leak shows" in Reader(report.render(same)).text
    other = [sample("pfedclr"), sample("pfedclr", "paper", sampled=0.9)]
    other[1]["summary"]["settings"] = {"rounds": 99}
    assert "is the leak" not in Reader(report.render(other)).text
    alone = Reader(report.render([sample("pfedclr", "paper")])).text
    assert "run leak-free to see" in alone


def test_rows_that_only_one_protocol_drops_are_not_called_leak() -> None:
    runs = [sample("pfedclr"), sample("pfedclr", "paper", sampled=0.9)]
    runs[1]["summary"]["notes"] = ["9 of 16 test pairs also stand in training"]
    assert "together with the rows the notes below" in Reader(report.render(runs)).text


def test_runs_of_one_method_are_told_apart_by_what_differs() -> None:
    runs = [sample("fedmf"), sample("fedmf"), sample("fedmf")]
    runs[0]["summary"]["settings"] = {"rounds": 12, "lr": 0.5}
    page = Reader(report.render(runs))
    page.row("fedmf (lr=0.5)", "demo")
    page.row("fedmf (lr=default) #1", "demo")
    page.row("fedmf (lr=default) #2", "demo")


def test_honest_protocols_come_first_and_a_panel_each() -> None:
    runs = [sample("fedmf", "paper"), sample("fedmf", "time"), sample("fedmf", "leak-free")]
    page = report.render(runs)
    panels = re.findall(r"<h4><code>([\w-]+)</code>", page)
    assert panels == ["leak-free", "time", "paper"]
    assert "ranked: 99 sampled candidates" in page
    assert "ranked: all unseen items" in page
    assert "heights compare within a panel" in page


def test_colours_are_stable_distinct_and_readable_on_white_and_on_black() -> None:
    assert report.palette("pfedclr") == report.palette("PFedCLR") == "#0072b2"
    assert report.palette("unheard-of") == report.palette("unheard-of") != report.palette("other")
    assert len({report.palette(method) for method in METHODS}) == len(METHODS)
    for method in [*METHODS, *(f"method-{i}" for i in range(300)), "", EVIL]:
        colour = report.palette(method)
        assert re.fullmatch("#[0-9a-f]{6}", colour)
        assert 1.05 / (luminance(colour) + 0.05) >= 3
        assert (luminance(colour) + 0.05) / (luminance("#1b1e22") + 0.05) >= 2.6


def test_lines_differ_without_colour() -> None:
    looks = styles(f"method-{i}" for i in range(35)).values()
    assert len({(look.dash, look.marker) for look in looks}) == 35


def test_amounts_have_three_digits() -> None:
    values = (0.0, 0.00123, 0.2384, 18.687, 96.0, 1234.5, None)
    assert [amount(v) for v in values] == ["0", "0.00123", "0.238", "18.7", "96.0", "1,234", "–"]


def test_the_room_imports_nothing_but_types() -> None:
    room = Path(report.__file__).parent
    for path in room.glob("*.py"):
        for name in re.findall(r"^\s*(?:from|import) (unskew[\w.]*)", path.read_text(), re.M):
            assert name in ("unskew.types", "unskew.files") or name.startswith("unskew.report")
