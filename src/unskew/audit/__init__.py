"""Attacks and checks: what an evaluation leaks, and what uploads give away."""

from unskew.audit._leak import LeakVerdict, judge, random_interactions

__all__ = ["LeakVerdict", "judge", "random_interactions"]
