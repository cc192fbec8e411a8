"""Comparisons of methods: the main table, paired tests of one method against the others, and
FedRefit with each of its parts removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from unskew.display import Cell, Column, Table
from unskew.evaluation import holm, paired_test
from unskew.methods import METHODS
from unskew.paper import published
from unskew.paper.plan import (
    DATASETS,
    METRICS,
    PROTOCOLS,
    Exhibit,
    Heads,
    Line,
    Places,
    Plan,
    Task,
    table_by_data,
    table_per_protocol,
)
from unskew.paper.rows import Record, Results, RunRow, data_place, distinct, find, select
from unskew.runs import RunSpec, Summary, read_spec, read_users

_ABOUT = {
    "paper": "HR@10 / NDCG@10 among 99 sampled candidates, and in brackets what the PFedCLR paper "
    "prints. These figures leak the held-out item ([protocols.md](protocols.md)).",
    "leak-free": "HR@10 / NDCG@10 ranking all unseen items · the same among 99 sampled candidates.",
    "sequential": "As the literature on sequence models evaluates: the validation item is part of "
    "the history when the test item is predicted, and equal times keep the file's order. The "
    "federated baselines, `mf`, `ncf` and `lightgcn` could use that item only by training again; "
    "they are tested with the state they trained. Otherwise as `leak-free`.",
    "time": "One moment for everybody, nothing after it in training; otherwise as `leak-free`.",
}
"""Paragraph above the main table, by protocol."""
SIDE_BY_SIDE_METHODS = ("fedrefit", "pfedclr", "fedmf", "popularity", "ease")
"""Methods in the table that compares the protocols ``paper`` and ``leak-free``."""
ORDER_METHODS = ("fednext", "fedrefit", "pfedrec", "sasrec", "gru4rec", "slist", "ease")
"""Methods in the README's table of the protocol ``sequential``."""
_METRIC = "ndcg@10"
"""Metric of the paired tests and of the table of FedRefit with a part removed."""


def main_tables(results: Results) -> list[Table]:
    """Tables of methods by data sets, one per protocol, then a comparison of two protocols."""
    tables = table_per_protocol(_main_table, results.default_runs())
    beside = side_by_side(results, DATASETS)._replace(title="Both protocols side by side")
    return [*tables, beside] if beside.rows else tables


def _main_table(rows: list[RunRow], protocol: str) -> Table:
    def figures(method: str, data: str) -> Cell | None:
        """Table cell of HR@10 / NDCG@10, with the published values or those among 99 items."""
        row = find(rows, method=method, data=data)
        if row is None:
            return None
        printed = published.quality(method, data)
        note = f"· {_both(row.sampled99)}"
        if protocol == "paper":
            note = f"({printed[0]:.3f} / {printed[1]:.3f})" if printed else ""
        return Cell(_both(row.metrics), row.mean("hr@10"), note)

    names, data = distinct(rows, "method"), distinct(rows, "data")
    return table_by_data("method", names, data, figures, about=_ABOUT[protocol])


def _both(metrics: Mapping[str, Summary]) -> str:
    return " / ".join(Cell.over_seeds(metrics[name], 3).line for name in METRICS.values())


def side_by_side(results: Results, data: Sequence[str]) -> Table:
    """A table of HR@10 as the paper prints it and as measured under the protocols ``paper`` and
    ``leak-free``, for methods that were run under both."""
    rows = results.default_runs(SIDE_BY_SIDE_METHODS)
    lines: list[Line] = []
    for source in data:
        for method in distinct(rows, "method"):
            found = select(rows, data=source, method=method)
            leaky, honest = (find(found, protocol=name) for name in ("paper", "leak-free"))
            if leaky and honest:
                printed = published.quality(method, source)
                columns = (leaky.metrics, honest.sampled99, honest.metrics)
                figures = [Cell.over_seeds(metrics["hr@10"], 3) for metrics in columns]
                first = Cell.number(printed and printed[0], 3)
                lines.append([f"{source}, {method}", first, *figures])
    candidates = ["`leak-free`, 99 candidates", "`leak-free`, all items"]
    return Table.of(["HR@10", "paper prints", "`paper`", *candidates], lines)


