"""Where the benchmark's data sets are. Nothing is downloaded here."""

from __future__ import annotations

import os
from pathlib import Path

from unskew import data
from unskew.data import cache_folder
from unskew.evaluation import prepare
from unskew.types import Split

DEFAULT = ("demo", "ml-100k", "ml-1m")
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"
"""A folder beside the checkout, looked into where $UNSKEW_DATA is not set."""


def data_folder() -> Path:
    """$UNSKEW_DATA, or the folder beside the checkout."""
    return Path(os.environ.get("UNSKEW_DATA") or BESIDE).expanduser()


def load(name: str) -> Split | None:
    """The data set as the literature splits it, or None where it is not on this machine."""
    root = data_folder()
    here = name == "demo" or (root / name).is_dir() or cache_folder(name).is_dir()
    return prepare(data.load(name, data_dir=root), "paper") if here else None


def how_to_get(name: str) -> str:
    return (
        f"{name} left out: it is not on this machine; put it into $UNSKEW_DATA/{name}, or fetch it "
        f"with: python -c \"from unskew import data; data.fetch('{name}')\""
    )
