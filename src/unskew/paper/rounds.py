"""Results by round: convergence of every method, what more rounds buy FedNext, FedMF with
aggregation that starts late or never (the paper's motivation), and paths of user vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from unskew.display import Cell, Chart, Panel, Series, Table
from unskew.methods import METHODS
from unskew.paper.cost import FORMULAS
from unskew.paper.pictures import build_federation, picture_task, pictured_clients, place_in_plane
from unskew.paper.plan import (
    METRICS,
    QUICK_ROUNDS,
    Exhibit,
    Line,
    Plan,
    RunOrTask,
    Task,
    chart_per_protocol,
    table_by_data,
    table_per_protocol,
)
from unskew.paper.rows import (
    CurveRow,
    Record,
    Results,
    RunRow,
    data_place,
    distinct,
    find,
    select,
    sort_by_method,
)
from unskew.paper.variants import STYLE_KEYS, VARIANTS
from unskew.runs import RunSpec
from unskew.types import Float32, Split

CONVERGED_SHARE = 0.95
"""Share of its best NDCG@10 from which on a method counts as converged."""
MOTIVATION_ROUNDS, STANDARD_ROUNDS = 140, 100
"""Rounds of the runs with late or no aggregation, and the usual number of rounds."""
AGGREGATION_STARTS = (0, 1, 20, 50, 100)
"""First round with aggregation in each run of FedMF; 0: never. The paper states no values."""
PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "FedMF w/o GA": ("fedmf", {"aggregate_from": 0}),
    **VARIANTS,
}
"""Method and settings by label, for pictures of user-vector paths. GA: global aggregation."""
BUDGETS = (8, 108, 208, 1000)
"""Numbers of rounds that FedNext is trained for; 8 are its first stage alone."""
QUICK_BUDGETS = (8, 12)
"""The same in a quick run."""
_PATH_KEYS = {
    **STYLE_KEYS,
    "w/ GA (1-)": "fedmf",
    "LT w/o GA": "fedmf alone",
    "FedMF w/o GA": "fedmf alone",
}
"""Key of the chart style by label, so that a method looks the same in every chart."""
Variants = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Method and settings by label."""


def convergence_charts(results: Results) -> dict[str, Chart]:
    """Charts of test metrics by round: one per protocol, a panel per data set and metric."""
    title = "Convergence, protocol {protocol}"
    return chart_per_protocol("convergence", title, _convergence_rows(results), _panels)


def _panels(rows: list[CurveRow], data: str) -> list[Panel]:
    return [
        Panel(
            f"{data}, {title}",
            "round",
            title,
            tuple(curve(row.method, row.method, row.test[metric]) for row in rows),
        )
        for title, metric in METRICS.items()
    ]


def curve(label: str, key: str, values: Sequence[float]) -> Series:
    """A chart line through the values of a metric after every round."""
    return Series(label, key, range(1, len(values) + 1), values)


def convergence_tables(results: Results) -> list[Table]:
    """Tables of the round in which each method converged, one per protocol."""
    return table_per_protocol(_convergence_table, _convergence_rows(results))


def rounds_to(values: Sequence[float]) -> int:
    """Number of the first round with at least ``CONVERGED_SHARE`` of the best round's value."""
    return next(at for at, one in enumerate(values, 1) if one >= CONVERGED_SHARE * max(values))


def _convergence_rows(results: Results) -> list[CurveRow]:
    rows = sort_by_method(results.curves)
    return [row for row in rows if row.method in FORMULAS and not row.settings]


def _convergence_table(rows: list[CurveRow], protocol: str) -> Table:
    def converged(method: str, data: str) -> Cell | None:
        row = find(rows, method=method, data=data)
        if row is None:
            return None
        values = row.test["ndcg@10"]
        return Cell(f"{rounds_to(values)} / {len(values)}", rounds_to(values))

    data = sorted(distinct(rows, "data"), key=data_place)
    return table_by_data("method", distinct(rows, "method"), data, converged, "low")


def budget_cells(plan: Plan) -> list[RunSpec]:
    """Runs of FedNext for several numbers of rounds. Each is a training of its own, because the
    learning rate falls to zero over all its rounds."""
    default = METHODS["fednext"].Config().rounds
    return [
        plan.cell("fednext", source, "sequential", **({"rounds": n} if n != default else {}))
        for source in plan.data or ("ml-1m",)
        for n in (QUICK_BUDGETS if plan.quick else BUDGETS)
    ]


