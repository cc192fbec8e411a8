"""Evaluation protocols, ranks of held-out items, ranking metrics and significance tests."""

from unskew.evaluation.metrics import (
    CUTOFFS,
    MAIN_CUTOFF,
    OwnMetric,
    coverage,
    mean_metrics,
    own_metrics,
    per_user,
    popularity,
)
from unskew.evaluation.protocols import (
    PROTOCOLS,
    EvaluationProtocol,
    find_protocol,
    prepare,
    split_frames,
)
from unskew.evaluation.ranks import best_unseen, held_out_ranks, top_k
from unskew.evaluation.significance import (
    Interval,
    PairedTest,
    holm,
    mean_interval,
    paired_test,
    wilson_interval,
)

__all__ = [
    "CUTOFFS",
    "MAIN_CUTOFF",
    "PROTOCOLS",
    "EvaluationProtocol",
    "Interval",
    "OwnMetric",
    "PairedTest",
    "best_unseen",
    "coverage",
    "find_protocol",
    "held_out_ranks",
    "holm",
    "mean_interval",
    "mean_metrics",
    "own_metrics",
    "paired_test",
    "per_user",
    "popularity",
    "prepare",
    "split_frames",
    "top_k",
    "wilson_interval",
]
