"""Costs of methods: data set sizes, parameters and memory, seconds per round, bytes sent.

Space follows the paper: float32 parameters in units of 2^20 bytes. A client holds all its tables.
The server holds the global model and one upload of every client, although a server that sums
uploads does not need them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from unskew.data import info, load
from unskew.display import Cell, Chart, Column, Panel, Series, Table
from unskew.kernels.history_network import count_weights
from unskew.methods import METHODS
from unskew.paper import published
from unskew.paper.plan import (
    DATASETS,
    Exhibit,
    Heads,
    Line,
    Places,
    Plan,
    Task,
    chart_per_protocol,
    table_by_data,
)
from unskew.paper.rows import Record, Results, RunRow, data_place, distinct, find, select
from unskew.runs import RunSpec

PARAMETERS_PER_MB = 2**20 / 4
"""Number of float32 parameters in 2^20 bytes."""

Count = Callable[[int, int, int, int], int]
"""Number of parameters from n clients, m items, embedding size d and rank r."""
Formula = tuple[str, Count]
"""Text of a formula for the number of parameters, and the function that computes it."""


def _network(d: int) -> int:
    """Parameters of a perceptron with 2d, d, d / 2 and 1 units for embedding size d, and biases."""
    return (2 * d + 1) * d + (d + 1) * (d // 2) + d // 2 + 1


_FACTORS: Formula = ("(m + 1) d", lambda n, m, d, r: (m + 1) * d)
"""Parameters on a client: a user vector and m item vectors of size d."""
_WITH_NETWORK: Formula = (
    "(m + 1) d + network",
    lambda n, m, d, r: (m + 1) * d + _network(d),
)
"""Parameters on a client: a user vector, m item vectors of size d, and a scoring network."""
_ONE_TABLE_EACH: Formula = ("(n + 1) m d", lambda n, m, d, r: (n + 1) * m * d)
"""Parameters on the server: its own table of m item vectors of size d, and one per client."""

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
            "m (3d + 2) + m (2d + 1) + (2d + 1)²",
            lambda n, m, d, r: m * (5 * d + 3) + (2 * d + 1) ** 2,
        ),
    ),
    "fednext": (
        ("4m (d + 1) + network", lambda n, m, d, r: 4 * m * (d + 1) + count_weights(d)),
        (
            "7m (d + 1) + 4 networks",
            lambda n, m, d, r: 7 * m * (d + 1) + 4 * count_weights(d),
        ),
    ),
}
"""Number of parameters on a client and on the server, by method, for n clients, m items, embedding
size d and rank r. pFedGraph aggregates s = n / 10 clients. FedNext's network has 11 d (d + 1) + 9
weights; its server also has Adam's moments."""


def parameter_megabytes(method: str, n: int, m: int, rank: int = 2) -> tuple[float, float]:
    """Megabytes of parameters on a client and on the server, for ``n`` clients and ``m`` items."""
    (_, client), (_, server) = FORMULAS[method]
    d = min(METHODS[method].Config().dim, m)
    return client(n, m, d, rank) / PARAMETERS_PER_MB, server(n, m, d, rank) / PARAMETERS_PER_MB


def _data(rows: list[RunRow]) -> list[str]:
    """Names of the data sets of these runs, in the order in which tables list them."""
    return sorted(distinct(rows, "data"), key=data_place)


def datasets_tasks(plan: Plan) -> list[Task]:
    """Tasks that compute the statistics (users, items, interactions) of every data set."""

    def make(source: str, places: Places) -> Record:
        found = dataclasses.asdict(info(load(source, data_dir=places.data_dir)))
        return {"data": source, "settings": {}, "seeds": []} | found

    return [
        Task(f"unskew data info {source} --json", (), partial(make, source))
        for source in plan.data or DATASETS
    ]


def datasets_tables(results: Results) -> list[Table]:
    """A table of users, items and interactions, with the paper's numbers in brackets."""
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
    """Tables of parameters on a client and on the server, and peak memory of whole simulations."""
    sources = {row["data"]: (row["n_users"], row["n_items"]) for row in results.of("datasets")}
    if not sources:
        return []
    tables = []
    for at, part in enumerate(("client", "server")):
        lines: list[Line] = []
        for method, formulas in FORMULAS.items():
            lines.append([method, formulas[at][0]])
            for data, sizes in sources.items():
                printed = published.pair("megabytes", method, data)
                ours = parameter_megabytes(method, *sizes)[at]
                lines[-1].append(Cell.number(ours, published=printed and printed[at]))
        heads: Heads = [f"{part}, MB", Column("parameters", "text")]
        heads += [Column(data, better="low") for data in sources]
        tables.append(Table.of(heads, lines))
    runs = results.default_runs()

    def peak(method: str, data: str) -> Cell:
        peaks = [row.peak_rss_mb for row in select(runs, method=method, data=data)]
        return Cell.number(max((one for one in peaks if one), default=None), 0)

    methods = dict.fromkeys((*FORMULAS, *distinct(runs, "method")))
    about = (
        "Measured: peak memory of the whole simulation, all clients and the interpreter included, "
        "as each protocol was run last; the largest of them."
    )
    return [*tables, table_by_data("MB", methods, [*sources], peak, "low", about=about)]


