"""Every row there is: one line each, a function from a setting to a row."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import c_bound, torch_fedmf, torch_pfedclr
from benchmarks.timing import Row, Setting

ROWS: tuple[Callable[[Setting], Row], ...] = (
    torch_pfedclr.measure,
    torch_fedmf.measure,
    c_bound.measure,
)
