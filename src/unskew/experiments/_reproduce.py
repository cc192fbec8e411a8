"""Tables made of cells. A cell is one command; its row is what the command printed.

Cells run in processes of their own, so that a row's peak memory is the cell's and a cell that fails
takes nothing with it. Rows are appended to a JSON-lines file; a cell whose row is there already,
from the same settings, is not run again.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unskew.experiments._paper import paper_value
from unskew.types import UnskewError

_KEPT = ("hr@10", "ndcg@10", "recall@20", "mrr@10", "coverage@10", "popularity@10")
_TABLES = ("metrics", "last_round", "sampled99", "sampled99_last_round")


class Cell(NamedTuple):
    """One run of a table."""

    method: str
    data: str
    protocol: str
    seeds: tuple[int, ...]
    settings: tuple[tuple[str, str], ...] = ()

    def arguments(self) -> list[str]:
        seeds = ",".join(map(str, self.seeds))
        chosen = [f"--set={key}={value}" for key, value in self.settings]
        names = ("--method", self.method, "--data", self.data, "--protocol", self.protocol)
        return ["run", *names, "--seeds", seeds, *chosen]

    @property
    def command(self) -> str:
        return shlex.join(["unskew", *self.arguments()])


def run_cell(cell: Cell, data_dir: Path | None, keep: Path | None = None) -> dict[str, Any]:
    """Run one cell and keep of its figures what tables need; ``keep`` gets its per-user values."""
    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    with tempfile.TemporaryDirectory() as scratch:
        options = [*where, "--json", "--out", f"{scratch}/run"]
        done = subprocess.run(
            [sys.executable, "-m", "unskew", *cell.arguments(), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        if keep is not None and not done.returncode:
            for one in ("run.json", *(f"seed-{seed}/users.parquet" for seed in cell.seeds)):
                (keep / one).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(f"{scratch}/run/{one}", keep / one)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UnskewError(f"{cell.command} failed: {reason[0]}")
    row: dict[str, Any] = json.loads(done.stdout)
    for table in _TABLES:
        row[table] = {name: row[table][name] for name in _KEPT if name in row[table]}
    del row["run_dir"]
    return row | {"command": cell.command}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows there are; a later row for the same command replaces an earlier one."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    return list({row["command"]: row for row in rows}.values())


def missing(cells: Iterable[Cell], rows: Sequence[dict[str, Any]]) -> list[Cell]:
    have = {row["command"] for row in rows}
    return [cell for cell in cells if cell.command not in have]


def append_row(path: Path, row: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
        file.flush()


def main_table(rows: Sequence[dict[str, Any]], protocol: str) -> str:
    """A Markdown table: methods down, data sets across; the paper's figure beside ours."""
    rows = [row for row in rows if row["protocol"] == protocol]
    data = list(dict.fromkeys(row["data"] for row in rows))
    methods = list(dict.fromkeys(row["method"] for row in rows))
    cells = {(row["method"], row["data"]): row for row in rows}
    lines = ["| method | " + " | ".join(data) + " |", "|---|" + "---|" * len(data)]
    for method in methods:
        figures = [_figures(cells.get((method, name)), protocol) for name in data]
        lines.append(f"| {method} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def side_by_side(rows: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: each run's HR@10 as the paper prints it, as we get it under ``paper``, and
    what is left under ``leak-free``; only pairs with both protocols."""
    cells = {(row["data"], row["method"], row["protocol"]): row for row in rows}
    pairs = dict.fromkeys((row["data"], row["method"]) for row in rows)
    lines = [
        "| HR@10 | paper prints | `paper` | `leak-free`, 99 candidates | `leak-free`, all items |",
        "|---|---|---|---|---|",
    ]
    for data, method in pairs:
        leaky, honest = (cells.get((data, method, name)) for name in ("paper", "leak-free"))
        if leaky is None or honest is None:
            continue
        published = paper_value(method, data)
        figures = [
            f"{published[0]:.3f}" if published else "–",
            _mean(leaky["metrics"]["hr@10"]),
            _mean(honest["sampled99"]["hr@10"]),
            _mean(honest["metrics"]["hr@10"]),
        ]
        lines.append(f"| {data}, {method} | " + " | ".join(figures) + " |")
    return "\n".join(lines)


def _figures(row: dict[str, Any] | None, protocol: str) -> str:
    if row is None:
        return "–"
    text = _pair(row["metrics"])
    if protocol == "paper":
        published = paper_value(row["method"], row["data"])
        return text + (f" ({published[0]:.3f} / {published[1]:.3f})" if published else "")
    return f"{text} · {_pair(row['sampled99'])}"


def _pair(metrics: dict[str, Any]) -> str:
    return " / ".join(_mean(metrics[name]) for name in ("hr@10", "ndcg@10"))


def _mean(summary: dict[str, Any]) -> str:
    deviation = f" ± {summary['std']:.3f}" if len(summary["values"]) > 1 else ""
    return f"{summary['mean']:.3f}{deviation}"
