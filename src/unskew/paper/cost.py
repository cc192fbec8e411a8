"""What methods cost: sizes of data sets, parameters and memory, seconds per round, bytes sent.

Space follows the paper: float32 parameters in units of 2^20 bytes. A client holds all its tables.
The server holds the global model and one upload of every client, which a server that sums uploads
does not need.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from unskew.data import info, load
from unskew.methods import METHODS
from unskew.paper import published
from unskew.paper.cells import Task
from unskew.paper.plan import Exhibit, Heads, Line, Plan
from unskew.paper.rows import Record, Results, RunRow, data_place, distinct, most_seeds, select
from unskew.report import Cell, Chart, Column, Panel, Series, Table
from unskew.runs import RunSpec

PARAMETERS_PER_MB = 2**20 / 4
"""float32 parameters in a megabyte."""

Count = Callable[[int, int, int, int], int]
"""Number of parameters from n clients, m items, embedding size d and rank r."""
Formula = tuple[str, Count]


def _network(d: int) -> int:
    """Parameters of a perceptron 2d -> d -> d / 2 -> 1 with biases."""
    return (2 * d + 1) * d + (d + 1) * (d // 2) + d // 2 + 1


_FACTORS: Formula = ("(m + 1) d", lambda n, m, d, r: (m + 1) * d)
_WITH_NETWORK: Formula = (
    "(m + 1) d + network",
    lambda n, m, d, r: (m + 1) * d + _network(d),
)
_ONE_TABLE_EACH: Formula = ("(n + 1) m d", lambda n, m, d, r: (n + 1) * m * d)

FORMULAS: dict[str, tuple[Formula, Formula]] = {
    "fedmf": (_FACTORS, _ONE_TABLE_EACH),
    "fedncf": (
        _WITH_NETWORK,
        ("(n + 1) (m d + network)", lambda n, m, d, r: (n + 1) * (m * d + _network(d))),
    ),
    "pfedgraph": (
        _FACTORS,
        (
            "(n + s) m d + s²",
            lambda n, m, d, r: (n + n // 10) * m * d + (n // 10) ** 2,
        ),
    ),
    "gpfedrec": (
        _WITH_NETWORK,
        ("(2n + 1) m d + n²", lambda n, m, d, r: (2 * n + 1) * m * d + n * n),
    ),
    "pfedrec": (
        ("(m + 1) d + 1", lambda n, m, d, r: (m + 1) * d + 1),
        ("(n + 1) m d + n", lambda n, m, d, r: (n + 1) * m * d + n),
    ),
    "fedrap": (
        ("(2m + 1) d + 1", lambda n, m, d, r: (2 * m + 1) * d + 1),
        _ONE_TABLE_EACH,
    ),
    "fedmf-af": (("(2m + 1) d", lambda n, m, d, r: (2 * m + 1) * d), _ONE_TABLE_EACH),
    "pfedclr": (
        ("(m + 1) d + (m + d) r", lambda n, m, d, r: (m + 1) * d + (m + d) * r),
        _ONE_TABLE_EACH,
    ),
    "fedrefit": (
        ("m (3d + 2) + 2d + 1", lambda n, m, d, r: m * (3 * d + 2) + 2 * d + 1),
        (
            "m (3d + 2) + m (2d + 1) + (2d + 1)²: sums only",
            lambda n, m, d, r: m * (5 * d + 3) + (2 * d + 1) ** 2,
        ),
    ),
}
"""Parameters on a client and on the server; s = n / 10 is the share pFedGraph aggregates."""


def parameter_megabytes(method: str, n: int, m: int, rank: int = 2) -> tuple[float, float]:
    """Megabytes on a client and on the server, with the method's default embedding size."""
    (_, client), (_, server) = FORMULAS[method]
    d = min(METHODS[method].Config().dim, m)
    return client(n, m, d, rank) / PARAMETERS_PER_MB, server(n, m, d, rank) / PARAMETERS_PER_MB


def federated_runs(results: Results) -> list[RunRow]:
    """Default runs of federated methods, by method and data set."""
    return [row for row in results.default_runs() if row.method in FORMULAS]


def datasets_tasks(plan: Plan) -> list[Task]:
    """Statistics of every data set."""

    def task(source: str) -> Task:
        def make(data_dir: Path | None) -> Record:
            found = dataclasses.asdict(info(load(source, data_dir=data_dir)))
            return {"data": source, "settings": {}, "seeds": []} | found

        return Task(f"unskew data info {source} --json", (), make)

    return [task(source) for source in plan.sources()]


