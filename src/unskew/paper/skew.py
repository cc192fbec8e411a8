"""Tables and charts of user-vector skew, before and after PFedCLR's calibration (Step 2)."""

from __future__ import annotations

from unskew.audit import VARIANTS, SkewSpec, audit_skew, findings, skew_table
from unskew.data import load
from unskew.display import Chart, Panel, Series, Table
from unskew.paper.plan import QUICK_ROUNDS, Exhibit, Places, Plan, Task
from unskew.paper.rows import Record, Results

ROUNDS, CLIENTS = 15, 100
"""Number of rounds trained and maximum number of clients measured."""
QUICK_CLIENTS = 20
"""Maximum number of clients measured in a quick run."""
_STYLE_KEYS = {"af": "fedmf-af", "cf": "fedmf-cf", "clr": "pfedclr"}
"""Key of the chart style by variant: the paper's ablations AF and CF, and PFedCLR (CLR)."""
_MEASURES = {
    "skew_of_pull": "skew a vector would meet",
    "left_of_pull": "skew left after Step 2",
}
"""Panel titles by the key of the measure in a result row. Step 2: PFedCLR's calibration."""


def skew_tasks(plan: Plan) -> list[Task]:
    """Tasks that measure the user-vector skew of every method variant."""
    rounds, clients = (QUICK_ROUNDS, QUICK_CLIENTS) if plan.quick else (ROUNDS, CLIENTS)
    return [
        _task(SkewSpec(name, source, protocol, rounds, clients, plan.seeds[0]))
        for source, protocol in plan.pairs("filmtrust")
        for name in VARIANTS
    ]


def _task(spec: SkewSpec) -> Task:
    def make(places: Places) -> Record:
        return audit_skew(spec, load(spec.data, data_dir=places.data_dir))

    return Task(spec.command, (VARIANTS[spec.variant].method,), make)


def skew_tables(results: Results) -> list[Table]:
    """Tables of skew by data set and protocol, with sentences about PFedCLR and FedRefit."""
    tables = []
    for (data, protocol), rows in results.by_pair("skew").items():
        notes = [
            f"**{row['variant']}**: {' '.join(findings(row))}"
            for row in rows
            if row["variant"] in ("clr", "fedrefit")
        ]
        title = f"{data}, protocol `{protocol}`, {len(rows[0]['by_round'])} rounds"
        tables.append(skew_table(rows)._replace(title=title, notes=tuple(notes)))
    return tables


def skew_charts(results: Results) -> dict[str, Chart]:
    """Charts of the skew by round, before and after PFedCLR's calibration (Step 2)."""
    charts = {}
    for (data, protocol), rows in results.by_pair("skew").items():
        panels = [
            Panel(title, "round", "share of the gradient's pull", _lines(rows, measure))
            for measure, title in _MEASURES.items()
        ]
        title = f"Skew of user vectors, {data}, protocol {protocol}"
        charts[f"skew-{data}-{protocol}"] = Chart(title, tuple(panels))
    return charts


def _lines(rows: list[Record], measure: str) -> tuple[Series, ...]:
    lines = []
    for row in rows:
        rounds = [line["round"] for line in row["by_round"]]
        values = [line[measure] for line in row["by_round"]]
        key = _STYLE_KEYS.get(row["variant"]) or str(row["method"])
        lines.append(Series(row["variant"], key, rounds, values))
    return tuple(lines)


SKEW = Exhibit(
    "skew",
    "The skew of user vectors, measured",
    "How far the gradient of a user's vector on the server's items is from that on its own, and "
    "what of it is left after Step 2; the paper's formulas and lemmas beside it. Medians over "
    "clients and rounds.",
    "skew",
    skew_tasks,
    skew_tables,
    skew_charts,
)
