"""Every row there is: one line each, a function from a setting to a row."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import (
    c_bound,
    noisy_round,
    pfedgraph_programmes,
    torch_fedmf,
    torch_fedncf,
    torch_fedrap,
    torch_gpfedrec,
    torch_pfedclr,
    torch_pfedgraph,
    torch_pfedrec,
)
from benchmarks.timing import Row, Setting

ROWS: tuple[Callable[[Setting], Row], ...] = (
    torch_pfedclr.measure,
    torch_fedmf.measure,
    torch_fedncf.measure,
    torch_pfedgraph.measure,
    torch_gpfedrec.measure,
    torch_pfedrec.measure,
    torch_fedrap.measure,
    c_bound.measure,
    noisy_round.measure,
    pfedgraph_programmes.measure,
)
"""What `make bench` measures."""
