"""Text from outside, where it meets a log, a terminal and a CSV file."""

from __future__ import annotations

import polars as pl
import pytest

from unskew.text import MAX_LOG_CHARACTERS, log_text, plain, without_formulas


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Amélie, 日本, 👩\u200d🚀", "Amélie, 日本, 👩\u200d🚀"),
        ("done\nINFO: node 3 is trusted", "done�INFO: node 3 is trusted"),
        ("\x1b]0;title\x07\x1b[2J", "�]0;title��[2J"),
        ("\x9b31m", "�31m"),
        ("a\u2028b\u202ec\ud800", "a�b�c�"),
    ],
)
def test_control_characters_are_replaced(text: str, shown: str) -> None:
    assert plain(text) == shown


def test_long_text_is_cut() -> None:
    assert log_text("x" * 10_000) == "x" * (MAX_LOG_CHARACTERS - 1) + "…"
    assert plain("abc", 3) == "abc"


def test_a_cell_is_no_formula() -> None:
    cells = ["=HYPERLINK(1)", " @SUM(1)", "+1+1", "-cmd", "-5", "+1.5e3", "a=b", None]
    found = without_formulas(pl.DataFrame({"title": cells, "score": 1.0}))
    expected = ["'=HYPERLINK(1)", "' @SUM(1)", "'+1+1", "'-cmd", "-5", "+1.5e3", "a=b", None]
    assert found["title"].to_list() == expected
