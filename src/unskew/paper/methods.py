"""Methods compared: the main table, paired tests of one method against the others, and FedRefit
with each of its parts removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unskew.evaluation import holm, paired_test
from unskew.methods import METHODS
from unskew.paper import published
from unskew.paper.cells import users_folder
from unskew.paper.plan import DATASETS, Exhibit, Heads, Line, Plan, table_per_protocol
from unskew.paper.rows import (
    Record,
    Results,
    RunRow,
    data_place,
    distinct,
    most_seeds,
    select,
)
from unskew.report import Cell, Column, Table
from unskew.runs import RunSpec, Summary, read_spec, read_users

_ABOUT = {
    "paper": "HR@10 / NDCG@10 among 99 sampled candidates, and in brackets what the PFedCLR paper "
    "prints. These figures leak the held-out item ([protocols.md](protocols.md)).",
    "leak-free": "HR@10 / NDCG@10 ranking all unseen items · the same among 99 sampled candidates.",
    "time": "One moment for everybody, nothing after it in training; otherwise as `leak-free`.",
}
SIDE_BY_SIDE_METHODS = ("fedrefit", "pfedclr", "fedmf", "popularity", "ease")
"""Methods of the table with both protocols."""
_MEASURED = "ndcg@10"
"""Metric of the paired tests."""


def main_tables(results: Results) -> list[Table]:
    """Methods down, data sets across, one table per protocol; then the protocols side by side."""
    tables = table_per_protocol(_main_table, results.default_runs())
    beside = side_by_side(results, DATASETS, SIDE_BY_SIDE_METHODS)
    return (
        [*tables, beside._replace(title="Both protocols side by side")] if beside.rows else tables
    )


def _main_table(rows: list[RunRow], protocol: str) -> Table:
    data = distinct(rows, "data")
    lines: list[Line] = []
    for method in distinct(rows, "method"):
        found = [most_seeds(select(rows, method=method, data=source)) for source in data]
        lines.append([method, *(_figures(row, protocol) for row in found)])
    return Table.of(["method", *data], lines, about=_ABOUT[protocol])


def _figures(row: RunRow | None, protocol: str) -> Cell | None:
    """HR@10 / NDCG@10, and what the paper prints or the same among sampled candidates."""
    if row is None:
        return None
    printed = published.quality(row.method, row.data)
    note = f"· {_both(row.sampled99)}"
    if protocol == "paper":
        note = f"({printed[0]:.3f} / {printed[1]:.3f})" if printed else ""
    return Cell(_both(row.metrics), row.mean("hr@10"), note)


def _both(metrics: Mapping[str, Summary]) -> str:
    return " / ".join(_mean_and_std(metrics[name]) for name in ("hr@10", "ndcg@10"))


def _mean_and_std(summary: Summary) -> str:
    deviation = f" ± {summary.std:.3f}" if len(summary.values) > 1 else ""
    return f"{summary.mean:.3f}{deviation}"


def side_by_side(results: Results, data: Sequence[str], methods: Sequence[str]) -> Table:
    """HR@10 as the paper prints it, as it is under ``paper``, and under ``leak-free``, for runs
    that have both protocols."""
    rows = [r for r in results.default_runs() if r.method in methods and r.data in data]
    lines: list[Line] = []
    for source in data:
        for method in distinct(rows, "method"):
            found = select(rows, data=source, method=method)
            leaky, honest = (
                most_seeds(select(found, protocol=name)) for name in ("paper", "leak-free")
            )
            if leaky is None or honest is None:
                continue
            printed = published.quality(method, source)
            columns = (leaky.metrics, honest.sampled99, honest.metrics)
            lines.append(
                [
                    f"{source}, {method}",
                    Cell.number(printed and printed[0], 3),
                    *(_with_deviation(metrics["hr@10"]) for metrics in columns),
                ]
            )
    candidates = ["`leak-free`, 99 candidates", "`leak-free`, all items"]
    return Table.of(["HR@10", "paper prints", "`paper`", *candidates], lines)


def _with_deviation(summary: Summary) -> Cell:
    return Cell.number(summary.mean, 3, summary.std if len(summary.values) > 1 else None)


def compare_users(keep: Path, ours: RunSpec, theirs: RunSpec) -> Record:
    """Row of a paired test of two runs: per-user NDCG@10, averaged over each one's seeds."""
    folders = users_folder(keep, ours), users_folder(keep, theirs)
    mine, other = (read_users(folder) for folder in folders)
    seeds, seeds_against = (list(read_spec(folder)[0].seeds) for folder in folders)
    both = mine.join(other, on="user", suffix="_other", maintain_order="left")
    values = both[_MEASURED].to_numpy(), both[f"{_MEASURED}_other"].to_numpy()
    test = paired_test(*values)
    return {
        "data": ours.data,
        "protocol": ours.protocol,
        "method": ours.method,
        "against": theirs.method,
        "seeds": seeds,
        "seeds_against": seeds_against,
        "users": test.n_users,
        "ours": float(both[_MEASURED].mean()),  # type: ignore[arg-type]
        "theirs": float(both[f"{_MEASURED}_other"].mean()),  # type: ignore[arg-type]
        "difference": test.difference,
        "interval": [test.ci_low, test.ci_high],
        "p_value": test.p_value,
        "wins": test.wins,
        "losses": test.losses,
        "command": f"unskew reproduce against --methods {ours.method},{theirs.method} "
        f"--data {ours.data} --protocol {ours.protocol}",
    }