def datasets_tables(results: Results) -> list[Table]:
    """Users, items and interactions, with what the paper prints."""
    lines = []
    for row in results.of("datasets"):
        counts = [row["n_users"], row["n_items"], row["n_rows"]]
        printed = published.dataset_size(row["data"])
        notes = ["" if printed is None else f"({count:,})" for count in printed or counts]
        sizes = [Cell(f"{c:,}", c, note) for c, note in zip(counts, notes, strict=True)]
        sparsity = Cell(f"{row['sparsity']:.2%}", row["sparsity"])
        lines.append([row["data"], *sizes, row["n_pairs"], sparsity])
    head = ["data", "users", "items", "interactions", "distinct pairs", "sparsity"]
    return [Table.of(head, lines)] if lines else []


def space_tables(results: Results) -> list[Table]:
    """Parameters on a client and on the server, and the peak memory of whole simulations."""
    sources = results.of("datasets")
    if not sources:
        return []
    names = [row["data"] for row in sources]
    tables = []
    for at, part in enumerate(("client", "server")):
        lines: list[Line] = []
        for method, formulas in FORMULAS.items():
            cells = []
            for row in sources:
                ours = parameter_megabytes(method, row["n_users"], row["n_items"])[at]
                printed = published.megabytes(method, row["data"])
                cells.append(Cell.number(ours, published=printed and printed[at]))
            lines.append([method, formulas[at][0], *cells])
        heads: Heads = [f"{part}, MB", Column("parameters", "text"), *_low_first(names)]
        tables.append(Table.of(heads, lines))
    runs = results.default_runs()
    methods = dict.fromkeys((*FORMULAS, *distinct(runs, "method")))
    lines = [[m, *(_peak(select(runs, method=m, data=name)) for name in names)] for m in methods]
    about = (
        "Measured: peak memory of the whole simulation, all clients and the interpreter included, "
        "as each protocol was run last; the largest of them."
    )
    return [*tables, Table.of(["MB", *_low_first(names)], lines, about=about)]


def _peak(rows: Sequence[RunRow]) -> Cell:
    peaks = [row.peak_rss_mb for row in rows if row.peak_rss_mb]
    return Cell.number(max(peaks, default=None), 0)


def _low_first(names: Sequence[str]) -> list[Column]:
    return [Column(name, better="low") for name in names]


def speed_tables(results: Results) -> list[Table]:
    """Ratios that `make bench` measured."""
    head: Heads = ["what", Column("data", "text"), Column("against", "text"), "its seconds", "ours"]
    head += ["ratio", Column("lowest to highest", "text"), Column("bar", "text")]
    rows = sorted(results.of("bench"), key=lambda row: data_place(row["data"]))
    return [Table.of(head, [_speed_line(row) for row in rows])] if rows else []


def _speed_line(row: Record) -> Line:
    digits = 0 if row["ratio"] >= 10 else 2
    bar = "–"
    if row["bar"] is not None:
        bar = f"{row['bar']:g}: {'met' if row['passed'] else '**missed**'}"
    times = [Cell(f"{row[k]:.3g}", row[k]) for k in ("seconds_against", "seconds_unskew")]
    span = f"{row['ratio_low']:.{digits}f} to {row['ratio_high']:.{digits}f}"
    ratio = Cell.number(row["ratio"], digits)
    return [row["name"], row["data"], row["against"], *times, ratio, span, bar]


def _benchmarked_seconds(results: Results, method: str, data: str) -> float | None:
    """Seconds of one round of all clients and the server, if it was benchmarked."""
    found = [r for r in results.of("bench") if (r["name"], r["data"]) == (f"{method} round", data)]
    return float(found[-1]["seconds_unskew"]) if found else None


def time_cells(plan: Plan) -> list[RunSpec]:
    """Runs of the main table under one protocol; the others take the same time."""
    one = dataclasses.replace(plan, protocols=plan.protocols[:1])
    return one.default_cells([*FORMULAS])


def time_tables(results: Results) -> list[Table]:
    """Seconds per round: benchmarked where possible, otherwise of a run."""
    rows = federated_runs(results)
    data = sorted(distinct(rows, "data"), key=data_place)
    lines: list[Line] = []
    for method in FORMULAS:
        cells = []
        for source in data:
            row = most_seeds(select(rows, method=method, data=source))
            ours = _benchmarked_seconds(results, method, source)
            if ours is None and row is not None:
                ours = row.seconds_per_round
            printed = published.seconds_per_round(method, source)
            note = "" if printed is None else f"({printed:.4g})"
            cells.append(Cell("–" if ours is None else f"{ours:.3g}", ours, note))
        lines.append([method, *cells])
    return [Table.of(["seconds per round", *_low_first(data)], lines)] if rows else []


