"""Reading a file of interactions against polars reading the same columns of it, and preparing the
split. The file is generated (`unskew data make`); each lap of a side is a process of its own, so
that its peak memory can be told. The ratio is a price, so the bar is the most it may be."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import machine
from benchmarks.noisy_round import Price
from benchmarks.timing import Effort, Row, take_turns
from unskew import data

MOST = 3.0
"""Reading may take this many times as long as polars takes."""
LARGE_ROWS = 10_000_000
"""Rows from which the bar counts; starting the process that checks a Parquet file for damage takes
longer than reading a small one."""
ROWS_PER_USER, ROWS_PER_ITEM = 50, 1_000
"""Rows of the generated file per user and per item; 50 million make 10^6 users and 50,000 items."""
_CLOCK = """
import json, sys, time
path = sys.argv[1]
def peak():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
"""
_POLARS = (
    _CLOCK
    + """
import polars as pl
before, began = peak(), time.perf_counter()
frame = (pl.read_parquet if path.endswith("parquet") else pl.read_csv)(path)
seconds = time.perf_counter() - began
print(json.dumps({"read": seconds, "bytes": frame.estimated_size(), "peak": peak() - before}))
"""
)
_UNSKEW = (
    _CLOCK
    + """
from unskew import data
from unskew.evaluation import prepare
few = [(user, item, 1, user + item) for user in range(9) for item in range(user % 3, 9)]
prepare(data.load(few))  # loads the compiled kernels
before, began = peak(), time.perf_counter()
interactions = data.load(path)
read, reading = time.perf_counter() - began, peak() - before
prepare(interactions)
preparing = time.perf_counter() - began - read
peaks = {"peak": reading, "peak_prepared": peak() - before}
print(json.dumps({"read": read, "prepare": preparing, **peaks}))
"""
)


def measure(kind: str, effort: Effort, rows: int) -> Row:
    """The price of reading a generated file of this kind ("csv" or "parquet")."""
    users, items = max(rows // ROWS_PER_USER, 1), max(rows // ROWS_PER_ITEM, 100)
    with tempfile.TemporaryDirectory() as folder:
        path = data.generate(Path(folder) / f"made.{kind}", users, items, rows)
        theirs, ours = [], []

        def seconds(code: str, laps: list[dict[str, float]]) -> float:
            laps.append(_run(code, path))
            return laps[-1]["read"]

        figures, _ = take_turns(
            effort.laps, lambda: seconds(_POLARS, theirs), lambda: seconds(_UNSKEW, ours)
        )
    prices = (1 / figures.ratio, 1 / figures.ratio_high, 1 / figures.ratio_low)
    figures = figures._replace(ratio=prices[0], ratio_low=prices[1], ratio_high=prices[2])
    size = theirs[0]["bytes"]
    details = {
        "users": users,
        "items": items,
        "rows": rows,
        "prepare_seconds": median(lap["prepare"] for lap in ours),
        "frame_bytes": size,
        "peak_bytes_per_frame_byte": max(lap["peak"] for lap in ours) / size,
        "peak_bytes_per_frame_byte_prepared": max(lap["peak_prepared"] for lap in ours) / size,
        "polars_peak_bytes_per_frame_byte": max(lap["peak"] for lap in theirs) / size,
    }
    sentence = (
        f"reading {rows:,} rows of {kind}: {figures.ratio:.2f} times as long as polars "
        f"({figures.ratio_low:.2f} to {figures.ratio_high:.2f}), {figures.seconds_unskew:.2f} s; "
        f"preparing the split {details['prepare_seconds']:.2f} s; peak memory "
        f"{details['peak_bytes_per_frame_byte']:.1f} times the frame's size, "
        f"{details['peak_bytes_per_frame_byte_prepared']:.1f} times with the split"
    )
    busy = machine.busy() is not None
    made = f"{users:,} × {items:,}"
    bar = MOST if rows >= LARGE_ROWS else None
    return Price(f"read {kind}", made, "polars", figures, sentence, bar, busy, details)


def _run(code: str, path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True, check=True
    )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
