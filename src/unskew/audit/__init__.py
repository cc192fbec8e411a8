"""Attacks and checks: what an evaluation leaks, and what uploads give away."""

from unskew.audit._leak import LeakVerdict, judge, random_interactions
from unskew.audit._picture import Dot, Look, tradeoff_picture
from unskew.audit._server import CuriousServer
from unskew.audit._shadow import Shadows
from unskew.audit._skew import Bounds, Feedback
from unskew.audit._success import Success, auc_of_one, measure, of_owners

__all__ = [
    "Bounds",
    "CuriousServer",
    "Dot",
    "Feedback",
    "LeakVerdict",
    "Look",
    "Shadows",
    "Success",
    "auc_of_one",
    "judge",
    "measure",
    "of_owners",
    "random_interactions",
    "tradeoff_picture",
]