def budget_tables(results: Results) -> list[Table]:
    """A table of FedNext's metrics and its bytes per device, by number of rounds."""
    lines: list[Line] = []
    for row in _budget_rows(results):
        figures = [Cell.over_seeds(row.metrics[metric], 3) for metric in METRICS.values()]
        sent = [Cell.number(size, 1) for size in _megabytes(row)]
        lines.append([row.data, str(row.rounds), *figures, *sent])
    heads = ["data", "rounds", *METRICS, "MB up per device", "MB down per device"]
    return [Table.of(heads, lines)] if lines else []


def budget_charts(results: Results) -> dict[str, Chart]:
    """A chart of FedNext's metrics, by the number of rounds and by the megabytes that a device
    sends."""
    rows, panels = _budget_rows(results), []
    for data in distinct(rows, "data"):
        found = select(rows, data=data)
        sent = [_megabytes(row)[0] for row in found]
        for label, xs in (("rounds", [row.rounds for row in found]), ("MB up per device", sent)):
            lines = [
                Series(title, title, xs, [row.mean(metric) for row in found])
                for title, metric in METRICS.items()
            ]
            panels.append(Panel(data, label, "HR@10, NDCG@10", tuple(lines), from_zero=True))
    return {"budget": Chart("FedNext by the rounds it trains", tuple(panels))} if panels else {}


def _budget_rows(results: Results) -> list[RunRow]:
    """FedNext's runs under ``sequential`` with default settings but for the number of rounds, of
    data sets with several such runs."""
    rows = select(results.runs, method="fednext", protocol="sequential", noise=0.0)
    rows = [row for row in rows if row.settings.keys() <= {"rounds"}]
    rows = [row for row in rows if len(select(rows, data=row.data)) > 1]
    return sorted(rows, key=lambda row: (data_place(row.data), row.rounds))


def _megabytes(row: RunRow) -> tuple[float, float]:
    """Megabytes that a device sends and receives in the whole training."""
    return (row.total_bytes_up or 0.0) / 1e6, (row.total_bytes_down or 0.0) / 1e6


def motivation_cells(plan: Plan) -> list[RunOrTask]:
    """Runs of FedMF that aggregate from various rounds on, and tasks for user-vector paths."""
    rounds = 2 * QUICK_ROUNDS if plan.quick else MOTIVATION_ROUNDS
    starts: Sequence[int] = (0, 1, 4) if plan.quick else AGGREGATION_STARTS
    settings = [{"rounds": rounds, "aggregate_from": start} for start in starts]
    variants = {_label(given["aggregate_from"]): ("fedmf", given) for given in settings}
    cells: list[RunOrTask] = []
    for source, protocol in plan.pairs("filmtrust"):
        cells += [plan.cell("fedmf", source, protocol, **given) for given in settings]
        cells.append(path_task("motivation", source, protocol, plan, variants))
    return cells


def motivation_tables(results: Results) -> list[Table]:
    """A table of FedMF's metrics after ``STANDARD_ROUNDS`` rounds and after the last round, a row
    for each choice of the round in which aggregation begins."""
    lines: list[Line] = []
    for row in _motivation_rows(results):
        at = min(STANDARD_ROUNDS, len(row.test["hr@10"])) - 1
        parts = (row.validation, row.test)
        figures = [Cell.number(part[m][i], 3) for i in (at, -1) for part in parts for m in part]
        lines.append([row.data, row.protocol, _label(row.settings["aggregate_from"]), *figures])
    kinds = [f"{part} {m}" for part in ("validation", "test") for m in METRICS]
    ends = (f"round {STANDARD_ROUNDS}", "last round")
    heads = ["data", "protocol", "FedMF", *(f"{kind}, {end}" for end in ends for kind in kinds)]
    return [Table.of(heads, lines)] if lines else []


def motivation_charts(results: Results) -> dict[str, Chart]:
    """Charts of FedMF's learning curves, one for each round in which aggregation may begin, and of
    user vectors."""
    charts, rows = {}, _motivation_rows(results)
    for data, protocol in dict.fromkeys((row.data, row.protocol) for row in rows):
        found = select(rows, data=data, protocol=protocol)
        panels = [
            Panel(part, "round", title, _start_lines(found, part, metric))
            for part in ("validation", "test")
            for title, metric in METRICS.items()
        ]
        about = f"Aggregation from a later round on, {data}, protocol {protocol}"
        charts[f"motivation-{data}-{protocol}"] = Chart(about, tuple(panels))
    return charts | path_charts("motivation-paths", results.of("motivation"))


