"""How much of a straightforward C kernel's bound Step 1 of PFedCLR reaches.

``adam_rows.c`` is compiled here and timed on one core, on as many rows as a client of the round
typically touches. A round's row-steps are the sum over its clients of touched rows x batches per
epoch x epochs; times the C kernel's nanoseconds, shared among the cores, they are the least time a
kernel of that kind needs for the optimiser alone. Ours does the rest of Step 1 as well (shuffling,
logits, logistic gradients) and is timed without early stopping, so that both count the same steps.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import LeftOut, Row, Setting, take_turns
from unskew.engine import MAX_CHUNK_CLIENTS, Federation
from unskew.kernels import Training, draw_samples, get_threads, train_rows
from unskew.methods import create
from unskew.rng import Purpose

FLAGS = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC")
SOURCE = Path(__file__).with_name("adam_rows.c")
DIM = 16


def compiled(folder: str) -> Any:
    """The C function, compiled for this machine."""
    names = (os.environ.get("CC", ""), "gcc", "cc", "clang")
    compiler = next((found for name in names if (found := shutil.which(name))), None)
    if compiler is None:
        raise LeftOut("C bound left out: there is no C compiler here; install gcc or set $CC")
    library = Path(folder) / "adam_rows.so"
    command = [compiler, *FLAGS, str(SOURCE), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = (done.stderr.strip() or "no message").splitlines()[0]
        raise LeftOut(f"C bound left out: {compiler} cannot compile {SOURCE.name} ({first})")
    function = ctypes.CDLL(str(library)).adam_rows
    pointers = [np.ctypeslib.ndpointer(np.float32, flags="C")] * 5
    function.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_float, *pointers]
    function.restype = None
    return function


class Straightforward:
    """The C kernel on a working set of ``n`` rows."""

    def __init__(self, function: Any, n: int, seconds: float) -> None:
        rng = np.random.default_rng(0)
        self.function, self.n, self.steps = function, n, 16
        self.p = rng.standard_normal(DIM, np.float32)
        self.g = rng.standard_normal(n, np.float32) / np.float32(256)
        self.q = rng.standard_normal((n, DIM), np.float32)
        while (took := self._seconds()) < seconds:
            self.steps *= max(2, round(seconds / max(took, seconds / 16)))

    def _seconds(self) -> float:
        m, v = np.zeros_like(self.q), np.zeros_like(self.q)
        began = time.perf_counter()
        self.function(self.n, self.steps, 0.01, self.p, self.g, self.q.copy(), m, v)
        return time.perf_counter() - began

    def row_step(self, repeats: int) -> float:
        """Seconds per row-step: the best of some repeats, since a bound has no noise in it."""
        return min(self._seconds() for _ in range(repeats)) / (self.steps * self.n)


class StepOne:
    """Our Step 1 kernel on the clients of a round, chunk by chunk as the engine plays them."""

    def __init__(self, federation: Federation) -> None:
        method = federation.method
        config: Any = method.config
        schedule, self.rate = config.schedule._replace(tolerance=0.0), config.learning_rate
        server, private = method.init(federation.split.n_users, federation.split.n_items, 0)
        users = federation.cohort_of(1)
        self.Q, self.chunks, work, touched = server.Q, [], [], []
        for low in range(0, len(users), MAX_CHUNK_CLIENTS):
            chunk = users[low : low + MAX_CHUNK_CLIENTS]
            cohort = federation.cohort(chunk, 1)
            samples = draw_samples(cohort, config.negatives)
            step = Training(cohort, samples, schedule, Purpose.SHUFFLE_LOCAL)
            self.chunks.append((step, private.p[chunk]))
            batches = -(-samples.counts() // config.batch) * config.local_epochs
            touched.append(samples.touched.counts())
            work.append(touched[-1] * batches)
        self.row_steps = int(np.concatenate(work).sum())
        self.typical_rows = int(np.average(np.concatenate(touched), weights=np.concatenate(work)))

    def seconds(self) -> float:
        spent = 0.0
        for step, p in self.chunks:
            rows = self.Q[step.samples.touched.items]
            began = time.perf_counter()
            step.run(train_rows, p, rows, self.rate)
            spent += time.perf_counter() - began
        return spent


def measure(setting: Setting) -> Row:
    split, effort = setting
    threads = get_threads()
    with tempfile.TemporaryDirectory() as folder:
        function = compiled(folder)
        ours = StepOne(Federation(create("pfedclr"), split, seed=0))
        ours.seconds()  # the first call compiles
        straight = Straightforward(function, ours.typical_rows, effort.seconds / 250)
        figures, cores = take_turns(
            effort.laps,
            lambda: straight.row_step(effort.rounds) * ours.row_steps / threads,
            lambda: min(ours.seconds() for _ in range(effort.rounds)),
        )
    bound = figures.seconds_against
    nanoseconds = bound * threads / ours.row_steps * 1e9
    sentence = (
        f"pfedclr's Step 1 kernel on {split.data}: {figures.ratio:.0%} of the C bound "
        f"({figures.ratio_low:.0%} to {figures.ratio_high:.0%}): straightforward C needs "
        f"{nanoseconds:.1f} ns per row-step on one core, so {bound:.3f} s for the round's "
        f"{ours.row_steps / 1e6:.1f} M on {threads}; all of our Step 1 takes "
        f"{figures.seconds_unskew:.3f} s (with a frozen user the moments are two scalars a row, "
        f"which that C does not use, so more than 100% is possible)"
    )
    details = {
        "row_steps": ours.row_steps,
        "rows_in_c": ours.typical_rows,
        "nanoseconds_per_row_step": nanoseconds,
        "threads": threads,
        "unskew_cores_used": cores,
    }
    name = "pfedclr step 1 kernel"
    return Row(name, split.data, "C bound", figures, sentence, details=details)
