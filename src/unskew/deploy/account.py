"""Privacy account of a device: how many uploads each user has sent, and with which noise.

An upload is counted before it is sent, so a crash can count one twice but never miss one. Uploads
without a mechanism of :mod:`unskew.privacy` are counted too: one of them voids the guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unskew.engine import Transform
from unskew.files import read_json, write_json
from unskew.privacy import DELTA, Mechanism, PrivateUploads, Shape, local_epsilon, sensitivity
from unskew.types import Bool, UnskewError

FORMAT, VERSION = "unskew-device-privacy", 1
"""Format name and version in ``privacy.json``, checked when the file is read."""


def record_uploads(folder: Path, transform: Transform | None, sent: Bool) -> None:
    """Add one upload to the count of each user for whom ``sent`` is true, in ``privacy.json``."""
    if not sent.any():
        return
    mechanism, shape = None, Shape(0, 0, 0)
    if isinstance(transform, PrivateUploads) and transform.shape is not None:
        mechanism, shape = asdict(transform.mechanism), transform.shape
    entries = _read_entries(folder)
    same = [entry for entry in entries if entry["mechanism"] == mechanism]
    if not same:
        same = [{"mechanism": mechanism, "shape": list(shape), "uploads": [0] * len(sent)}]
        entries += same
    # A method may send more in some rounds than in others; the largest upload counts.
    if shape.entries > Shape(*same[0]["shape"]).entries:
        same[0]["shape"] = list(shape)
    same[0]["uploads"] = (np.array(same[0]["uploads"]) + sent).tolist()
    write_json(folder / "privacy.json", {"format": FORMAT, "version": VERSION, "sent": entries})


def privacy_guarantee(folder: Path) -> dict[str, Any]:
    """A node's privacy guarantee so far: whether it holds, epsilon and delta, and a sentence."""
    entries = _read_entries(folder)
    uploads = sum(sum(entry["uploads"]) for entry in entries)
    if not uploads:
        return {"holds": True, "epsilon": 0.0, "delta": 0.0, "statement": "nothing was sent yet"}
    bare = sum(sum(entry["uploads"]) for entry in entries if not _protects(entry["mechanism"]))
    if bare:
        statement = (
            f"no guarantee: {bare:,} of {uploads:,} uploads had no noise or were not clipped"
        )
        return {"holds": False, "statement": statement}
    try:
        # The epsilons and deltas of different mechanisms add up.
        epsilon = sum(_epsilon(entry) for entry in entries)
    except UnskewError as error:
        return {"holds": True, "statement": f"not computed: {error}"}
    delta, most = DELTA * len(entries), max(max(entry["uploads"]) for entry in entries)
    statement = (
        f"({epsilon:.3g}, {delta:g})-local differential privacy after at most {most} uploads "
        "of a user"
    )
    return {"holds": True, "epsilon": epsilon, "delta": delta, "statement": statement}


def _epsilon(entry: Mapping[str, Any]) -> float:
    mechanism = Mechanism(**entry["mechanism"])
    ratio = mechanism.noise / sensitivity(mechanism, Shape(*entry["shape"]))
    return local_epsilon(mechanism.kind, ratio, max(entry["uploads"]))


def _protects(mechanism: Mapping[str, Any] | None) -> bool:
    """Whether the mechanism gives a privacy guarantee: it clips uploads and adds noise."""
    return bool(mechanism and mechanism["clip"] is not None and mechanism["noise"] > 0)


def _read_entries(folder: Path) -> list[dict[str, Any]]:
    path = folder / "privacy.json"
    if not path.exists():
        return []
    found: list[dict[str, Any]] = read_json(path, FORMAT, VERSION)["sent"]
    return found
