"""Checks that every method must pass; use them to test a method that you have written.

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
