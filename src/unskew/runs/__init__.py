"""Runs (a method trained for some seeds): specify, train, save, reopen, compare, recommend."""

from unskew.engine import Recommender
from unskew.runs.comparison import Comparison, compare
from unskew.runs.finished import Run, open_run
from unskew.runs.folder import read_header
from unskew.runs.grid import Sweep, sweep
from unskew.runs.rankings import RankingFormat, write_rankings, write_recommendations
from unskew.runs.results import (
    Result,
    SeedOutcome,
    Summary,
    distinct_labels,
    metric_label,
    peak_memory_mb,
    summaries,
    summarise,
)
from unskew.runs.runner import (
    OnRound,
    noise_mechanism,
    privacy_account,
    private_uploads,
    run,
)
from unskew.runs.saved import (
    ClientView,
    client_view,
    open_recommender,
    read_result,
    read_rounds,
    read_spec,
    read_users,
)
from unskew.runs.spec import RunSpec, read_toml
from unskew.runs.tracking import Tracking

__all__ = [
    "ClientView",
    "Comparison",
    "OnRound",
    "RankingFormat",
    "Recommender",
    "Result",
    "Run",
    "RunSpec",
    "SeedOutcome",
    "Summary",
    "Sweep",
    "Tracking",
    "client_view",
    "compare",
    "distinct_labels",
    "metric_label",
    "noise_mechanism",
    "open_recommender",
    "open_run",
    "peak_memory_mb",
    "privacy_account",
    "private_uploads",
    "read_header",
    "read_result",
    "read_rounds",
    "read_spec",
    "read_toml",
    "read_users",
    "run",
    "summaries",
    "summarise",
    "sweep",
    "write_rankings",
    "write_recommendations",
]