def _label(start: int) -> str:
    return "LT w/o GA" if start == 0 else f"w/ GA ({start}-)"


def _motivation_rows(results: Results) -> list[CurveRow]:
    rows = [row for row in results.curves if "aggregate_from" in row.settings]
    return sorted(rows, key=lambda row: row.settings["aggregate_from"])


def _start_lines(rows: Sequence[CurveRow], part: str, metric: str) -> tuple[Series, ...]:
    lines = []
    for row in rows:
        label = _label(row.settings["aggregate_from"])
        lines.append(curve(label, _PATH_KEYS.get(label, label), getattr(row, part)[metric]))
    return tuple(lines)


def path_task(name: str, data: str, protocol: str, plan: Plan, variants: Variants) -> Task:
    """Make a task that trains each variant and stores a few user vectors after every round."""
    methods = tuple(dict.fromkeys(method for method, _ in variants.values()))
    return picture_task(name, data, protocol, plan, methods, partial(_paths, variants))


def _paths(variants: Variants, split: Split, seed: int, quick: bool) -> Record:
    """2-D paths of user vectors over rounds, by one t-SNE per client for all variants together."""
    clients = pictured_clients(split, quick)
    vectors: dict[str, list[Float32]] = {}
    for label, (method, settings) in variants.items():
        federation = build_federation(split, method, settings, seed, quick)
        state = federation.start()
        vectors[label] = [state.devices.take(clients).p]
        for round in range(1, federation.method.config.rounds + 1):
            federation.run(round, state=state)
            vectors[label].append(state.devices.take(clients).p)
    panels = []
    for at, client in enumerate(clients.tolist()):
        paths = {label: [p[at] for p in steps] for label, steps in vectors.items()}
        places = iter(place_in_plane(np.concatenate(list(paths.values())), seed, quick))
        trails = {label: [next(places) for _ in path] for label, path in paths.items()}
        panels.append({"client": client, "trails": trails})
    return {"panels": panels}


def path_charts(name: str, rows: Sequence[Record]) -> dict[str, Chart]:
    """Charts of user-vector paths: one per result row, with a panel per client."""
    return {
        f"{name}-{row['data']}-{row['protocol']}": Chart(
            f"Paths of user vectors (t-SNE), {row['data']}, protocol {row['protocol']}",
            tuple(_path_panel(panel) for panel in row["panels"]),
        )
        for row in rows
    }


def _path_panel(points: Record) -> Panel:
    series = []
    for label, path in points["trails"].items():
        xs, ys = zip(*path, strict=True)
        series.append(Series(label, _PATH_KEYS.get(label, label), xs, ys, "trail"))
    return Panel(f"client {points['client']}", "", "", tuple(series))


def trajectory_tasks(plan: Plan) -> list[Task]:
    """Tasks for the paths of user vectors under every variant of the ablation."""
    return [
        path_task("trajectory", source, protocol, plan, PATHS)
        for source, protocol in plan.pairs("filmtrust")
    ]


CONVERGENCE = Exhibit(
    "convergence",
    "Convergence",
    "The round in which a method first has 95 % of its best test NDCG@10 / the rounds it had.",
    "main",
    lambda plan: plan.default_cells([*FORMULAS]),
    convergence_tables,
    convergence_charts,
    curves=True,
)
BUDGET = Exhibit(
    "budget",
    "What more rounds buy",
    "FedNext trained for several numbers of rounds, `sequential`. The first 8 rounds are its exact "
    "sums alone.",
    "budget",
    budget_cells,
    budget_tables,
    budget_charts,
)
MOTIVATION = Exhibit(
    "motivation",
    "Motivation",
    "FedMF trained locally (LT) with global aggregation (GA) from some round on, or without; HR@10 "
    "and NDCG@10 on validation and test.",
    "motivation",
    motivation_cells,
    motivation_tables,
    motivation_charts,
    curves=True,
)
TRAJECTORY = Exhibit(
    "trajectory",
    "Paths of user vectors",
    "t-SNE of some clients' vectors after every round; the larger mark is the last round. GA: "
    "global aggregation.",
    "trajectory",
    trajectory_tasks,
    charts=lambda results: path_charts("trajectory", results.of("trajectory")),
)
