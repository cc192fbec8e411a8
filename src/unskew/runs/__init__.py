"""Whole runs: specify, train, save, reopen, tune and recommend."""

from unskew.runs.recommender import Recommender
from unskew.runs.results import summarise
from unskew.runs.runner import Run, read_spec, run
from unskew.runs.saved import (
    open_recommender,
    read_result,
    read_rounds,
    read_users,
    same_data,
)
from unskew.runs.spec import RunSpec, read_toml

__all__ = [
    "Recommender",
    "Run",
    "RunSpec",
    "open_recommender",
    "read_result",
    "read_rounds",
    "read_spec",
    "read_toml",
    "read_users",
    "run",
    "same_data",
    "summarise",
]
