"""One method against others, user by user: the table that says whether a lead is a lead.

Cells leave their per-user values in a folder; a comparison is a paired test over the users of two
cells. Its row holds everything its line of the table prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unskew.evaluation import holm, paired_test
from unskew.experiments._reproduce import Cell
from unskew.methods import METHODS
from unskew.runs import read_spec, read_users

METRIC = "ndcg@10"
DATA = ("filmtrust", "ml-100k", "ml-1m", "lastfm-2k", "ml-latest-small")


def users_folder(keep: Path, cell: Cell) -> Path:
    """Where a cell's per-user values are kept."""
    chosen = "".join(f"-{key}={value}" for key, value in cell.settings)
    return keep / f"{cell.method}-{cell.data}-{cell.protocol}{chosen}"


def comparison(keep: Path, ours: Cell, theirs: Cell) -> dict[str, Any]:
    """The paired test of two cells: per-user NDCG@10, averaged over each one's seeds."""
    folders = users_folder(keep, ours), users_folder(keep, theirs)
    mine, other = (read_users(folder) for folder in folders)
    seeds, seeds_against = (list(read_spec(folder)[0].seeds) for folder in folders)
    both = mine.join(other, on="user", suffix="_other", maintain_order="left")
    test = paired_test(both[METRIC].to_numpy(), both[f"{METRIC}_other"].to_numpy())
    return {
        "data": ours.data,
        "protocol": ours.protocol,
        "method": ours.method,
        "against": theirs.method,
        "seeds": seeds,
        "seeds_against": seeds_against,
        "users": test.n_users,
        "ours": float(both[METRIC].mean()),  # type: ignore[arg-type]
        "theirs": float(both[f"{METRIC}_other"].mean()),  # type: ignore[arg-type]
        "difference": test.difference,
        "interval": [test.ci_low, test.ci_high],
        "p_value": test.p_value,
        "wins": test.wins,
        "losses": test.losses,
        "command": f"unskew reproduce against --methods {ours.method},{theirs.method} "
        f"--data {ours.data} --protocol {ours.protocol}",
    }


def against_table(rows: Sequence[dict[str, Any]], protocol: str) -> str:
    """A Markdown table: for each data set the method, then every other by falling NDCG@10; Holm's
    correction over a data set's tests."""
    lines = [
        "| data | method | kind | NDCG@10 | difference, 95 % interval | p (Holm) |",
        "|---|---|---|---|---|---|",
    ]
    chosen = [row for row in rows if row["protocol"] == protocol]
    for data in dict.fromkeys(row["data"] for row in chosen):
        here = sorted((r for r in chosen if r["data"] == data), key=lambda row: -row["theirs"])
        first = here[0]
        seeds = f"{len(first['seeds'])} seeds"
        lines.append(
            f"| {data} | **{first['method']}** ({seeds}) | {_kind(first['method'])} "
            f"| **{first['ours']:.4f}** | | |"
        )
        corrected = holm([row["p_value"] for row in here])
        for row, p in zip(here, corrected, strict=True):
            low, high = row["interval"]
            lines.append(
                f"| | {row['against']} ({len(row['seeds_against'])}) | {_kind(row['against'])} "
                f"| {row['theirs']:.4f} | {row['difference']:+.4f} [{low:+.4f}, {high:+.4f}] "
                f"| {_p(float(p))} |"
            )
    return "\n".join(lines)


def _kind(method: str) -> str:
    return "central" if METHODS[method].aggregation == "central" else "federated"


def _p(value: float) -> str:
    return "< 1e-6" if value < 1e-6 else f"{value:.2g}"