def order_table(results: Results) -> Table:
    """A table of NDCG@10 under ``sequential``: our methods beside PFedRec, the strongest federated
    baseline under ``leak-free``, and central models, most of which read the order of a history."""
    rows = select(results.default_runs(ORDER_METHODS), protocol="sequential")

    def quality(name: str, data: str) -> Cell | None:
        row = find(rows, method=name.partition(",")[0], data=data)
        return None if row is None else Cell.over_seeds(row.metrics[_METRIC], 3)

    names = [f"{name}, {_kind(name)}" for name in ORDER_METHODS]
    data = sorted(distinct(rows, "data"), key=data_place)
    return table_by_data("NDCG@10", names, data, quality)


def against_tasks(plan: Plan) -> list[Task]:
    """Tasks that compare the plan's first method with every other method by a paired test."""
    first, *others = plan.methods or METHODS
    return [
        Task(
            f"unskew reproduce against --methods {first},{other} --data {data} "
            f"--protocol {protocol}",
            (first, other),
            partial(_compare_users, specs),
            specs,
        )
        for data, protocol in plan.pairs()
        for other in others
        for specs in [(plan.cell(first, data, protocol), plan.cell(other, data, protocol))]
    ]


def _compare_users(specs: tuple[RunSpec, RunSpec], places: Places) -> Record:
    """Paired test over users of the NDCG@10 of two runs, averaged over seeds; returns JSON."""
    ours, theirs = specs
    folders = [places.users(spec) for spec in specs]
    mine, other = (read_users(folder).select("user", _METRIC) for folder in folders)
    both = mine.join(other, on="user", suffix="_other", maintain_order="left")
    ours_by_user, theirs_by_user = both[_METRIC].to_numpy(), both[f"{_METRIC}_other"].to_numpy()
    test = paired_test(ours_by_user, theirs_by_user)
    seeds, seeds_against = (list(read_spec(folder)[0].seeds) for folder in folders)
    return {
        "data": ours.data,
        "protocol": ours.protocol,
        "method": ours.method,
        "against": theirs.method,
        "seeds": seeds,
        "seeds_against": seeds_against,
        "users": test.n_users,
        "ours": float(ours_by_user.mean()),
        "theirs": float(theirs_by_user.mean()),
        "difference": test.difference,
        "interval": [test.ci_low, test.ci_high],
        "p_value": test.p_value,
        "wins": test.wins,
        "losses": test.losses,
    }


def against_tables(results: Results) -> list[Table]:
    """Tables of paired tests, one per protocol: per data set the tested method, then those it is
    compared with by falling NDCG@10. Holm's correction is over the tests of a data set."""
    rows = results.of("against")
    tables = []
    for protocol in PROTOCOLS:
        found = [row for row in rows if row["protocol"] == protocol]
        if found:
            tables.append(_against_table(found)._replace(title=f"Protocol `{protocol}`"))
    return tables


def _against_table(rows: list[Record]) -> Table:
    lines: list[Line] = []
    for data in dict.fromkeys(row["data"] for row in rows):
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
    return Table.of(heads, lines)


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
"""Settings that remove or simplify each part of FedRefit, by the label of the table row. FedRefit
reads histories forward, or forward and backward ("both readings")."""


def parts_cells(plan: Plan) -> list[RunSpec]:
    """Runs of FedRefit, whole and with each of its parts removed."""
    return [
        plan.cell("fedrefit", source, "leak-free", **settings)
        for source in plan.data or DATASETS
        for settings in plan.grid([*PARTS.values()])
    ]


def parts_tables(results: Results) -> list[Table]:
    """A table of NDCG@10 over all unseen items, a row per removed part and a column per data set.
    The whole method is averaged over the seeds of the rows with a part removed."""
    rows = select(results.runs, method="fedrefit", protocol="leak-free", noise=0.0)
    rows = [row for row in rows if row.settings in PARTS.values()]
    seeds = {row.data: set(row.seeds) for row in rows if row.settings}

    def quality(part: str, data: str) -> Cell:
        row = find(rows, data=data, settings=PARTS[part])
        common = seeds[data] & set(row.seeds) if row else set()
        return Cell.number(row.on_seeds(common).mean(_METRIC) if row and common else None)

    data = sorted(seeds, key=data_place)
    return [table_by_data("FedRefit", PARTS, data, quality)] if seeds else []


MAIN = Exhibit(
    "main",
    "Methods compared",
    "Federated methods, and central ones for comparison.",
    "main",
    Plan.default_cells,
    main_tables,
)
AGAINST = Exhibit(
    "against",
    "One method against every other",
    "All unseen items ranked, NDCG@10. Paired Wilcoxon test over users on values "
    "averaged over seeds (in brackets how many), Holm's correction within a data set; intervals by "
    "bootstrap.",
    "against",
    against_tasks,
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
