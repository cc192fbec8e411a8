"""What local differential privacy costs: a round with Laplace noise on every client's whole table,
against the same round without. The ratio is a price, so the bar is the most it may be."""

from __future__ import annotations

import resource
from dataclasses import dataclass

from benchmarks.timing import Row, Setting, take_turns
from unskew.engine import Federation
from unskew.kernels import get_threads
from unskew.methods import create
from unskew.privacy import Mechanism, PrivateUploads

MOST = 4.0
"""A noisy round may take this many times a plain one."""
NOISE = 0.5


@dataclass(frozen=True)
class Price(Row):
    """A row whose ratio should be at most its bar."""

    @property
    def passed(self) -> bool | None:
        return None if self.bar is None or self.disturbed else self.figures.ratio <= self.bar

    @property
    def verdict(self) -> str:
        if self.disturbed:
            return "not judged: cores were busy"
        if self.bar is None:
            return ""
        return f"at most {self.bar:g}: {'pass' if self.passed else 'FAIL'}"


def measure(setting: Setting) -> Row:
    split, effort = setting
    method = create("pfedclr")
    transforms = {"plain": None, "noisy": PrivateUploads(Mechanism(NOISE))}
    playing = {}
    for name, transform in transforms.items():
        federation = Federation(method, split, seed=0, transform=transform)
        playing[name] = (federation, federation.start())
        federation.step(playing[name][1])  # the first round compiles

    def seconds(name: str) -> float:
        federation, state = playing[name]
        rows = [federation.step(state) for _ in range(effort.rounds)]
        transform = transforms[name]
        if transform is not None:
            transform.round_figures()
        return min(row["seconds"] for row in rows)

    figures, cores = take_turns(effort.laps, lambda: seconds("noisy"), lambda: seconds("plain"))
    entries = split.n_items * method.config.dim * len(playing["plain"][0].cohort_of(1))
    sentence = (
        f"pfedclr on {split.data} with Laplace noise on every client's whole table: "
        f"{figures.ratio:.2f} times a round without ({figures.ratio_low:.2f} to "
        f"{figures.ratio_high:.2f}), {entries / 1e6:.0f} M values a round"
    )
    details = {
        "values_per_round": entries,
        "unskew_cores_used": cores,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
    }
    name, busy = "pfedclr noisy round", cores < get_threads() / 2
    return Price(name, split.data, "noise", figures, sentence, MOST, busy, details)