def cost_tables(results: Results) -> list[Table]:
    """The paper's analysis, and the bytes that a client really sends and receives."""
    rows = federated_runs(results)
    if not rows:
        return []
    heads = ["client time", "client space", "server time", "server space", "sent"]
    columns: Heads = ["by the paper", *(Column(head, "text") for head in heads)]
    analysis = [[method, *costs] for method, costs in published.figures()["cost"].items()]
    data = sorted(distinct(rows, "data"), key=data_place)
    measured = [
        [method, *(_sent(most_seeds(select(rows, method=method, data=name))) for name in data)]
        for method in FORMULAS
    ]
    about = "Measured: KB up / KB down, for one client and round."
    sent = Table.of(["method", *_low_first(data)], measured, about=about)
    return [Table.of(columns, analysis), sent]


def _sent(row: RunRow | None) -> Cell | None:
    if row is None or row.bytes_up is None or row.bytes_down is None:
        return None
    return Cell(f"{row.bytes_up / 1000:.1f} / {row.bytes_down / 1000:.1f}", row.bytes_up)


def efficiency_charts(results: Results) -> dict[str, Chart]:
    """HR@10 against megabytes on a client; a bubble's area is the seconds of a round."""
    charts, rows = {}, federated_runs(results)
    for protocol in distinct(rows, "protocol"):
        found = select(rows, protocol=protocol)
        if len(distinct(found, "method")) < 2:
            continue
        panels = [_efficiency_panel(select(found, data=d), d) for d in distinct(found, "data")]
        title = f"Efficiency, protocol {protocol}: area is seconds per round"
        charts[f"efficiency-{protocol}"] = Chart(title, tuple(panels))
    return charts


def _efficiency_panel(rows: list[RunRow], source: str) -> Panel:
    slowest = max(row.seconds_per_round for row in rows)
    series = []
    for row in rows:
        area = row.seconds_per_round / slowest if slowest else 1.0
        space = parameter_megabytes(row.method, row.users, row.items)[0]
        points = [space], [row.mean("hr@10")]
        series.append(Series(row.method, row.method, *points, "points", [area]))
    return Panel(source, "parameters on a client, MB", "HR@10", tuple(series))


DATASETS_TABLE = Exhibit(
    "datasets",
    "Data sets",
    "In brackets what the paper prints. Distinct (user, item) pairs are what `leak-free` keeps.",
    "datasets",
    datasets_tasks,
    datasets_tables,
)
SPACE = Exhibit(
    "space",
    "Space",
    "Parameters in MB of float32, in brackets what the paper prints. n clients, m items, embedding "
    "size d (16, FedRefit 64), rank r = 2, s = n / 10. On LastFM-2K the paper's figures are those "
    "of 1,269 clients and 12,322 items, the users with at least 10 rows, not of the 1,600 and "
    "12,454 it names.",
    "datasets",
    datasets_tasks,
    space_tables,
)
SPEED = Exhibit(
    "speed",
    "Speed",
    "`make bench` on two idle cores: a method's round against a loop over its clients in PyTorch "
    "(a sample of the clients, scaled), the Step 1 kernel against straightforward C, a round with "
    "noise against one without (there the ratio is a price), and pFedGraph's programmes against a "
    "general solver. Medians over alternating laps.",
    "bench",
    lambda plan: (),
    speed_tables,
)
TIME = Exhibit(
    "time",
    "Time",
    "Ours is the time in which this machine simulates all clients of a round and the server, from "
    "`make bench` where that measured it, otherwise from runs, which may have shared the machine "
    "with others; in brackets what the paper prints, its slowest client and the server, on a GPU.",
    "main",
    time_cells,
    time_tables,
)
COST = Exhibit(
    "cost",
    "Cost",
    "The paper's analysis: FedMF's costs and what each method adds; n clients, m items, k samples "
    "of a client, L layers. Ours sends the rows a client changed, not whole tables. (The n⁴ of "
    "pFedGraph is a general solver's; its problem is a projection onto a simplex, O(n² log n).)",
    "main",
    time_cells,
    cost_tables,
)
EFFICIENCY = Exhibit(
    "efficiency",
    "Efficiency",
    "Each method's quality, space on a client, and time per round relative to the slowest, as its "
    "run took it (which may have shared the machine; the table of times has those of an idle one).",
    "main",
    lambda plan: plan.default_cells([*FORMULAS], "ml-1m"),
    charts=efficiency_charts,
)
