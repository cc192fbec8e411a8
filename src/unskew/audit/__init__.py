"""Audits of evaluation leaks, of what uploads reveal, and of user-embedding skew."""

from unskew.audit.attacks import auc_of_one
from unskew.audit.leak import CHANCE, LeakAudit, audit_leak
from unskew.audit.privacy import audit_privacy, privacy_tables, trade_off_chart
from unskew.audit.skew import VARIANTS, SkewSpec, audit_skew, findings, skew_table

__all__ = [
    "CHANCE",
    "VARIANTS",
    "LeakAudit",
    "SkewSpec",
    "auc_of_one",
    "audit_leak",
    "audit_privacy",
    "audit_skew",
    "findings",
    "privacy_tables",
    "skew_table",
    "trade_off_chart",
]
