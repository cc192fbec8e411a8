"""Runs (a method trained for some seeds): specify, train, save, reopen, compare, recommend."""

from unskew.engine import Recommender
from unskew.runs.results import Result, SeedOutcome, Summary, peak_memory_mb, summaries, summarise
from unskew.runs.runner import (
    OnRound,
    Run,
    noise_mechanism,
    privacy_account,
    private_uploads,
    run,
)
from unskew.runs.saved import (
    ClientView,
    client_view,
    compare_runs,
    open_recommender,
    read_result,
    read_rounds,
    read_spec,
    read_users,
)
from unskew.runs.spec import RunSpec, read_toml

__all__ = [
    "ClientView",
    "OnRound",
    "Recommender",
    "Result",
    "Run",
    "RunSpec",
    "SeedOutcome",
    "Summary",
    "client_view",
    "compare_runs",
    "noise_mechanism",
    "open_recommender",
    "peak_memory_mb",
    "privacy_account",
    "private_uploads",
    "read_result",
    "read_rounds",
    "read_spec",
    "read_toml",
    "read_users",
    "run",
    "summaries",
    "summarise",
]
