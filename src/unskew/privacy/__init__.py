"""Local differential privacy: clipping and noise on uploads, and the guarantee that they give."""

from unskew.privacy._accounting import (
    DELTA,
    calibrated_noise,
    check_accountant,
    compositions,
    local_epsilon,
    privacy_report,
    sensitivity,
    sum_epsilon,
)
from unskew.privacy._mechanism import LocalPrivacy, Mechanism, PrivateUploads, Shape

__all__ = [
    "DELTA",
    "LocalPrivacy",
    "Mechanism",
    "PrivateUploads",
    "Shape",
    "calibrated_noise",
    "check_accountant",
    "compositions",
    "local_epsilon",
    "privacy_report",
    "sensitivity",
    "sum_epsilon",
]
