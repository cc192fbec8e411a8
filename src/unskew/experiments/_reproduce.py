"""Tables made of cells. A cell is one command; its row is what the command printed.

Cells run in processes of their own, so that a row's peak memory is the cell's and a cell that fails
takes nothing with it. Rows are appended to a JSON-lines file. A cell whose row is there already is
not run again, unless its method's code has changed since: a row remembers a hash of it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from unskew.experiments._paper import paper_value
from unskew.experiments._pool import TABLES, run_of
from unskew.files import read_json_lines
from unskew.methods import METHODS
from unskew.privacy import LocalPrivacy
from unskew.runs.runner import run
from unskew.runs.saved import read_rounds
from unskew.runs.spec import RunSpec
from unskew.types import UnskewError

_KEPT = ("hr@10", "ndcg@10", "recall@20", "mrr@10", "coverage@10", "popularity@10")


class HasRow(Protocol):
    """Whatever ends as a row: its command names it, its methods decide when it is out of date."""

    @property
    def command(self) -> str: ...

    @property
    def methods(self) -> tuple[str, ...]: ...


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

    @property
    def methods(self) -> tuple[str, ...]:
        return (self.method,)


def run_cell(cell: Cell, data_dir: Path | None, keep: Path | None = None) -> dict[str, Any]:
    """Run one cell and keep of its figures what tables need, under ``curves`` those of each round;
    ``keep`` gets the files with its per-user and per-round values."""
    where = [] if data_dir is None else ["--data-dir", str(data_dir)]
    source = fingerprint(*cell.methods)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        options = [*where, "--json", "--out", str(folder)]
        done = subprocess.run(
            [sys.executable, "-m", "unskew", *cell.arguments(), *options],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
            raise UnskewError(f"{cell.command} failed: {reason[0]}")
        curves = _curves(list(read_rounds(folder).values()))
        if keep is not None:
            _copy(folder, keep, cell)
    return _kept(json.loads(done.stdout), cell, source) | {"curves": curves}


def run_here(cell: Cell, data_dir: Path | None, keep: Path | None = None) -> dict[str, Any]:
    """The same in this process, which spares a start but says nothing about the cell's memory."""
    source = fingerprint(*cell.methods)
    own = {key: value for key, value in cell.settings if key != "ldp-noise"}
    noise = [float(value) for key, value in cell.settings if key == "ldp-noise"]
    ldp = LocalPrivacy(noise=noise[0]) if noise else None
    spec = RunSpec(cell.method, own, cell.data, cell.protocol, cell.seeds, ldp=ldp)
    with tempfile.TemporaryDirectory() as scratch:
        folder = None if keep is None else Path(scratch) / "run"
        finished = run(spec, spec.load(data_dir), out=folder)
        if folder is not None and keep is not None:
            _copy(folder, keep, cell)
    curves = _curves([outcome.rows for outcome in finished.outcomes])
    row = _kept(finished.summary(), cell, source)
    return row | {"peak_rss_mb": None, "curves": curves}


def _copy(folder: Path, keep: Path, cell: Cell) -> None:
    """The files of a run that comparisons and curves need; the header last, which says that all
    are there."""
    parts = [f"seed-{seed}/{part}" for seed in cell.seeds for part in _KEPT_FILES]
    for one in (*parts, "run.json"):
        (keep / one).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / one, keep / one)


_KEPT_FILES = ("users.parquet", "rounds.jsonl")


def fingerprint(*methods: str) -> str:
    """A hash of the code of these methods and of what they share with others; not of comments,
    docstrings and presets, which are settings that a command names, and not of the kernels, whose
    results have tests of their own."""
    digest = hashlib.sha256()
    for method in methods:
        if method not in METHODS:
            raise UnskewError(f'There is no method "{method}"; choose one of {", ".join(METHODS)}.')
        for path in sorted(_sources(METHODS[method].__module__)):
            digest.update(_bare(path).encode())
    return digest.hexdigest()[:16]


