"""pFedGraph's quadratic programmes: projections onto the simplex, against a general solver.

The solver gets what research code gives it: one programme per client, with a dense curvature matrix
and the simplex as linear constraints. A few of the programmes are solved and scaled to all.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import numpy as np

from benchmarks.timing import LeftOut, Row, Setting, take_turns
from unskew.kernels import get_threads
from unskew.kernels.pfedgraph import project_on_simplex
from unskew.methods.pfedgraph import Config, collaboration
from unskew.types import Float64

CLIENTS = 500
LEAST = 1000.0
SOLVED = 5
"""Programmes the general solver is given per lap."""


def measure(setting: Setting) -> Row:
    if importlib.util.find_spec("cvxpy") is None:
        raise LeftOut(
            "pFedGraph's programmes against a general solver are left out: pip install cvxpy"
        )
    split, effort = setting
    config = Config()
    rng = np.random.default_rng(0)
    updates = rng.normal(size=(CLIENTS, split.n_items * config.dim)).astype(np.float32)
    shares = rng.dirichlet(np.ones(CLIENTS))
    d = rng.uniform(-1, 1, (CLIENTS, CLIENTS))
    points = shares - d / (2 * config.evenness)
    exact = project_on_simplex(points)  # compiles
    collaboration(updates, shares, config.evenness)
    worst = 0.0

    def solver() -> float:
        nonlocal worst
        began = time.perf_counter()
        for client in rng.choice(CLIENTS, SOLVED, replace=False):
            x = _solve(d[client], shares, config.evenness)
            worst = max(worst, float(np.abs(x - exact[client]).max()))
        return (time.perf_counter() - began) * CLIENTS / SOLVED

    def ours() -> float:
        return min(_seconds(lambda: project_on_simplex(points)) for _ in range(effort.rounds))

    figures, cores = take_turns(effort.laps, solver, ours)
    whole = _seconds(lambda: collaboration(updates, shares, config.evenness))
    sentence = (
        f"pfedgraph's {CLIENTS} programmes: {figures.ratio:.0f} times as fast as a general "
        f"solver ({figures.ratio_low:.0f} to {figures.ratio_high:.0f}): "
        f"{figures.seconds_against:.1f} s, scaled from {SOLVED} of them, against "
        f"{figures.seconds_unskew * 1000:.1f} ms; weights differ by at most {worst:.0e}; with "
        f"the likeness of {split.data}'s item tables our server takes {whole:.2f} s"
    )
    details = {"clients": CLIENTS, "largest_difference": worst, "with_likeness_seconds": whole}
    name, busy = "pfedgraph programmes", cores < get_threads() / 4
    return Row(name, split.data, "general solver", figures, sentence, LEAST, busy, details)


def _solve(d: Float64, shares: Float64, evenness: float) -> Float64:
    import cvxpy

    n = len(d)
    x: Any = cvxpy.Variable(n)
    curvature = cvxpy.quad_form(x, evenness * np.eye(n))
    aim = cvxpy.Minimize(curvature + (d - 2 * evenness * shares) @ x)
    cvxpy.Problem(aim, [x >= 0, cvxpy.sum(x) == 1]).solve()
    return np.asarray(x.value, np.float64)


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