def against_tables(results: Results) -> list[Table]:
    """For each data set the method, then every other by falling NDCG@10. Holm's correction covers
    the tests of a data set."""
    rows = [row for row in results.of("against") if row["protocol"] == "leak-free"]
    lines: list[Line] = []
    for data in sorted(dict.fromkeys(row["data"] for row in rows), key=data_place):
        found = sorted((r for r in rows if r["data"] == data), key=lambda row: -row["theirs"])
        first = found[0]
        name = Cell(f"**{first['method']}** ({len(first['seeds'])} seeds)", first["method"])
        own = Cell.number(first["ours"], bold=True)
        lines.append([data, name, _kind(first["method"]), own, "", ""])
        corrected = holm([row["p_value"] for row in found])
        for row, p in zip(found, corrected, strict=True):
            lines.append(["", *_tested(row, float(p))])
    heads: Heads = ["data", Column("method", "text"), Column("kind", "text"), "NDCG@10"]
    heads += ["difference, 95 % interval", Column("p (Holm)", better="low")]
    return [Table.of(heads, lines)] if lines else []


def _tested(row: Record, p: float) -> Line:
    low, high = row["interval"]
    name = Cell(f"{row['against']} ({len(row['seeds_against'])})", row["against"])
    difference = Cell(f"{row['difference']:+.4f}", row["difference"], f"[{low:+.4f}, {high:+.4f}]")
    p_value = Cell("< 1e-6" if p < 1e-6 else f"{p:.2g}", p)
    return [name, _kind(row["against"]), Cell.number(row["theirs"]), difference, p_value]


def _kind(method: str) -> str:
    return "central" if METHODS[method].aggregation == "central" else "federated"


PARTS: dict[str, dict[str, Any]] = {
    "whole": {},
    "without the next-item fit": {"rounds": 5},
    "without fading: all of a history counts the same": {"fast": 1.0, "slow": 1.0},
    "with one pace only": {"fast": 0.8, "slow": 0.8},
    "with the very next item as the only target": {"horizon": 0.0, "far_horizon": 0.0},
    "with one horizon for all fits": {"far_horizon": 0.9},
    "forward reading only": {"order": "forward"},
    "both readings only": {"order": "both"},
    "without the discount of popular items": {"discount": 0.0},
    "without damping popular items in the space": {"item_power": 0.0},
    "with a space of 16": {"dim": 16},
}
"""FedRefit's parts, and the settings that remove them."""


def parts_cells(plan: Plan) -> list[RunSpec]:
    """FedRefit without each of its parts."""
    return [
        plan.cell("fedrefit", source, "leak-free", **settings)
        for source in plan.sources()
        for settings in plan.grid([*PARTS.values()])
    ]


def parts_tables(results: Results) -> list[Table]:
    """NDCG@10 over all unseen items, parts down, data sets across. The whole method is averaged
    over the seeds of the rows with a part removed."""
    rows = select(results.runs, method="fedrefit", protocol="leak-free", noise=0.0)
    rows = sorted((r for r in rows if r.settings in PARTS.values()), key=_place)
    seeds = {row.data: set(row.seeds) for row in rows if row.settings}
    lines: list[Line] = []
    for name, settings in PARTS.items():
        found = [most_seeds(select(rows, data=data, settings=settings)) for data in seeds]
        lines.append([name, *(Cell.number(_mean_over(row, seeds)) for row in found)])
    return [Table.of(["FedRefit", *seeds], lines)] if seeds else []


def _mean_over(row: RunRow | None, seeds: Mapping[str, set[int]]) -> float | None:
    """NDCG@10 over the seeds wanted for the row's data set."""
    common = set() if row is None else seeds[row.data] & set(row.seeds)
    return row.on_seeds(common).mean(_MEASURED) if row is not None and common else None


def _place(row: RunRow) -> int:
    return data_place(row.data)


MAIN = Exhibit(
    "main",
    "Methods compared",
    "Federated methods, and central ones for comparison.",
    "main",
    Plan.default_cells,
    main_tables,
    curves=True,
)
AGAINST = Exhibit(
    "against",
    "One method against every other",
    "`leak-free`, all unseen items ranked, NDCG@10. Paired Wilcoxon test over users on values "
    "averaged over seeds (in brackets how many), Holm's correction within a data set; intervals by "
    "bootstrap.",
    "main",
    Plan.default_cells,
    against_tables,
)
PARTS_REMOVED = Exhibit(
    "parts",
    "FedRefit, each part removed in turn",
    "`leak-free`, all unseen items ranked, NDCG@10 ([fedrefit.md](fedrefit.md)).",
    "parts",
    parts_cells,
    parts_tables,
)
