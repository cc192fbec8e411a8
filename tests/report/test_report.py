"""The page as text: every figure in it, nothing unescaped, nothing fetched."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from report_reader import EVIL, Reader
from report_samples import METHODS, extras, sample, samples

from unskew import report
from unskew.display.palette import style_of
from unskew.report.entries import amount
from unskew.runs import Summary
from unskew.types import UnskewError


def spread(figure: Summary) -> str:
    return f"{figure.mean:.4f} ± {figure.std:.4f}"


@pytest.mark.parametrize("count", [1, 10])
def test_every_figure_of_every_run_is_in_the_table(count: int) -> None:
    runs = samples(count)
    page = Reader(report.render(runs))
    for s, _ in runs:
        shown = page.row(s.method, s.data, s.protocol + " leaks" * (s.protocol == "paper"))
        wanted = [
            spread(table[metric])
            for table in (s.metrics, s.last_round, s.sampled99)
            for metric in ("hr@10", "ndcg@10")
        ]
        assert shown[3] == s.ranking
        assert shown[4:10] == wanted
        costs = (s.seconds_per_round, (s.bytes_up or 0) / 1000, (s.bytes_down or 0) / 1000)
        assert shown[10:] == [str(s.rounds), *(amount(value) for value in costs)]


def test_every_round_of_every_curve_is_in_the_values_beside_its_chart() -> None:
    run = sample("pfedclr")
    page = Reader(report.render([run]))
    for round, (one, other) in enumerate(zip(*run.curves, strict=True), 1):
        assert page.row(str(round))[1] == f"{(one + other) / 2:.4f}"


def test_commands_versions_settings_seeds_and_notes_are_told() -> None:
    folder = "/home/somebody/runs/first-try"
    run = sample("fedmf", notes=["12 rows left out"], run_dir=folder)
    said = Reader(report.render([run])).text
    for wanted in ("unskew run fedmf", "numpy = 2.4.6", "rounds = 12", "12 rows left out", "0, 1"):
        assert wanted in said
    assert "first-try" in said
    assert "somebody" not in said


@pytest.mark.parametrize("field", ["method", "data", "protocol", "ranking", "command", "title"])
def test_text_from_outside_is_escaped(field: str) -> None:
    changes: dict[str, Any] = {} if field == "title" else {field: EVIL}
    run = sample("pfedclr")
    run = run._replace(result=replace(run.result, **changes))
    page = Reader(report.render([run], EVIL if field == "title" else "Runs"))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert "alert(1)" in page.text


def test_settings_notes_versions_and_keys_are_escaped() -> None:
    changes = {"settings": {EVIL: EVIL}, "notes": [EVIL], "versions": {EVIL: EVIL}}
    run = sample("pfedclr", model_sha256_per_seed=[EVIL], run_dir=EVIL, **changes)
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


def test_same_input_same_page() -> None:
    assert report.render(samples(4)) == report.render(samples(4))


def test_missing_costs_are_dashes_and_never_words() -> None:
    run = sample("pfedclr", bytes_up=None, bytes_down=None, peak_rss_mb=None)
    page = Reader(report.render([run]))
    assert page.row("pfedclr", "demo")[12:] == ["–"] * 2
    assert not re.search(r"\b(nan|inf|None)\b", page.text)


def test_without_recorded_rounds_there_are_no_curves() -> None:
    page = Reader(report.render([sample("pfedclr")._replace(curves=[])]))
    assert "Learning curves" not in page.text


def test_one_seed_has_no_spread() -> None:
    run = sample("pfedclr", seeds=1)
    assert "±" not in "".join(Reader(report.render([run])).row("pfedclr", "demo"))


def test_nothing_to_report_on_is_said_in_one_sentence() -> None:
    with pytest.raises(UnskewError, match=r"^[^\n]+; give [^\n]+\.$"):
        report.render([])


def test_the_summary_names_the_best_the_leak_and_the_cost() -> None:
    runs = [sample("pfedclr", level=0.05), sample("fedmf", level=0.02)]
    runs.append(sample("pfedclr", "paper", level=0.4, sampled=0.4))
    said = Reader(report.render(runs)).text
    assert "On demo under the leak-free protocol, pfedclr is the best of 2 methods" in said
    assert "within the spread" not in said
    assert "0.4000 instead of 0.1500, +0.2500: that is the leak, since" in said
    assert "took 0.250 s to simulate, and each client taking part sent 18.7 KB and" in said


def test_the_summary_claims_no_lead_and_no_leak_that_the_figures_do_not_show() -> None:
    close = [sample("pfedclr", level=0.0501), sample("fedmf", level=0.05)]
    assert "a lead within the spread over seeds" in Reader(report.render(close)).text
    same = [sample("pfedclr"), sample("pfedclr", "paper", sampled=0.15)]
    assert "no leak shows" in Reader(report.render(same)).text
    other = [sample("pfedclr"), sample("pfedclr", "paper", sampled=0.9, settings={"rounds": 99})]
    assert "is the leak" not in Reader(report.render(other)).text
    alone = Reader(report.render([sample("pfedclr", "paper")])).text
    assert "run leak-free to see" in alone


def test_rows_that_only_one_protocol_drops_are_not_called_leak() -> None:
    notes = ["9 of 16 test pairs also stand in training"]
    runs = [sample("pfedclr"), sample("pfedclr", "paper", sampled=0.9, notes=notes)]
    assert "together with the rows the notes below" in Reader(report.render(runs)).text


def test_runs_of_one_method_are_told_apart_by_what_differs() -> None:
    other = sample("fedmf", settings={"rounds": 12, "lr": 0.5})
    runs = [other, sample("fedmf"), sample("fedmf")]
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


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it, 0 for black to 1 for white."""
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_are_distinct_and_readable_on_white_and_on_black() -> None:
    assert len({style_of(method).colour for method in METHODS}) == len(METHODS)
    for method in [*METHODS, *(f"method-{i}" for i in range(300)), "", EVIL]:
        colour = style_of(method).colour
        assert re.fullmatch("#[0-9a-f]{6}", colour)
        assert 1.05 / (luminance(colour) + 0.05) >= 3
        assert (luminance(colour) + 0.05) / (luminance("#1b1e22") + 0.05) >= 2.6


def test_several_runs_of_a_method_share_its_colour_only() -> None:
    looks = [style_of("pfedclr", variant) for variant in range(8)]
    assert {look.colour for look in looks} == {"#0072b2"}
    assert len({(look.dash, look.marker, look.hollow) for look in looks}) == 8


def test_amounts_have_three_digits() -> None:
    values = (0.0, 0.00123, 0.2384, 18.687, 96.0, 1234.5, None)
    assert [amount(v) for v in values] == ["0", "0.00123", "0.238", "18.7", "96.0", "1,234", "–"]
