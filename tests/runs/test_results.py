"""Result rows: typed in Python, the same JSON on disk."""

import json
from pathlib import Path

import pytest

from unskew.runs import Result, Summary, summaries
from unskew.types import UnskewError

ROWS = Path(__file__).parents[2] / "results"
BESIDE_RESULTS = ("method_checksum", "quick")
"""Keys that tables add to a run's own."""


def committed(name):
    for line in (ROWS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield {key: value for key, value in row.items() if key not in BESIDE_RESULTS}


@pytest.mark.parametrize("name", ["main", "ldp", "parts"])
def test_committed_rows_are_read_and_written_without_a_change(name):
    for row in committed(name):
        again = Result.from_json(row, name).to_json()
        assert again.pop("run_dir") is None
        row.setdefault("peak_rss_mb", None)
        assert list(again) == [key for key in again if key in row]
        assert again == row


def test_a_summary_has_the_sample_deviation():
    found = summaries([{"hr@10": 0.1}, {"hr@10": 0.3}, {"hr@10": 0.2}])["hr@10"]
    assert found == Summary(pytest.approx(0.2), pytest.approx(0.1), [0.1, 0.3, 0.2])
    assert Summary.over([0.4]).std == 0.0


def test_an_unknown_or_damaged_figure_is_named():
    row = next(committed("main"))
    with pytest.raises(UnskewError, match=r"r\.json is not a whole result \(.*'speed'\)"):
        Result.from_json(row | {"speed": 1}, "r.json")
    with pytest.raises(UnskewError, match=r"r\.json is not a whole result"):
        Result.from_json(row | {"metrics": {"hr@10": 0.5}}, "r.json")
