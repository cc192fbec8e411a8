"""Evaluation protocols, ranks of held-out items, ranking metrics and significance tests."""

from unskew.evaluation.metrics import CUTOFFS, coverage, mean_metrics, per_user, popularity
from unskew.evaluation.protocols import PROTOCOLS, EvaluationProtocol, prepare
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
    "PROTOCOLS",
    "EvaluationProtocol",
    "Interval",
    "PairedTest",
    "best_unseen",
    "coverage",
    "held_out_ranks",
    "holm",
    "mean_interval",
    "mean_metrics",
    "paired_test",
    "per_user",
    "popularity",
    "prepare",
    "top_k",
    "wilson_interval",
]