@cache
def _sources(module: str) -> frozenset[Path]:
    """The file of a method's module and of those beside it that it imports."""
    folder = Path(__file__).parents[1] / "methods"
    found, open_ends = set(), [folder / f"{module.rpartition('.')[2]}.py"]
    while open_ends:
        path = open_ends.pop()
        if path in found or not path.exists():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_ROOM):
                names = [(node.module or "").removeprefix(_ROOM).lstrip(".")]
                names = names if names[0] else [alias.name for alias in node.names]
                open_ends += [folder / f"{name}.py" for name in names]
    return frozenset(found)


_ROOM = "unskew.methods"


@cache
def _bare(path: Path) -> str:
    """A file without docstrings, imports, presets, comment lines and blank lines."""
    text = path.read_text(encoding="utf-8")
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Expr | ast.AnnAssign | ast.Import | ast.ImportFrom):
            continue
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        presets = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PRESETS"
        if docstring or presets or isinstance(node, ast.Import | ast.ImportFrom):
            told.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = [line for at, line in enumerate(text.splitlines(), 1) if at not in told]
    return "\n".join(line for line in lines if line.strip() and line.strip()[0] != "#")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows there are; a later row for the same command replaces an earlier one. A line cut
    short by a kill is no row, and its cell is run again."""
    if not path.exists():
        return []
    rows = read_json_lines(path, skip_damaged=True)
    latest = {(row["command"], bool(row.get("quick"))): row for row in rows if "command" in row}
    return list(latest.values())


_Unmade = TypeVar("_Unmade", bound=HasRow)


def missing(cells: Iterable[_Unmade], rows: Sequence[dict[str, Any]]) -> list[_Unmade]:
    """The cells without a row, each once; a run that has rows for some of its seeds, for the
    others. A row that does not say which code made it counts."""
    have: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        have.setdefault(run_of(row["command"]), []).append(row)
    unmade = {}
    for cell in cells:
        current = (None, fingerprint(*cell.methods))
        made = [row for row in have.get(run_of(cell.command), ()) if row.get("source") in current]
        left = _left(cell, made)
        if left is not None:
            unmade[cell.command] = left
    return list(unmade.values())


def _left(cell: _Unmade, made: Sequence[dict[str, Any]]) -> _Unmade | None:
    if not isinstance(cell, Cell):
        return None if made else cell
    done = {seed for row in made for seed in row["seeds"]}
    seeds = tuple(seed for seed in cell.seeds if seed not in done)
    return cell._replace(seeds=seeds) if seeds else None


def _kept(row: dict[str, Any], cell: Cell, source: str) -> dict[str, Any]:
    for table in TABLES:
        row[table] = {name: row[table][name] for name in _KEPT if name in row[table]}
    del row["run_dir"]
    return row | {"command": cell.command, "source": source}


def _curves(seeds: Sequence[Sequence[dict[str, Any]]]) -> dict[str, dict[str, list[float]]]:
    """Validation and test figures round by round, the mean over seeds."""
    rounds = list(zip(*seeds, strict=False))
    return {
        part: {
            metric: [round(statistics.fmean(row[part][metric] for row in at), 4) for at in rounds]
            for metric in ("hr@10", "ndcg@10")
        }
        for part in ("validation", "test")
    }


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
        text += f" ({published[0]:.3f} / {published[1]:.3f})" if published else ""
        return text
    return f"{text} · {_pair(row['sampled99'])}"


def _pair(metrics: dict[str, Any]) -> str:
    return " / ".join(_mean(metrics[name]) for name in ("hr@10", "ndcg@10"))


def _mean(summary: dict[str, Any]) -> str:
    deviation = f" ± {summary['std']:.3f}" if len(summary["values"]) > 1 else ""
    return f"{summary['mean']:.3f}{deviation}"
