"""Comparisons of runs and sweeps over settings, as objects."""

import re

import pytest

import unskew
from unskew.display import Cell, Table, to_latex
from unskew.types import UnskewError


@pytest.fixture(scope="module")
def runs(tiny_interactions, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared") / "ease"
    return [
        unskew.fit("popularity", tiny_interactions),
        unskew.fit("ease", tiny_interactions, out=folder),
        unskew.fit("fedmf", tiny_interactions, rounds=1, dim=2),
        unskew.fit("fedmf", tiny_interactions, rounds=1, dim=4),
    ]


def test_runs_in_memory_and_in_folders_compare_alike(runs):
    compared = unskew.compare(*runs)
    again = unskew.compare(runs[0], str(runs[1].folder))
    assert compared.runs[1].test == again.runs[1].test
    frame = compared.to_frame()
    assert frame["method"].to_list() == ["popularity", "ease", "fedmf (dim=2)", "fedmf (dim=4)"]
    means = [run.metrics["ndcg@10"] for run in runs]
    assert frame["ndcg@10"].to_list() == means
    assert frame["difference"].to_list() == [
        None,
        *(pytest.approx(m - means[0]) for m in means[1:]),
    ]
    assert len(repr(compared)) < 1000
    assert "fedmf (dim=4)" in compared._repr_html_()


def test_the_best_is_bold_and_significant_differences_are_starred(runs):
    compared = unskew.compare(*runs, metric="hr@10")
    best = max(run.metrics["hr@10"] for run in runs)
    latex = compared.to_latex(label="tab:runs")
    assert f"\\textbf{{{best:.4f}}}" in latex
    for name in ("\\toprule", "\\midrule", "\\bottomrule", "\\label{tab:runs}", "HR@10 & NDCG@10"):
        assert name in latex
    body = re.findall(r"^  (.*) \\\\$", latex, re.MULTILINE)
    assert [line.split(" & ")[0] for line in body[1:]] == [run.label for run in compared.runs]
    assert {line.count("&") for line in body} == {2}
    for run, line in zip(compared.runs, body[1:], strict=True):
        assert ("\\textsuperscript" in line) == (run.p_holm is not None and run.p_holm < 0.05)
    assert any(run.mark for run in compared.runs)
    assert f"**{best:.4f}**" in compared.to_markdown()


def test_signs_that_latex_reads_as_commands_are_escaped():
    table = Table.of(["a_b", "c%"], [[Cell("x & y", tag="*"), Cell("1 ± 2", bold=True)]])
    assert r"a\_b & c\%" in to_latex(table)
    assert r"x \& y\textsuperscript{*} & \textbf{1 $\pm$ 2} \\" in to_latex(table)


def test_runs_on_other_footing_are_refused(runs, tiny_interactions):
    other = unskew.fit("popularity", tiny_interactions, protocol="time")
    with pytest.raises(UnskewError, match="protocol time, the first run has leak-free"):
        unskew.compare(runs[0], other)
    with pytest.raises(UnskewError, match="nothing to compare"):
        unskew.compare()


def test_a_sweep_trains_every_combination_and_chooses_on_validation(tiny_interactions, tmp_path):
    grid = {"dim": [2, 4], "learning_rate": [0.01, 0.1]}
    swept = unskew.sweep("fedmf", tiny_interactions, grid, out=tmp_path, rounds=2)
    frame = swept.to_frame()
    assert frame.select("dim", "learning_rate").rows() == [
        (2, 0.01),
        (2, 0.1),
        (4, 0.01),
        (4, 0.1),
    ]
    alone = unskew.fit("fedmf", tiny_interactions, rounds=2, dim=4, learning_rate=0.1)
    assert frame["ndcg@10"][3] == alone.metrics["ndcg@10"]
    assert frame["validation/ndcg@10"][3] == max(alone.curves()[0])
    best = frame["validation/ndcg@10"].arg_max()
    assert swept.best is swept.runs[best]
    assert (tmp_path / "dim=4,learning_rate=0.1" / "result.json").exists()
    assert [len(line.get_xdata()) for line in swept.plot().axes[0].lines] == [2, 2]
    assert len(repr(swept)) < 1000
    with pytest.raises(UnskewError, match="dim has no values"):
        unskew.sweep("fedmf", tiny_interactions, {"dim": []})
    with pytest.raises(UnskewError, match='no setting "dims"'):
        unskew.sweep("fedmf", tiny_interactions, {"dims": [1]})