def speed_tables(results: Results) -> list[Table]:
    """A table of the speed ratios measured by `make bench`."""
    head: Heads = ["what", Column("data", "text"), Column("against", "text"), "its seconds", "ours"]
    head += ["ratio", Column("lowest to highest", "text"), Column("bar", "text")]
    rows = results.of("bench")
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


def time_cells(plan: Plan) -> list[RunSpec]:
    """Runs to measure time and traffic: one protocol is enough, as all take the same time."""
    one = dataclasses.replace(plan, protocols=plan.protocols[:1])
    return one.default_cells([*FORMULAS])


def time_tables(results: Results) -> list[Table]:
    """A table of seconds per round, from `make bench` if available, otherwise from a run."""
    rows = results.default_runs(FORMULAS)
    measured = {(row["name"], row["data"]): row["seconds_unskew"] for row in results.of("bench")}

    def seconds(method: str, data: str) -> Cell:
        row = find(rows, method=method, data=data)
        ours = measured.get((f"{method} round", data), row and row.seconds_per_round)
        printed = published.figure("seconds", method, data)
        note = "" if printed is None else f"({printed:.4g})"
        return Cell("–" if ours is None else f"{ours:.3g}", ours, note)

    made = table_by_data("seconds per round", FORMULAS, _data(rows), seconds, "low")
    return [made] if rows else []


def cost_tables(results: Results) -> list[Table]:
    """Tables of the paper's cost analysis, and of the bytes that a client sends and receives."""
    rows = results.default_runs(FORMULAS)
    if not rows:
        return []
    heads = ["client time", "client space", "server time", "server space", "sent"]
    columns: Heads = ["by the paper", *(Column(head, "text") for head in heads)]
    analysis = [[method, *costs] for method, costs in published.figures()["cost"].items()]

    def sent(method: str, data: str) -> Cell | None:
        row = find(rows, method=method, data=data)
        if row is None or row.bytes_up is None or row.bytes_down is None:
            return None
        return Cell(f"{row.bytes_up / 1000:.1f} / {row.bytes_down / 1000:.1f}", row.bytes_up)

    about = "Measured: KB up / KB down, for one client and round."
    measured = table_by_data("method", FORMULAS, _data(rows), sent, "low", about=about)
    return [Table.of(columns, analysis), measured, *_whole_training(rows)]


def _whole_training(rows: list[RunRow]) -> list[Table]:
    """A table of the bytes that a device sends and receives from the first round to the last."""
    counted = [row for row in rows if row.total_bytes_up and row.protocol == "sequential"]

    def sent(method: str, data: str) -> Cell | None:
        row = find(counted, method=method, data=data)
        if row is None or row.total_bytes_up is None or row.total_bytes_down is None:
            return None
        up, down = row.total_bytes_up / 1e6, row.total_bytes_down / 1e6
        return Cell(f"{up:.2f} / {down:.0f}", up, f"in {row.rounds} rounds")

    about = (
        "Measured: MB up / MB down, for one device in the whole training, on average over all "
        "devices; `sequential`. Downloads for evaluations are included."
    )
    methods = distinct(counted, "method")
    made = table_by_data("method", methods, _data(counted), sent, "low", about=about)
    return [made] if counted else []


def efficiency_charts(results: Results) -> dict[str, Chart]:
    """Charts of HR@10 against megabytes on a client; a bubble's area is seconds per round."""
    runs = results.default_runs(FORMULAS)
    # A comparison needs several methods.
    rows = [r for r in runs if len(distinct(select(runs, protocol=r.protocol), "method")) > 1]
    title = "Efficiency, protocol {protocol}: area is seconds per round"
    return chart_per_protocol("efficiency", title, rows, _efficiency_panels)


def _efficiency_panels(rows: list[RunRow], source: str) -> list[Panel]:
    slowest = max(row.seconds_per_round for row in rows) or 1.0
    series = []
    for row in rows:
        space = parameter_megabytes(row.method, row.users, row.items)[0]
        area, quality = row.seconds_per_round / slowest, row.mean("hr@10")
        series.append(Series(row.method, row.method, [space], [quality], "points", [area]))
    return [Panel(source, "parameters on a client, MB", "HR@10", tuple(series))]


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
    "size d (16, FedRefit 64, FedNext 128), rank r = 2, s = n / 10. On LastFM-2K the paper's "
    "figures are those of 1,269 clients and 12,322 items, the users with at least 10 rows, not of "
    "the 1,600 and 12,454 it names.",
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
"""Table of the speed-ups that `make bench` measured; it starts no run."""
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
