"""Audits: does an evaluation leak, what do uploads give away, how skewed are user embeddings?"""

from unskew.audit.attacks import Shadows, auc_of_one
from unskew.audit.leak import LeakAudit, LeakVerdict, audit_leak, judge, random_interactions
from unskew.audit.privacy import audit_privacy, privacy_tables, trade_offs
from unskew.audit.server import CuriousServer
from unskew.audit.skew import VARIANTS, audit_skew, skew_command
from unskew.audit.skew_findings import findings, skew_table
from unskew.audit.success import Success, measure, owner_success

__all__ = [
    "VARIANTS",
    "CuriousServer",
    "LeakAudit",
    "LeakVerdict",
    "Shadows",
    "Success",
    "auc_of_one",
    "audit_leak",
    "audit_privacy",
    "audit_skew",
    "findings",
    "judge",
    "measure",
    "owner_success",
    "privacy_tables",
    "random_interactions",
    "skew_command",
    "skew_table",
    "trade_offs",
]
