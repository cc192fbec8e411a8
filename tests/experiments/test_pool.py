"""Seeds added later count with those there already, and only they are run."""

import statistics

from unskew.experiments import Cell, missing, pooled


def row(*seeds, source=None, value=0.5):
    figures = {"hr@10": {"values": [value + seed / 10 for seed in seeds]}}
    tables = dict.fromkeys(("metrics", "last_round", "sampled99", "sampled99_last_round"), figures)
    command = Cell("fedmf", "demo", "paper", seeds).command
    return tables | {
        "seeds": list(seeds),
        "best_rounds": [10 + seed for seed in seeds],
        "model_sha256_per_seed": [str(seed) for seed in seeds],
        "seconds_per_round": 1.0,
        "peak_rss_mb": 100.0 + seeds[0],
        "command": command,
        "source": source,
    }


def test_rows_with_other_seeds_become_one():
    (one,) = pooled([row(3, 4), row(0, 1, 2), row(0)])
    assert one["seeds"] == [0, 1, 2, 3, 4]
    values = [0.5, 0.6, 0.7, 0.8, 0.9]
    assert one["metrics"]["hr@10"]["values"] == values
    assert one["metrics"]["hr@10"]["std"] == statistics.stdev(values)
    assert one["best_rounds"] == [10, 11, 12, 13, 14]
    assert one["peak_rss_mb"] == 100.0, "of the row made last"
    assert one["command"].splitlines() == [row(0, 1, 2)["command"], row(3, 4)["command"]]


def test_rows_of_different_code_are_not_mixed():
    (one,) = pooled([row(0, 1, source="old"), row(2, source="new")])
    assert one["seeds"] == [0, 1]


def test_of_equal_rows_the_last_stands():
    (one,) = pooled([row(0), row(0, value=0.25)])
    assert one["metrics"]["hr@10"]["values"] == [0.25]


def test_only_seeds_without_a_row_are_run():
    cell = Cell("fedmf", "demo", "paper", (0, 1, 2, 3))
    assert missing([cell], [row(0, 2)]) == [cell._replace(seeds=(1, 3))]
    assert missing([cell], [row(0, 2), row(1, 3)]) == []
    assert missing([cell], [row(0, 1, 2, 3, source="another")]) == [cell]
