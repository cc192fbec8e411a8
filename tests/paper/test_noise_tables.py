"""The paper's tables on local differential privacy: their cells, and our figures beside its."""

from __future__ import annotations

from typing import Any

import pytest
from paper_samples import run_row

from unskew.display import to_markdown
from unskew.methods import METHODS
from unskew.paper import EXHIBITS, Plan, Results, missing_cells
from unskew.paper.plan import command_of
from unskew.paper.published import quality_under_noise
from unskew.runs import RunSpec

NAMES = ("ldp", "ldp-methods", "ldp-noise")


def row(protocol: str, noise: float, hr: float) -> dict[str, Any]:
    return run_row("pfedclr", hr, "ml-100k", protocol, noise=noise)


def cells(name: str, *data: str, protocols: tuple[str, ...] = ("paper",)) -> list[RunSpec]:
    found = EXHIBITS[name].cells(Plan(data, protocols, seeds=(0,)))
    return [cell for cell in found if isinstance(cell, RunSpec)]


def test_a_row_is_the_row_of_one_cell_only() -> None:
    for name in NAMES:
        wanted = cells(name, "filmtrust", "ml-100k", protocols=("paper", "leak-free"))
        assert len({command_of(cell) for cell in wanted}) == len(wanted)
        for noise in (0.0, 0.5):
            left = missing_cells(wanted, [row("paper", noise, 0.5)])
            assert len(left) == len(wanted) - 1
            gone = next(cell for cell in wanted if cell not in left)
            assert (gone.ldp.noise if gone.ldp else 0.0) == noise


def test_every_table_has_its_methods_and_strengths() -> None:
    beside = [cell.method for cell in cells("ldp-noise", "ml-1m")]
    assert beside == ["pfedclr"] * 7 + ["fedrefit"] * 7
    compared = {cell.method for cell in cells("ldp-methods", "ml-100k")}
    assert compared <= set(METHODS)
    assert len(compared) == 8
    plain, noisy = (command_of(cell) for cell in cells("ldp", "ml-100k")[:2])
    assert "--ldp-noise" not in plain
    assert noisy == f"{plain} --ldp-noise=0.5"


@pytest.mark.parametrize(
    ("method", "data", "strength", "printed"),
    [
        ("pfedclr", "filmtrust", 0.5, (0.9122, 0.7741)),
        ("pfedclr", "lastfm-2k", 1.0, (0.7155, 0.6509)),
        ("pfedclr", "ml-100k", 0.0, (0.9989, 0.9225)),
        ("fedrap", "ml-100k", 0.5, (0.8441, 0.7115)),
        ("fedrap", "ml-100k", 0.2, None),
        ("fedmf", "filmtrust", 0.0, None),
    ],
)
def test_the_papers_figures(
    method: str, data: str, strength: float, printed: tuple[float, float] | None
) -> None:
    assert quality_under_noise(method, data, strength) == printed


def test_tables_hold_ours_and_the_papers_where_they_can_be_compared() -> None:
    rows = [
        row(protocol, noise, hr)
        for protocol, noise, hr in (
            ("paper", 0.0, 0.99),
            ("paper", 0.5, 0.98),
            ("leak-free", 0.0, 0.2),
            ("leak-free", 0.5, 0.1),
        )
    ]
    results = Results.from_records({"ldp": rows})
    paper, honest = (to_markdown(table) for table in EXHIBITS["ldp"].tables(results))
    assert "0.9900 (0.9989)" in paper
    assert "-1.01% (-0.10%)" in paper
    assert "| 0.2000 | 0.1000 | -50.00% |" in honest
    by_strength = to_markdown(EXHIBITS["ldp-noise"].tables(results)[0])
    assert "0.9800 (0.9979)" in by_strength
    assert "– (0.9968)" in by_strength, "a cell that has not been run shows the paper's alone"
