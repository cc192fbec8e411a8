"""Audits: does an evaluation leak, what do uploads give away, how skewed are user embeddings?"""

from unskew.audit._picture import Dot, Look, tradeoff_picture
from unskew.audit._server import CuriousServer
from unskew.audit._shadow import Shadows
from unskew.audit._success import Success, auc_of_one, measure, of_owners
from unskew.audit.leak import LeakAudit, LeakVerdict, audit_leak, judge, random_interactions
from unskew.audit.skew_formulas import Bounds, Feedback

__all__ = [
    "Bounds",
    "CuriousServer",
    "Dot",
    "Feedback",
    "LeakAudit",
    "LeakVerdict",
    "Look",
    "Shadows",
    "Success",
    "auc_of_one",
    "audit_leak",
    "judge",
    "measure",
    "of_owners",
    "random_interactions",
    "tradeoff_picture",
]
