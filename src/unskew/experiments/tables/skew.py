"""The paper's theory, measured: the skew of user vectors, its lemmas, and what Step 2 removes."""

from __future__ import annotations

from pathlib import Path

from unskew.audit.skew import VARIANTS, audit_skew, skew_command
from unskew.audit.skew_words import findings, skew_table
from unskew.data import load
from unskew.experiments.tables._chart import Chart, Panel, Series
from unskew.experiments.tables._plan import (
    QUICK_ROUNDS,
    Plan,
    Row,
    Stores,
    Table,
    Task,
    by_data,
    distinct,
    having,
)

_ROUNDS, _CLIENTS = 15, 100
_KEYS = {"af": "fedmf-af", "cf": "fedmf-cf", "clr": "pfedclr"}
"""Variants that look like the method they are."""
_MEASURES = {
    "skew_of_pull": "skew a vector would meet",
    "left_of_pull": "skew left after Step 2",
}


def tasks(plan: Plan) -> list[Task]:
    rounds, clients = (QUICK_ROUNDS, 20) if plan.quick else (_ROUNDS, _CLIENTS)
    return [
        _task(name, source, protocol, rounds, clients, plan.seeds[0])
        for source in plan.sources("filmtrust")
        for protocol in plan.protocols
        for name in VARIANTS
    ]


def _task(name: str, data: str, protocol: str, rounds: int, clients: int, seed: int) -> Task:
    def run(data_dir: Path | None) -> Row:
        return audit_skew(
            name,
            data,
            load(data, data_dir=data_dir),
            protocol=protocol,
            rounds=rounds,
            clients=clients,
            seed=seed,
        )

    command = skew_command(name, data, protocol, rounds, clients, seed)
    return Task(command, (VARIANTS[name][0],), run)


def markdown(stores: Stores) -> str:
    """A table per data set and protocol, and under it what it says, variant by variant."""
    sections = []
    for (data, protocol), rows in _groups(stores).items():
        told = [
            f"* **{row['variant']}**: {' '.join(findings(row))}"
            for row in rows
            if row["variant"] in ("clr", "fedrefit")
        ]
        head = f"{data}, protocol `{protocol}`, {len(rows[0]['by_round'])} rounds"
        sections.append(f"{head}\n\n{skew_table(rows)}\n\n" + "\n".join(told))
    return "\n\n".join(sections)


def charts(stores: Stores) -> dict[str, Chart]:
    made = {}
    for (data, protocol), rows in _groups(stores).items():
        panels = [
            Panel(title, "round", "share of the gradient's pull", _lines(rows, measure))
            for measure, title in _MEASURES.items()
        ]
        title = f"Skew of user vectors, {data}, protocol {protocol}"
        made[f"skew-{data}-{protocol}"] = Chart(title, tuple(panels))
    return made


def _groups(stores: Stores) -> dict[tuple[str, str], list[Row]]:
    rows = by_data(stores["skew"])
    groups = {
        (data, protocol): having(rows, data=data, protocol=protocol)
        for protocol in distinct(rows, "protocol")
        for data in distinct(rows, "data")
    }
    return {where: found for where, found in groups.items() if found}


def _lines(rows: list[Row], measure: str) -> tuple[Series, ...]:
    lines = []
    for row in rows:
        rounds = [line["round"] for line in row["by_round"]]
        values = [line[measure] for line in row["by_round"]]
        key = _KEYS.get(row["variant"]) or str(row["method"])
        lines.append(Series(row["variant"], key, rounds, values))
    return tuple(lines)


TABLE = Table(
    "skew",
    "The skew of user vectors, measured",
    "How far the gradient of a user's vector on the server's items is from that on its own, and "
    "what of it is left once Step 2 has answered; the paper's formulas and lemmas beside it. "
    "Medians over clients and rounds.",
    "skew",
    tasks,
    markdown,
    charts,
)
