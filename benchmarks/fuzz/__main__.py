"""Play cases of all kinds, print what came of them, and how to replay each failure."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.fuzz import deploy_settings, devices, messages, run_folders, run_settings, tables
from benchmarks.fuzz.cases import Kind

KINDS: dict[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        run_settings.RunSettings,
        deploy_settings.DeploySettings,
        tables.Tables,
        run_folders.RunFolders,
        devices.Devices,
        messages.Messages,
    )
}
MAX_SECONDS_OF_CASE = 60
"""A case that takes more of the processors' time is a failure."""
SECONDS_BETWEEN_LINES = 20.0
"""Time between two lines of progress."""


class TooSlow(BaseException):
    """A case takes too long; not an Exception, which the code in question might handle."""


class Tally:
    """What came of the cases of one kind."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """Failures by the place in the code that they come from."""


def main() -> int:
    options = _parse()
    if options.replay:
        name, run, number = options.replay.split(":")
        with tempfile.TemporaryDirectory(prefix="unskew-fuzz-") as folder:
            kind = KINDS[name](Path(folder))
            try:
                told = kind.case(int(run), int(number))
                print(*kind.about, f"refused: {told}" if told else "accepted", sep="\n")
            except BaseException:
                print(*kind.about, sep="\n")
                raise
        return 0
    chosen = options.only or list(KINDS)
    whole, tallies = sum(KINDS[name].share for name in chosen), {}
    with tempfile.TemporaryDirectory(prefix="unskew-fuzz-") as folder:
        for name in chosen:
            n = max(1, round(options.cases * KINDS[name].share / whole))
            tallies[name] = play(
                KINDS[name], Path(folder), options.seed, n, options.seconds / len(chosen)
            )
    print(f"\n{'kind':<18}{'cases':>8}{'accepted':>10}{'refused':>9}{'failed':>8}")
    total: Counter[str] = Counter()
    for name, tally in [*tallies.items(), ("all", None)]:
        counts = total if tally is None else tally.counts
        figures = (counts[key] for key in ("accepted", "refused", "failed"))
        print(f"{name:<18}{counts.total():>8,}" + "{:>10,}{:>9,}{:>8,}".format(*figures))
        total.update(counts)
    return 1 if total["failed"] else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="number of cases of all kinds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(KINDS), help="may be repeated")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this time")
    parser.add_argument("--replay", metavar="KIND:SEED:NUMBER", help="play a single case")
    return parser.parse_args()


def play(kind: type[Kind], folder: Path, seed: int, n: int, seconds: float) -> Tally:
    """Play ``n`` cases of a kind, but for no longer than ``seconds``, and print failures."""
    prepared, tally = kind(folder), Tally()
    began = last = time.monotonic()
    for number in range(n):
        if time.monotonic() - began > seconds:
            print(f"{kind.name}: stopped after {number:,} of {n:,} cases, as time is over")
            break
        try:
            with _time_limit():
                told = prepared.case(seed, number)
            tally.counts["accepted" if told is None else "refused"] += 1
        except (Exception, TooSlow) as error:
            tally.counts["failed"] += 1
            where = _origin(error)
            tally.failures[where] += 1
            if tally.failures[where] == 1:
                about = " | ".join(prepared.about)
                print(f"\nFAILED {where}\n  {about[:1500]}")
                print(f"  {type(error).__name__}: {str(error)[:700]}")
                print(
                    f"  python -m benchmarks.fuzz --replay {kind.name}:{seed}:{number}", flush=True
                )
        if time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"{kind.name}: {number + 1:,} of {n:,} cases, {dict(tally.counts)}", flush=True)
    for where, times in tally.failures.items():
        print(f"{kind.name}: {times:,} times {where}")
    print(
        f"{kind.name}: {tally.counts.total():,} cases in {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return tally


@contextmanager
def _time_limit() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TooSlow(f"more than {MAX_SECONDS_OF_CASE} seconds")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS_OF_CASE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _origin(error: BaseException) -> str:
    """The kind of an error, and the last place in the package that it passed through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/unskew/" in frame.filename] or list(frames)
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    words = str(error).partition(":")[0][:60]
    return f"{type(error).__name__} {place} {words}"


if __name__ == "__main__":
    sys.exit(main())
