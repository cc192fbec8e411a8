"""Checks that every method passes, for methods of your own.

    from unskew.testing import check_method

    def test_my_method():
        check_method(MyMethod())

``unskew check METHOD`` prints the same checks as a table.
"""

from unskew.testing.checks import (
    CHECKS,
    ROUNDS,
    SEED,
    Case,
    Finding,
    applies,
    arrays,
    check_method,
    make_case,
    one_client,
    run_checks,
)

__all__ = [
    "CHECKS",
    "ROUNDS",
    "SEED",
    "Case",
    "Finding",
    "applies",
    "arrays",
    "check_method",
    "make_case",
    "one_client",
    "run_checks",
]
