"""Rows of one run with different seeds count together, and only missing seeds are run."""

import dataclasses
import json
import statistics

from paper_samples import run_row

from unskew.paper.plan import Plan, cell_identity, method_checksum, missing_cells
from unskew.paper.rows import Results, read_rows, row_identity
from unskew.runs import RunSpec, Summary


def row(*seeds, checksum=None, value=0.5, **changes):
    values = [value + seed / 10 for seed in seeds]
    figures = {"hr@10": dataclasses.asdict(Summary.over(values))}
    tables = dict.fromkeys(("metrics", "last_round", "sampled99", "sampled99_last_round"), figures)
    by_seed = {
        "seeds": list(seeds),
        "best_rounds": [10 + seed for seed in seeds],
        "model_sha256_per_seed": [str(seed) for seed in seeds],
        "peak_rss_mb": 100.0 + seeds[0],
        "command": f"unskew run --seeds {seeds}",
    }
    return (
        run_row("fedmf", value, "demo") | tables | by_seed | {"method_checksum": checksum} | changes
    )


def cell(*seeds, method="fedmf", **settings):
    return RunSpec(method, settings, "demo", "paper", seeds)


def pooled(*rows):
    return Results.from_records({"main": rows}).runs


def test_rows_with_other_seeds_become_one():
    (one,) = pooled(row(3, 4), row(0, 1, 2), row(0))
    assert one.seeds == [0, 1, 2, 3, 4]
    values = [0.5, 0.6, 0.7, 0.8, 0.9]
    assert one.metrics["hr@10"].values == values
    assert one.sampled99["hr@10"].std == statistics.stdev(values)
    assert one.best_rounds == [10, 11, 12, 13, 14]
    assert one.model_sha256_per_seed == ["0", "1", "2", "3", "4"]
    assert one.peak_rss_mb == 100.0, "of the row made last"
    assert one.command.splitlines() == [row(0, 1, 2)["command"], row(3, 4)["command"]]


def test_rows_of_different_code_are_not_mixed():
    (one,) = pooled(row(0, 1, checksum="old"), row(2, checksum="new"))
    assert one.seeds == [0, 1]


def test_of_equal_rows_the_last_stands():
    (one,) = pooled(row(0), row(0, value=0.25))
    assert one.metrics["hr@10"].values == [0.25]


def test_the_specification_identifies_a_row_and_not_its_command():
    assert len(pooled(row(0), row(1, command="typed by hand"))) == 1
    others = [
        {"method": "pfedclr"},
        {"data": "ml-100k"},
        {"protocol": "leak-free"},
        {"settings": {"rounds": 3}},
        {"privacy": {"kind": "laplace", "noise": 0.5, "clip": None}},
        {"privacy": {"kind": "laplace", "noise": 0.4, "clip": None}},
    ]
    assert len(pooled(row(0), *(row(1, **other) for other in others))) == 7
    spec = cell(0, rounds="3", aggregate_from=2)
    assert cell_identity(spec) == row_identity(row(5, settings={"aggregate_from": 2, "rounds": 3}))
    noisy = Plan(seeds=(0,)).cell("fedmf", "demo", "paper", noise=0.5)
    assert cell_identity(noisy) == row_identity(row(5, **others[4]))


def test_only_seeds_without_a_row_are_run():
    assert missing_cells([cell(0, 1, 2, 3)], [row(0, 2)]) == [cell(1, 3)]
    assert missing_cells([cell(0, 1, 2, 3)], [row(0, 2), row(1, 3)]) == []
    assert missing_cells([cell(0, 1)], [row(0, 1, checksum="another")]) == [cell(0, 1)]


def test_a_row_counts_unless_its_methods_code_has_changed():
    assert missing_cells([cell(0), cell(0)], []) == [cell(0)]
    assert missing_cells([cell(0)], [row(0)]) == [], "a row that names no code counts"
    assert missing_cells([cell(0)], [row(0, checksum=method_checksum("fedmf"))]) == []
    assert missing_cells([cell(0)], [row(0, checksum=method_checksum("pfedclr"))]) == [cell(0)]


def test_a_line_cut_short_is_no_row_and_a_later_row_replaces_an_earlier_one(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [{"command": "a", "n": 1}, {"command": "a", "n": 2}, {"command": "c"}]
    lines.append({"command": "a", "n": 3, "quick": True})
    texts = [json.dumps(line) for line in lines]
    path.write_text("\n".join([*texts[:2], '{"command": "b", "n', *texts[2:]]))
    rows = [(one["command"], one.get("n")) for one in read_rows(path)]
    assert rows == [("a", 2), ("c", None)]
    assert [one["n"] for one in read_rows(path, quick=True)] == [3]
    assert read_rows(tmp_path / "absent.jsonl") == []
