"""Every row there is, by name: a function from a setting to a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks import (
    c_bound,
    noisy_round,
    pfedgraph_programmes,
    reading,
    torch_adapter,
    torch_fedmf,
    torch_fedncf,
    torch_fedrap,
    torch_gpfedrec,
    torch_pfedclr,
    torch_pfedrec,
)
from benchmarks.timing import Effort, Row, Setting
from benchmarks.torch_loop import measure

TWINS = (
    torch_pfedclr.TWIN,
    torch_fedmf.TWIN,
    torch_fedncf.TWIN,
    torch_fedmf.PFEDGRAPH,
    torch_gpfedrec.TWIN,
    torch_pfedrec.TWIN,
    torch_fedrap.TWIN,
)
ROWS: dict[str, Callable[[Setting], Row]] = {
    **{f"torch_{twin.name}": partial(measure, twin) for twin in TWINS},
    **{
        f"adapter_{name.lower()}": partial(torch_adapter.measure, name)
        for name in torch_adapter.METHODS
    },
    "c_bound": c_bound.measure,
    "noisy_round": noisy_round.measure,
    "pfedgraph_programmes": pfedgraph_programmes.measure,
}
"""What `make bench` measures on every data set."""
MADE_ROWS: dict[str, Callable[[Effort, int], Row]] = {
    "read_csv": partial(reading.measure, "csv"),
    "read_parquet": partial(reading.measure, "parquet"),
}
"""What `make bench` measures once, on generated data with a number of rows."""
