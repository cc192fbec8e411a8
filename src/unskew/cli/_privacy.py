"""What `unskew audit privacy` leaves behind: a picture of its rows, and a table in a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from unskew.audit import Dot, Look, tradeoff_picture
from unskew.audit.privacy import SPANS, privacy_table, strongest
from unskew.cli._output import stderr
from unskew.cli._pages import fill_table, write_text
from unskew.methods import METHODS
from unskew.report.palette import styles


def write_picture(path: Path, rows: list[dict[str, Any]]) -> None:
    """Quality against attack success for the rows of the first row's data set."""
    first = rows[0]
    curves, secure = tradeoff(
        [r for r in rows if (r["data"], r["protocol"]) == (first["data"], first["protocol"])]
    )
    looks = {name: Look(style.colour, style.dash) for name, style in styles(curves).items()}
    name = f"What uploads give away on {Path(first['data']).name} ({first['protocol']} protocol)"
    text = tradeoff_picture(curves, secure, looks, name)
    write_text(path, text)
    stderr.print(f"Picture: {path}")


def tradeoff(rows: list[dict[str, Any]]) -> tuple[dict[str, list[Dot]], dict[str, list[Dot]]]:
    """Per method what its uploads give away one by one, and summed under secure aggregation; of
    the runs with the paper's noise on ordinary cohorts."""
    curves: dict[str, list[Dot]] = {}
    secure: dict[str, list[Dot]] = {}
    for row in _in_order(rows):
        asked = row["ldp"] or {}
        if (
            asked.get("clip")
            or asked.get("least_users")
            or row["settings"].get("participation") is not None
        ):
            continue
        for view, into in (("single_uploads", curves), ("secure_aggregation", secure)):
            found = strongest(row[view], SPANS[1])
            if found is not None:
                success = found[1]["personal_auc"]["mean"]
                dot = Dot(success, row["quality"]["best_ndcg@10"], f"λ {row['noise']:g}")
                into.setdefault(row["method"], []).append(dot)
    return curves, secure


def fill_page(page: Path, rows: list[dict[str, Any]]) -> None:
    """Replace what stands between the page's table marks."""
    fill_table(page, privacy_table(_in_order(rows)))


def _in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    order = {name: at for at, name in enumerate(METHODS)}
    return sorted(
        rows,
        key=lambda row: (
            row["data"],
            order.get(row["method"], len(order)),
            "participation" in row["settings"],
            (row["ldp"] or {}).get("least_users") or 0,
            row["noise"],
        ),
    )
