"""What a figure was measured on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("unskew", "numpy", "numba", "torch")
BUSY = 0.5
"""A load average per core above which figures are not to be trusted."""


def describe() -> dict[str, object]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "versions": {"python": platform.python_version()} | {name: _of(name) for name in PACKAGES},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def busy() -> str | None:
    """A warning if others use the machine, where the system can tell."""
    if not hasattr(os, "getloadavg"):
        return None
    load = os.getloadavg()[0]
    if load < BUSY * (os.cpu_count() or 1):
        return None
    return f"The machine is busy (load average {load:.1f}): wait for it to be idle, or trust less."


def _of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
