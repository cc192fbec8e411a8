"""Whole runs: what they are, running them, and opening what they left."""

from unskew.experiments._leak import LeakAudit, audit_leak
from unskew.experiments._recommend import Recommender
from unskew.experiments._run import Run, read_spec, run
from unskew.experiments._saved import open_recommender, read_result, read_rounds, read_users
from unskew.experiments._spec import RunSpec, read_toml

__all__ = [
    "LeakAudit",
    "Recommender",
    "Run",
    "RunSpec",
    "audit_leak",
    "open_recommender",
    "read_result",
    "read_rounds",
    "read_spec",
    "read_toml",
    "read_users",
    "run",
]
