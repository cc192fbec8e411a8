"""The page's parts beyond its runs, as text: both protocols beside each other, privacy, a client,
the paper's tables."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from report_reader import EVIL, Reader
from report_samples import HISTORY, extras, sample, samples

from unskew import report
from unskew.cli._results import report as report_command
from unskew.cli._results import write_report
from unskew.paper import STORES, document, read_results, report_contents
from unskew.report import Extras
from unskew.runs import RunSpec, open_recommender, run
from unskew.types import Interactions, UnskewError

RESULTS = Path(__file__).parents[2] / "results"
METHODS = ("pfedclr", "fedmf")


def rows_with(page: Reader, start: str) -> list[list[str]]:
    return [row for row in page.cells if row[0] == start]


def test_both_protocols_stand_beside_what_the_paper_prints() -> None:
    runs = [sample("pfedclr", level=0.02, sampled=0.13), sample("fedmf", sampled=0.25)]
    runs += [sample("pfedclr", "paper", level=0.9, sampled=0.9), sample("fedmf", "time")]
    page = Reader(report.render(runs, extras=Extras({("pfedclr", "demo"): (0.9989, 0.9225)})))
    (shown,) = [row for row in rows_with(page, "pfedclr") if len(row) == 10]
    means = [cell.split(" ")[0] for cell in shown]
    assert means[1:] == [
        *("0.9989", "0.9225"),
        *("1.6200", "0.9000"),
        *("0.2340", "0.1300"),
        "−0.7700",
        *("0.0360", "0.0200"),
    ]
    assert not [row for row in rows_with(page, "fedmf") if len(row) == 10], "has no pair"
    assert "among 99 sampled candidates, which is what both protocols have" in page.text


def test_without_a_pair_there_is_nothing_side_by_side() -> None:
    other = [sample("pfedclr"), sample("pfedclr", "paper", settings={"rounds": 99})]
    for runs in ([sample("pfedclr")], [sample("pfedclr"), sample("fedmf", "paper")], other):
        assert "Side by side" not in Reader(report.render(runs)).text


def test_the_client_is_shown_with_history_and_hits() -> None:
    page = report.render(samples(10), extras=extras())
    said = Reader(page).text
    assert "Client client 7 of demo, picked for a test" in said
    assert "whoever gets the file can read them" in said
    assert all(title in said for title in HISTORY)
    hits = re.findall(r'<li class="hit test">The held-out film <b>held out</b>', page)
    assert len(hits) == 2
    assert "The held-out item: rank 321 of 1,470." in said
    assert "client 7" not in report.render(samples(10), extras=extras()._replace(client=None))


def test_tables_of_the_paper_keep_their_figures_and_sort_by_the_first() -> None:
    page = report.render(samples(10), extras=extras())
    read = Reader(page)
    assert ["a", "first", "0.300 ± 0.010 (0.910)"] in read.cells
    assert ["a", "second", "– (0.500)"] in read.cells
    table = page.split('aria-labelledby="table-rank-1-caption"')[1].split("</table>")[0]
    keys = re.findall(r'<td class="number" data-key="([^"]*)">', table)
    assert keys == ["0.3", "", "0.9", "0.04"]
    assert "page.md" not in page
    assert "See the page on <strong>this</strong>." in page


def test_noise_against_quality_where_runs_differ_in_noise() -> None:
    runs = [sample("pfedclr"), sample("pfedclr", level=0.03)]
    assert "Noise against quality" not in report.render(runs)
    runs[1] = sample("pfedclr", level=0.03, privacy={"noise": 0.5})
    page = Reader(report.render(runs))
    assert "Noise against quality on demo, leak-free protocol" in page.text
    page.row("pfedclr (noise=0.5)", "demo")
    assert page.row("0.5") == ["0.5", "0.0300"], "the values stand below the chart"


def test_text_from_outside_is_escaped_in_every_part() -> None:
    page = Reader(report.render(samples(10), extras=extras(EVIL)))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [attrs for _, attrs in page.tags if any(name.startswith("on") for name in attrs)]
    assert page.text.count("alert(1)") > 20


def test_every_data_set_has_a_sentence_on_its_best_run() -> None:
    names = ("a", "b", "c", "d")
    runs = [sample(m, data=d, level=0.01 + 0.01 * (m == "fedmf")) for m in METHODS for d in names]
    runs += [sample(m, "paper", d, sampled=0.8) for m in METHODS for d in names]
    page = report.render(runs)
    leads = re.findall(r'<p class="lead">(.*?)</p>', page)
    assert len(leads) == 4 + 2
    for data, lead in zip(names, leads[:4], strict=True):
        assert lead.startswith(f"On {data} under")
        assert "<strong>fedmf</strong> is the best of 2 methods" in lead
    assert leads[4].count("shows NDCG@10 0.8000 instead of 0.1500") == 4
    assert page.count('<details class="group">') == 4


@pytest.mark.slow
def test_committed_rows_become_a_page_with_the_documents_tables() -> None:
    title, runs, extra = report_contents(RESULTS)
    assert "QUICK" not in title
    names = [chapter.name for chapter in extra.chapters]
    assert {"main", "ablation", "time", "cost", "skew"} <= set(names)
    found = {(run.result.method, run.result.data, run.result.protocol): run for run in runs}
    assert len(found) == len(runs)
    assert found["pfedclr", "ml-100k", "paper"].curves, "of some of its seeds"
    page = Reader(report.render(runs, title, extra))
    text = document(read_results(RESULTS, STORES))
    lines = [line for line in text.splitlines() if line.startswith("| fedmf |")]
    shown = [re.sub(r"[\s·]", "", "".join(row)) for row in page.cells]
    for line in lines:
        bare = re.sub(r"[\s|·]", "", line)
        assert bare in shown, line
    commands = [one for run in runs for one in run.result.command.splitlines()]
    assert all(command in page.text for command in commands)
    assert "Privacy against quality on ml-100k" in page.text


def test_rows_of_a_quick_run_are_marked_and_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnskewError, match="`unskew reproduce main` makes them"):
        report_contents(tmp_path)
    first = json.loads((RESULTS / "main.jsonl").open().readline())
    curves = {"validation": {"ndcg@10": [0.1, 0.2]}, "test": {"hr@10": [0, 1], "ndcg@10": [0, 1]}}
    (tmp_path / "main.jsonl").write_text(json.dumps(first | {"quick": True}))
    (tmp_path / "curves.jsonl").write_text(json.dumps(first | {"curves": curves, "quick": True}))
    title, runs, extra = report_contents(tmp_path)
    assert title.startswith("QUICK RUN")
    page = Reader(report.render(runs, title, extra))
    assert page.row("2") == ["2", "0.2000"], "its curve is shown"


def test_runs_become_a_page_with_a_client(tmp_path: Path, demo_data: Interactions) -> None:
    folders = []
    for method, protocol in (("popularity", "leak-free"), ("fedrefit", "paper")):
        folders.append(tmp_path / f"{method}")
        settings = {} if method == "popularity" else {"rounds": 1, "dim": 8}
        run(RunSpec(method, settings, "demo", protocol), demo_data, out=folders[-1])
    out = tmp_path / "report.html"
    write_report(folders, out)
    page = out.read_text()
    name = re.search(r"Client <strong>([^<]+)</strong> of demo, the one with the median", page)
    assert name is not None
    for folder in folders:
        for pick in open_recommender(folder).recommend(name[1]):
            assert f">{pick['title']}" in page
    report_command([*folders, out], out, no_client=True)
    assert "One client" not in out.read_text()
    write_report(folders, out, client="user-0005")
    assert "Client <strong>user-0005</strong> of demo, chosen by name" in out.read_text()
    with pytest.raises(UnskewError, match="leave out --client"):
        write_report(folders, out, client="nobody")
    shutil.rmtree(folders[0] / "seed-0" / "state")
    write_report(folders, out)
    assert out.read_text().count('<figure class="picks">') == 1


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    for wrong in ((None, out), ([tmp_path], out, True)):
        with pytest.raises(UnskewError, match="either run folders or --reproduce"):
            report_command(*wrong)
    with pytest.raises(UnskewError, match="--client needs run folders"):
        report_command(None, out, True, RESULTS, "somebody")
    assert not out.exists()
