"""The paper's tables on local differential privacy: their cells, and our figures beside its."""

from __future__ import annotations

from typing import Any

import pytest

from unskew.experiments import missing
from unskew.experiments._ldp import TABLES, ldp_cells, ldp_table, noise_of, published
from unskew.methods import METHODS
from unskew.types import UnskewError


def row(method: str, data: str, protocol: str, noise: float, hr: float) -> dict[str, Any]:
    figures = {
        name: {"mean": value, "std": 0.0, "values": [value]}
        for name, value in (("hr@10", hr), ("ndcg@10", hr / 2))
    }
    private = {"privacy": {"noise": noise}} if noise else {}
    return {
        "method": method,
        "data": data,
        "protocol": protocol,
        "seeds": [0],
        "metrics": figures,
        **private,
    }


def test_a_table_is_a_list_of_different_commands() -> None:
    for table in TABLES:
        cells = ldp_cells(table, ("filmtrust", "ml-100k"), seeds=(0, 1))
        commands = [cell.command for cell in cells]
        assert len(set(commands)) == len(commands)
        assert all("--seeds 0,1" in command for command in commands)
        assert missing(cells, [{"command": commands[0], "seeds": [0, 1]}]) == cells[1:]
    beside = ldp_cells("ldp-noise", ("ml-1m",), ("paper",))
    assert [cell.method for cell in beside] == ["pfedclr"] * 7 + ["fedrefit"] * 7
    compared = {cell.method for cell in ldp_cells("ldp-methods", ("ml-100k",), ("paper",))}
    assert compared <= set(METHODS)
    assert len(compared) == 8


def test_noise_is_an_option_and_settings_stay_settings() -> None:
    cells = ldp_cells("ldp", ("ml-100k",), ("paper",), (0,), settings={"pfedclr": {"rank": 3}})
    plain, noisy = (cell.command for cell in cells if cell.method == "pfedclr")
    assert "--ldp-noise" not in plain
    assert noisy.endswith("--set=rank=3 --ldp-noise=0.5")


def test_the_papers_figures() -> None:
    assert published("pfedclr", "filmtrust", 0.5) == (0.9122, 0.7741)
    assert published("pfedclr", "lastfm-2k", 1.0) == (0.7155, 0.6509)
    assert published("fedrap", "ml-100k", 0.5) == (0.8441, 0.7115)
    assert published("fedrap", "ml-100k", 0.2) is None
    assert published("fedmf", "filmtrust", 0.0) is None
    for data in ("ml-100k",):
        assert published("pfedclr", data, 0.0) == (0.9989, 0.9225), "both tables agree"


def test_tables_hold_ours_and_the_papers_where_they_can_be_compared() -> None:
    rows = [
        row("pfedclr", "ml-100k", protocol, noise, hr)
        for protocol, noise, hr in (
            ("paper", 0.0, 0.99),
            ("paper", 0.5, 0.98),
            ("leak-free", 0.0, 0.2),
            ("leak-free", 0.5, 0.1),
        )
    ]
    text = ldp_table(rows, "ldp")
    paper, honest = text.split("Protocol `leak-free`")
    assert "0.9900 (0.9989)" in paper
    assert "-1.01% (-0.10%)" in paper
    assert "| 0.2000 | 0.1000 | -50.00% |" in honest
    by_strength = ldp_table(rows, "ldp-noise")
    assert "0.9800 (0.9979)" in by_strength
    assert "– (0.9968)" in by_strength, "a cell that has not been run shows the paper's alone"
    assert noise_of(rows[1]) == 0.5


def test_an_unknown_table_is_named() -> None:
    with pytest.raises(UnskewError, match="ldp-methods"):
        ldp_cells("ldp-data")
